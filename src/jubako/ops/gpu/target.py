"""How kernels are launched on a device: which integer forms it has, and overlap with the kernel before."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Forms of dot4 and of the table look-up (integer.py).
PLAIN = 0  # arithmetic only: the interpreter, and what has nothing better
CUDA = 1  # dp4a and prmt, compute capability 6.1 on
RDNA2 = 2  # v_dot4_i32_i8
RDNA3 = 3  # v_dot4_i32_iu8, RDNA3 and 4
TENSOR = 4  # like CUDA, and blocks of several rows in one instruction: mma of bytes, compute capability 8.0 on

LARGE = 150 << 10  # bytes of shared memory a program may take where two stages fit


@dataclass(frozen=True)
class Target:
    """form: see above; overlap: kernels may start while the one before drains (compute capability 9 on); dot: tl.dot of
    16-bit floats is worth using (elsewhere it becomes scalar); stages: tiles of such a product on their way at once, as
    shared memory allows."""

    form: int
    overlap: bool
    dot: bool = True
    stages: int = 2

    @property
    def one_column(self) -> int:
        """The form for weights that meet a single column of bytes: tensor cores gain nothing there."""
        return CUDA if self.form == TENSOR else self.form

    def form_of(self, columns: int) -> int:
        """The form of a product whose programs take so many columns."""
        return self.one_column if columns == 1 else self.form

    @property
    def shares(self) -> bool:
        """Whether several columns should meet weights in registers: elsewhere weights come again, from the cache."""
        return self.form in (TENSOR, PLAIN)

    @property
    def options(self) -> dict[str, Any]:
        """Compiler options of every kernel here. Products and sums are rounded one by one: bits are promised."""
        options: dict[str, Any] = {} if self.form == PLAIN and interpreted() else {"enable_fp_fusion": False}
        if self.overlap:
            options["launch_pdl"] = True
        return options


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter."""
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


@lru_cache(maxsize=16)
def _target(kind: str, index: int) -> Target:
    if kind != "cuda" or interpreted():
        return Target(PLAIN, False)
    if torch.version.hip is not None:
        name = torch.cuda.get_device_properties(index).gcnArchName.split(":")[0]
        return Target(form_of_gfx(name), False, name >= "gfx11", 1)
    capability = torch.cuda.get_device_capability(index)
    room = getattr(torch.cuda.get_device_properties(index), "shared_memory_per_block_optin", 0)
    form = TENSOR if capability >= (8, 0) else CUDA
    return Target(form, capability >= (9, 0), capability >= (8, 0), 2 if room > LARGE else 1)


def form_of_gfx(name: str) -> int:
    """The form for an AMD architecture ("gfx1030")."""
    if name.startswith(("gfx11", "gfx12")):
        return RDNA3
    return RDNA2 if name.startswith("gfx103") else PLAIN


def target(device: torch.device) -> Target:
    """What kernels on this device are compiled for."""
    return _target(device.type, device.index or 0)


@triton.jit
def wait(OVERLAP: tl.constexpr):
    """Everything that earlier kernels wrote is visible after this. Weights may be read before it."""
    if OVERLAP:
        gdc_wait()


@triton.jit
def release(OVERLAP: tl.constexpr):
    """The next kernel may start to fetch its weights."""
    if OVERLAP:
        gdc_launch_dependents()
