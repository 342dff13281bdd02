"""A kernel that reads memory, the card's or pinned main memory in place, and leaves next to nothing behind."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...ops.gpu.launch import power_of_two

BLOCK = power_of_two(8000)  # bytes a program reads at a time, 64 a thread
PROGRAMS = 1056  # eight for each multiprocessor of a large card; a link needs far fewer


@triton.jit
def touch_kernel(data, out, words, BLOCK_WORDS: tl.constexpr):
    """Program i of n reads blocks i, i + n … of 32-bit words; out [n]: the exclusive or of what it saw."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    at = tl.arange(0, BLOCK_WORDS)
    total = tl.zeros((BLOCK_WORDS,), tl.int32)
    for block in range(program, words // BLOCK_WORDS, programs):
        total ^= tl.load(data + block * BLOCK_WORDS + at)  # up to 2^31 words
    tl.store(out + program, tl.xor_sum(total, 0))


def touch(data: torch.Tensor, programs: int = PROGRAMS) -> torch.Tensor:
    """Read the whole blocks of uint8 [n], at most 8 GB, of pinned memory too: int32 [programs], their exclusive ors."""
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else data.device
    out = torch.empty(programs, dtype=torch.int32, device=device)
    words = data.view(torch.int32)
    touch_kernel[(programs,)](words, out, len(words), BLOCK_WORDS=BLOCK // 4, num_warps=4)
    return out


def touch_once(data: torch.Tensor) -> torch.Tensor:
    """The same by a single program: a launch with little work."""
    return touch(data, 1)
