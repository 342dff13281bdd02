"""`HostTable`: rows of the file's own blocks in pinned host memory, read by the GPU over the bus as they are needed."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import triton
import triton.language as tl

from ...arch.tensor import Tensor
from ...errors import MachineError
from ...quant import BlockType
from .integer import table_byte
from .kinds import has_table, is_, table_word
from .pinned import copy_of
from .target import release, target, wait

TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL")


@dataclass(frozen=True, slots=True, eq=False)
class HostTable:
    """data: raw rows uint8 [rows, row bytes], pinned where there is a GPU."""

    data: torch.Tensor
    type: BlockType
    cols: int
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor, device: torch.device) -> HostTable:
        """A copy of the tensor's rows in pinned memory."""
        if tensor.type.name not in TYPES:
            raise MachineError(
                f"{tensor.name} is {tensor.type.name}; a table in host memory must be one of {', '.join(TYPES)}"
            )
        data = torch.from_numpy(copy_of(np.ascontiguousarray(tensor.data), device))
        return cls(data, tensor.type, tensor.shape[-1], device)


@triton.jit
def half_at(pointer):
    """The IEEE half at a pointer to bytes."""
    low = tl.load(pointer).to(tl.uint16)
    return (low | (tl.load(pointer + 1).to(tl.uint16) << 8)).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit
def table_kernel(
    data, ids, out, cols, row_bytes, WIDTH: tl.constexpr, BYTES: tl.constexpr, TYPE: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program i: row ids[i], decoded. WIDTH: columns up to a power of two; BYTES: of a block of 32, or of a number."""
    release(OVERLAP)
    wait(OVERLAP)
    place = tl.program_id(0)
    row = data + tl.load(ids + place).to(tl.int64) * row_bytes
    k = tl.arange(0, WIDTH)
    k = tl.minimum(k, cols - 1)
    if is_(TYPE, "F32"):
        value = tl.load(row.to(tl.pointer_type(tl.float32)) + k)
    elif is_(TYPE, "F16"):
        value = tl.load(row.to(tl.pointer_type(tl.float16)) + k).to(tl.float32)
    elif is_(TYPE, "BF16"):
        value = tl.load(row.to(tl.pointer_type(tl.bfloat16)) + k).to(tl.float32)
    else:
        block = row + (k // 32) * BYTES
        w = k % 32
        d = half_at(block)
        if is_(TYPE, "Q8_0"):
            value = d * tl.load((block + 2).to(tl.pointer_type(tl.int8)) + w).to(tl.float32)
        else:
            AT: tl.constexpr = BYTES - 16
            code = (tl.load(block + AT + w % 16).to(tl.int32) >> (4 * (w // 16))) & 15
            if is_(TYPE, "Q5_0", "Q5_1"):
                bit = (tl.load(block + AT - 4 + w // 8).to(tl.int32) >> (w % 8)) & 1
                code += bit * 16
            if has_table(TYPE):
                found = table_byte(
                    code, table_word(TYPE, 0), table_word(TYPE, 1), table_word(TYPE, 2), table_word(TYPE, 3)
                )
                code = (found << 24) >> 24
            if is_(TYPE, "Q4_0"):
                code -= 8
            if is_(TYPE, "Q5_0"):
                code -= 16
            value = d * code.to(tl.float32)
            if is_(TYPE, "Q4_1", "Q5_1"):
                value += half_at(block + 2)
    tl.store(out + place * cols + k, value)


def rows_of(table: HostTable, ids: torch.Tensor) -> torch.Tensor:
    """Rows ids [T] of a table, decoded: float32 [T, cols] on the device."""
    out = torch.empty(ids.shape[0], table.cols, device=table.device)
    to = target(table.device)
    width = triton.next_power_of_2(table.cols)
    table_kernel[(ids.shape[0],)](
        table.data, ids, out, table.cols, table.data.shape[1], WIDTH=width, BYTES=table.type.bytes,
        TYPE=table.type.id, OVERLAP=to.overlap, num_warps=1, **to.options,
    )  # fmt: skip
    return out
