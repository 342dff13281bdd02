"""Launches that cost the host little: what Triton finds out about a call's arguments is looked up, not found again.

A prompt's pass asks for some 40 kernels a layer. Of a launch Triton's own path takes the larger part: it binds and
describes every argument, writes the options down as text, compares the kernel's globals and calls hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction

KNOWN = "jubako_launches"  # a kernel's attribute: what was found, by kinds of arguments


def kind_of(argument: Any) -> Any:
    """What a compiled kernel depends on of an argument: as Triton has it, or finer."""
    if isinstance(argument, torch.Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):  # bool, too
        return type(argument), argument == 1, argument % 16 == 0, -(2**31) <= argument < 2**31
    return type(argument)


def _rest(kernel: Any, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...] | None:
    """The constants after positional arguments, in order; None where others are named or left out."""
    params = kernel.params[len(args) :]
    if any(not p.is_constexpr or p.name not in named for p in params):
        return None
    if any(p.is_constexpr for p in kernel.params[: len(args)]):
        return None
    return tuple(named[p.name] for p in params)


@contextmanager
def quick_launches() -> Iterator[None]:
    """Inside, kernels that were launched before with arguments of the same kinds are launched at once."""
    launch: Callable[..., Any] = JITFunction.run
    enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
    if getattr(enter, "calls", None) or getattr(leave, "calls", None):  # a profiler wants to hear of each
        yield
        return

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        active = driver.active
        device = active.get_current_device()
        key = (device, *map(kind_of, args), *named.items())
        known = self.__dict__.setdefault(KNOWN, {})
        found = known.get(key)
        if found is None or warmup:
            rest = _rest(self, args, named)
            kernel = launch(self, *args, grid=grid, warmup=warmup, **named)
            if rest is not None and not callable(grid) and not warmup:
                known[key] = (kernel.run, kernel.function, kernel.packed_metadata, rest)
            return kernel
        call, function, metadata, rest = found
        x, y, z = (*grid, 1, 1)[:3]
        call(x, y, z, active.get_current_stream(device), function, metadata, None, None, None, *args, *rest)
        return None

    JITFunction.run = run
    try:
        yield
    finally:
        JITFunction.run = launch
