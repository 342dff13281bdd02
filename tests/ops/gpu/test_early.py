"""What kernels touch before they wait is found in PTX, on every way through them, and held against what they may."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))

from early import check_early, early

NAMES = ["weights", "out", "", "x"]
# One program waits with weights on their way, the other at once; the first loops. Stores come after it.
PTX = """
.visible .entry kernel(
	.param .u64 .ptr .global .align 1 kernel_param_0
)
.reqntid 64
{
	.reg .b64 	%rd<9>;
	.loc	1 23 0                          // kernel.py:23:0
$L__func_begin0:
	ld.param.b64 	%rd1, [kernel_param_0];
	ld.param.b64 	%rd2, [kernel_param_1];
	ld.param.b64 	%rd3, [kernel_param_3];
	setp.lt.s32 	%p1, %r1, %r2;
	@%p1 bra 	$L__BB0_3;
$L__BB0_2:                              // =>This Inner Loop Header: Depth=1
	mad.wide.s32 	%rd4, %r1, 4, %rd1;
	// begin inline asm
	mov.u32 %r4, 0x0;
	@%p2 ld.global.v2.b32 { %r4, %r5 }, [ %rd4 + 0 ];
	// end inline asm
	LOOP
	@%p3 bra 	$L__BB0_2;
$L__BB0_3:
	// begin inline asm
	griddepcontrol.wait; // dummy %r6
	// end inline asm
	griddepcontrol.launch_dependents; // dummy %r7
	ld.global.b64 	%rd6, [%rd3];
	add.s64 	%rd7, %rd2, 128;
	st.global.b64 	[%rd7], %rd6;
	ret;
}
"""


def with_loop(*lines: str) -> str:
    return PTX.replace("LOOP", "\n\t".join(lines))


def test_what_comes_after_the_wait_is_not_early() -> None:
    found = early(with_loop(), NAMES)
    assert (found.reads, found.writes, found.releases) == ({"weights"}, set(), False)


@pytest.mark.parametrize(
    ("line", "reads", "writes"),
    [
        ("ld.global.b32 %r8, [%rd3];", {"weights", "x"}, set()),
        ("cp.async.cg.shared.global [ %r9 + 0 ], [ %rd3 + 0 ], 0x10, %r8;", {"weights", "x"}, set()),
        ("{ .reg .pred p; @p ld.acquire.sys.u32 %r8, [%rd3]; }", {"weights", "x"}, set()),
        ("st.global.v2.b32 [ %rd2 + 4 ], { %r4, %r5 };", {"weights"}, {"out"}),
        ("atom.global.add.u32 %r8, [%rd2], 1;", {"weights"}, {"out"}),
        ("st.shared.b32 [%r9], %r4;", {"weights"}, set()),
        ("ld.global.b64 %rd8, [%rd4]; ld.global.b32 %r8, [%rd8];", {"weights", "?"}, set()),
    ],
)
def test_what_comes_before_it_is(line: str, reads: set[str], writes: set[str]) -> None:
    found = early(with_loop(line), NAMES)
    assert (found.reads, found.writes) == (reads, writes)


def test_a_way_around_the_wait_is_seen() -> None:
    found = early(
        with_loop("@%p4 bra $L__BB0_4;").replace("\tld.global.b64 \t%rd6", "$L__BB0_4:\n\tld.global.b64 %rd6"), NAMES
    )
    assert (found.reads, found.writes) == ({"weights", "x"}, {"out"})


def test_kernels_are_held_to_what_they_may() -> None:
    check_early(with_loop(), "router_kernel", ["base", *NAMES[1:]])
    with pytest.raises(ValueError, match="router_kernel reads weights before it waits"):
        check_early(with_loop(), "router_kernel", NAMES)
    with pytest.raises(ValueError, match="router_kernel writes out before it waits"):
        check_early(with_loop("st.global.b32 [%rd2], %r4;"), "router_kernel", ["base", *NAMES[1:]])
    with pytest.raises(ValueError, match="_take releases"):
        check_early(with_loop(), "_take", NAMES)
    check_early(with_loop(), "gate_up_kernel", ["shared", *NAMES[1:]])
    with pytest.raises(ValueError, match="gate_up_kernel releases"):
        check_early(with_loop("griddepcontrol.launch_dependents;"), "gate_up_kernel", ["shared", *NAMES[1:]])
    with pytest.raises(ValueError, match="never waits"):
        check_early(with_loop().replace("griddepcontrol.wait;", ""), "router_kernel", NAMES)
