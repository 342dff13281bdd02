"""Quick launches: what is looked up again, and what is not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton.language as tl
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from jubako.ops.gpu.quick import quick_launches


def _kernel(x, n, SIZE: tl.constexpr, MORE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Never run here."""
    tl.store(x + tl.arange(0, SIZE), n + MORE)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], list[Any]]:
    """What went Triton's own way, and what was launched at once."""
    slow: list[Any] = []
    quick: list[Any] = []

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        slow.append((args, named))
        number = len(slow)
        return SimpleNamespace(
            run=lambda *given: quick.append((number, given)), function="f", packed_metadata="m", number=number
        )

    monkeypatch.setattr(JITFunction, "run", run)
    monkeypatch.setattr(
        driver, "_active", SimpleNamespace(get_current_device=lambda: 0, get_current_stream=lambda device: 7)
    )
    return slow, quick


def test_a_second_launch_is_quick(calls: tuple[list[Any], list[Any]]) -> None:
    slow, quick = calls
    kernel, x = JITFunction(_kernel), torch.zeros(64)
    with quick_launches():
        for n in (32, 48):
            kernel[(3, 2)](x, n, MORE=5, SIZE=16, num_warps=4)
    assert len(slow) == 1
    [(number, given)] = quick
    assert number == 1 and given[:6] == (3, 2, 1, 7, "f", "m")
    assert given[-4] is x and given[-3:] == (48, 16, 5)  # in the order of the kernel's parameters


def test_another_kind_of_argument_is_not(calls: tuple[list[Any], list[Any]]) -> None:
    """Alignment, ones, types, constants and options make other kernels; the right one is launched afterwards."""
    slow, quick = calls
    kernel, x = JITFunction(_kernel), torch.zeros(64)
    variants: list[tuple[tuple[Any, ...], dict[str, int]]] = [
        ((x, 32), {"SIZE": 16, "MORE": 5}),
        ((x[1:], 32), {"SIZE": 16, "MORE": 5}),
        ((x.half(), 32), {"SIZE": 16, "MORE": 5}),
        ((x, 1), {"SIZE": 16, "MORE": 5}),
        ((x, 33), {"SIZE": 16, "MORE": 5}),
        ((x, 1 << 40), {"SIZE": 16, "MORE": 5}),
        ((x, 32), {"SIZE": 32, "MORE": 5}),
        ((x, 32), {"SIZE": 16, "MORE": 5, "num_warps": 8}),
    ]
    with quick_launches():
        for args, named in variants:
            kernel[(1,)](*args, **named)
        assert len(slow) == len(variants) and not quick
        for args, named in variants:
            kernel[(1,)](*args, **named)
    assert [number for number, _ in quick] == list(range(1, len(variants) + 1))


def test_a_named_argument_goes_the_long_way(calls: tuple[list[Any], list[Any]]) -> None:
    slow, quick = calls
    kernel, x = JITFunction(_kernel), torch.zeros(64)
    with quick_launches():
        for _ in range(2):
            kernel[(1,)](x, n=3, SIZE=16, MORE=5)
    assert len(slow) == 2 and not quick
