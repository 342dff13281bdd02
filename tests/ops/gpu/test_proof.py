"""Tensor cores are only used where they give the right numbers."""

from __future__ import annotations

import pytest
import torch

from jubako.ops.gpu import proof
from jubako.ops.gpu.activation import quantize
from jubako.ops.gpu.hyper_gates import tile_mix

SMALL = (1, 4, 64, 64)  # a mix of one token


@pytest.mark.parametrize("name", proof.MULTIPLIED)
def test_right_products_are_believed_and_wrong_ones_noticed(
    name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(proof, "SHAPES", ((40, 256, 3),))
    monkeypatch.setattr(proof, "MIX", (SMALL,))
    proof.tiles_are_right.cache_clear()
    assert proof.tiles_are_right(device, name)
    proof.tiles_are_right.cache_clear()
    with monkeypatch.context() as turned:
        turned.setattr(proof, "quantize", lambda x: quantize(x.flip(1)))
        assert not proof.tiles_are_right(device, name)
    assert f"products of {name} avoid them" in caplog.text
    proof.tiles_are_right.cache_clear()


def test_wrong_mixes_are_noticed(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a type that only mixes take."""
    proof.tiles_are_right.cache_clear()
    monkeypatch.setattr(proof, "SHAPES", ())
    monkeypatch.setattr(proof, "MIX", (SMALL,))
    assert proof.tiles_are_right(device, "Q5_1")
    proof.tiles_are_right.cache_clear()
    monkeypatch.setattr(proof, "tile_mix", lambda x, mix, fine: tile_mix(x.flip(2), mix, fine))
    assert not proof.tiles_are_right(device, "Q5_1")
    proof.tiles_are_right.cache_clear()
