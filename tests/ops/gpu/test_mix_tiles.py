"""A hyper-connection's mix by tensor cores: streams, mixed values and inject against float64, however it is cut."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from jubako.arch import weights as arch
from jubako.arch.tensor import Tensor
from jubako.measure.random_blocks import random_blocks
from jubako.ops.gpu.hyper import HyperMix, hyper_mix, lies_in_tiles
from jubako.ops.gpu.hyper_gates import tile_mix
from jubako.ops.gpu.hyper_long import Cut
from jubako.ops.gpu.matrix import Matrix
from jubako.ops.gpu.tiles import TILES, to_tiles
from jubako.ops.gpu.weights import _Preparation
from jubako.quant import BY_NAME, decode

STREAMS, HIDDEN, RANK = 4, 64, 64


@dataclass
class Case:
    """Weights on the device and in float64, streams and what is still to be added to them."""

    mix: HyperMix
    weights: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]
    streams: np.ndarray
    inject: np.ndarray
    output: np.ndarray

    def want(self) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """New streams, mixed values, inject."""
        gamma, down, up, add = self.weights
        x = self.streams + self.inject[:, :, None].astype(np.float64) * self.output[:, None, :]
        normed = x / np.sqrt((x**2).mean(2, keepdims=True) + self.mix.eps) * gamma.reshape(STREAMS, -1)
        wide = normed.reshape(len(x), -1)
        low = wide @ down.T / STREAMS
        gates = 1 / (1 + np.exp(-(low / (1 + np.exp(-low))) @ up.T))
        mixed = (gates.reshape(normed.shape) * normed).mean(1)
        return x, mixed, None if add is None else 2 / (1 + np.exp(-wide @ add.T / STREAMS))


def case(
    tokens: int,
    device: torch.device,
    add: str | None = "F32",
    hidden: int = HIDDEN,
    types: tuple[str, str] = ("Q8_0", "Q8_0"),
) -> Case:
    rng = np.random.default_rng(tokens + hidden)
    wide = STREAMS * hidden

    def tiles(rows: int, cols: int, name: str) -> tuple[Matrix, np.ndarray]:
        type_ = BY_NAME[name]
        raw = random_blocks(type_, rows * cols // type_.weights, 0.15, rng).reshape(rows, -1)
        made = Matrix(to_tiles(torch.from_numpy(raw).to(device), type_), TILES[name], rows, cols)
        return made, decode(name, raw).astype(np.float64)

    (down, a), (up, b) = tiles(RANK, wide, types[0]), tiles(wide, RANK, types[1])
    gamma = rng.uniform(0.5, 2.0, wide).astype(np.float32)
    numbers = None if add is None else (rng.standard_normal((STREAMS, wide)) * 0.05).astype(add.replace("F", "float"))
    rows = None
    if add is not None and numbers is not None:
        data = torch.from_numpy(numbers.view(np.uint8).reshape(-1)).to(device)
        rows = Matrix(data, BY_NAME[add], STREAMS, wide)
    mix = HyperMix(torch.from_numpy(gamma).to(device), down, up, rows, STREAMS, 1e-6)
    weights = (gamma.astype(np.float64), a, b, None if numbers is None else numbers.astype(np.float64))
    streams = (rng.standard_normal((tokens, STREAMS, hidden)) * 3).astype(np.float32)
    inject = rng.standard_normal((tokens, STREAMS)).astype(np.float32)
    return Case(mix, weights, streams, inject, rng.standard_normal((tokens, hidden)).astype(np.float32))


def mixed(c: Case, device: torch.device, at: slice = slice(None), cut: Cut | None = None) -> tuple[torch.Tensor, ...]:
    """New streams, mixed values and, if there is one, inject of some tokens."""
    streams, inject, output = (torch.from_numpy(x[at].copy()).to(device) for x in (c.streams, c.inject, c.output))
    x, given = tile_mix(streams, c.mix, True, inject, output, cut)
    return (streams, x.plain().clone()) + (() if given is None else (given,))


@pytest.mark.parametrize(
    ("tokens", "add", "hidden", "cut", "types"),
    [
        (1, "F32", 64, None, ("Q8_0", "Q8_0")),
        (3, "F16", 128, Cut(2, 2, 1), ("Q8_0", "Q8_0")),
        (5, None, 64, Cut(2, 1, 2), ("Q8_0", "Q8_0")),
        (1, "F32", 64, None, ("Q6_K", "Q4_0")),
        (2, None, 64, None, ("Q6_K", "Q4_1")),
        (2, None, 128, Cut(4, 1, 2), ("Q4_K", "Q5_0")),
        (1, None, 64, Cut(1, 2, 1), ("Q5_K", "Q5_1")),
        (1, None, 128, Cut(2, 2, 2), ("Q5_1", "Q8_0")),
        (2, None, 64, None, ("IQ4_XS", "IQ4_NL")),
        (1, None, 128, None, ("IQ4_XS", "IQ4_NL")),
        (1, None, 64, None, ("IQ4_NL", "IQ4_NL")),
    ],
)
def test_against_float64(
    tokens: int, add: str | None, hidden: int, cut: Cut | None, types: tuple[str, str], device: torch.device
) -> None:
    """Several parts a stream, tiles of rows beyond the last, more tokens than a program takes."""
    c = case(tokens, device, add, hidden, types)
    want = c.want()
    assert want[1].std() > 0.1
    got = mixed(c, device, cut=cut)
    for mine, right in zip(got, [array for array in want if array is not None], strict=True):
        assert np.abs(mine.cpu().numpy() - right).max() <= 1e-4 * np.abs(right).max()


@pytest.mark.parametrize("types", [("Q8_0", "Q8_0"), ("Q4_K", "Q5_0"), ("Q6_K", "Q4_1")])
def test_columns_are_independent(types: tuple[str, str], device: torch.device) -> None:
    """The bits of a token alone, and beside others in another place."""
    c = case(5, device, types=types)
    together = mixed(c, device)
    for at in (slice(1, 2), slice(2, 5)):
        for part, whole in zip(mixed(c, device, at), together, strict=True):
            assert torch.equal(part, whole[at])


@pytest.mark.parametrize(
    ("down", "hidden", "half", "wide"),
    [("Q8_0", 128, Cut(2, 1, 2), Cut(4, 1, 2)), ("Q4_K", 128, Cut(2, 1, 2), Cut(4, 1, 2))],
)
def test_order_of_sums_is_that_of_all_widths(
    down: str, hidden: int, half: Cut, wide: Cut, device: torch.device
) -> None:
    """A program of twice as many warps adds up what two programs leave to the gates."""
    c = case(1, device, None, hidden, (down, "Q5_0"))
    for part, whole in zip(mixed(c, device, cut=half), mixed(c, device, cut=wide), strict=True):
        assert torch.equal(part, whole)


def test_streams_as_they_are(device: torch.device) -> None:
    """Without an output the streams stay, and count as those that an output was added to."""
    c = case(1, device)
    new, x, _ = mixed(c, device)
    streams = new.clone()
    again, _ = hyper_mix(streams, c.mix)
    assert torch.equal(streams, new) and torch.equal(again.plain(), x)


def test_what_is_no_number_stays(device: torch.device) -> None:
    c = case(2, device)
    c.streams[1, 2, 5] = np.nan
    _, x, inject = mixed(c, device)
    assert x[0].isfinite().all() and x[1].isnan().all()
    assert inject[0].isfinite().all() and inject[1].isnan().all()


def test_a_matrix_added_in_blocks_is_read_as_numbers(device: torch.device) -> None:
    """Rows of inject in blocks, times a factor, do not keep the others out of tiles."""
    rng, shapes = np.random.default_rng(4), {"down": (RANK, 256), "up": (256, RANK), "inject": (STREAMS, 256)}
    kind = BY_NAME["Q8_0"]
    raws = {name: random_blocks(kind, r * c // 32, 0.1, rng).reshape(r, -1) for name, (r, c) in shapes.items()}
    norm = Tensor("norm", BY_NAME["F32"], (256,), np.ones(256, np.float32).view(np.uint8), Path(), 0)
    half = np.array([0.5], np.float32)
    leaves = {
        name: Tensor(name, kind, shapes[name], raw, Path(), 0, half if name == "inject" else None)
        for name, raw in raws.items()
    }
    config: Any = SimpleNamespace(streams=STREAMS, eps=1e-6)
    made = _Preparation(config, device, None, False, None).hyper_mix(arch.HyperMix(norm, **leaves))
    assert lies_in_tiles(made) and made.inject is not None
    got = made.inject.data.cpu().numpy().view(np.float32).reshape(STREAMS, -1)
    assert np.array_equal(got, 0.5 * decode("Q8_0", raws["inject"]))
