"""Kernels compiled side by side: a pass through the network in which nothing is launched says which ones it takes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton
from triton.runtime.jit import JITFunction


@contextmanager
def compiling() -> Iterator[None]:
    """Inside, launches only compile, many at a time; at the end all are ready. What tensors hold is undefined.

    What does not compile raises where it is launched: here it would leave Triton in this mode for good.
    """
    launch: Callable[..., Any] = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compile_only
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool, triton.AsyncCompileMode(pool, ignore_errors=True):
            yield
    finally:
        JITFunction.run = launch
