"""The check of tensor cores' descriptors finds the assembler's known fault, and nothing where there is none."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from descriptors import of_machine_code, of_ptx

# Two steps of a product whose right factor lies at the start of the program's shared memory, 32 bytes a row.
PTX = """
	mov.b32 	%r238, global_smem;
	bfe.u32 	%r345, %r238, 4, 14;
	cvt.u64.u32 	%rd79, %r345;
	or.b64 	%rd60, %rd79, -4611685949707911168;
	wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%r765,%r766}, {%r782,%r783,%r784,%r785}, %rd60, 0, 1, 1, 1;
	add.s64 	%rd61, %rd79, -4611685949707911136;
	wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%r765,%r766}, {%r786,%r787,%r788,%r789}, %rd61, %p81, 1, 1, 1;
"""
START = ["S2UR UR6, SR_CgaCtaId", "UMOV UR5, 0x400", "ULEA UR5, UR6, UR5, 0x18"]
FIRST = ["USHF.R.U32.HI UR6, URZ, 0x4, UR5", "USGXT.U32 UR6, UR6, 0xe", "UMOV UR7, 0xc0000010"]
SECOND = ["UIADD3 UR10, UP0, {low}, 0x20, URZ", "UIADD3.X UR11, {high}, -0x3ffffff0, URZ, UP0, !UPT"]
PRODUCTS = [
    "HGMMA.64x16x16.F32 R24, R32, gdesc[UR4].tnspB, RZ, !UPT",
    "HGMMA.64x16x16.F32 R24, R36, gdesc[UR8].tnspB, R24",
]


def code(low: str, high: str) -> list[str]:
    return START + FIRST + [line.format(low=low, high=high) for line in SECOND] + PRODUCTS


def test_right_code_looks_where_the_ptx_says() -> None:
    wanted = of_ptx(PTX)
    assert wanted == [(0xC000001000000040,), (0xC000001000000060,)]
    assert of_machine_code(iter(code("UR6", "URZ"))) == wanted


def test_a_place_made_of_the_wrong_register_is_seen() -> None:
    """As ptxas 12.8 made it: the memory's start instead of the sixteenth of it, in both words."""
    assert of_machine_code(iter(code("UR5", "UR5"))) == [(0xC000001000000040,), (0xC000041000000420,)]


def test_what_is_not_known_is_left_open() -> None:
    lines = ["R2UR UR6, R9", "UMOV UR7, 0xc0000010", PRODUCTS[0]]
    assert of_machine_code(iter(lines)) == [(None,)]
    assert (
        of_ptx(PTX.replace("mov.b32 	%r238, global_smem;", "ld.shared.b32 	%r238, [global_smem];"))
        == [(None,)] * 2
    )
