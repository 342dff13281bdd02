"""Words that lanes leave for one another: values, the order of sums, and barriers in what is compiled."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from jubako.ops.gpu.room import added, elsewhere, found, found_four, found_two, leave, leave_bytes, own_room
from jubako.ops.gpu.target import target

sys.path.insert(0, str(Path(__file__).parents[3] / "tools"))
from rooms import check_rooms

ROOM = ".shared .align 16 .b32 room[64];"


@triton.jit
def turned_kernel(x, outside, words, out, sums, FORM: tl.constexpr):
    """out [i] = x [31 - i], bytes 7, 6 … 0 of 8 words to words; sums: of five neighbours."""
    n = tl.arange(0, 32)
    room = own_room(outside, tl.program_id(0), 64, FORM)
    leave(room, 31 - n, tl.load(x + n), n >= 0, FORM)
    leave_bytes(room, 128 + 31 - n, n, FORM)
    tl.debug_barrier()
    tl.store(out + n, found(room, n, FORM))
    m = tl.arange(0, 2)
    four = found_four(room, 32 + m * 4, FORM)
    for i in tl.static_range(4):
        tl.store(words + m * 4 + i, four[i])
    two = found_two(room, m * 2, FORM)
    one, other = two[0].to(tl.float32, bitcast=True), two[1].to(tl.float32, bitcast=True)
    tl.store(sums + m, added((one, other, one * 4.0, other * 8.0, one)))


def test_words_change_lanes(device: torch.device) -> None:
    x = torch.arange(32, dtype=torch.float32, device=device) + 0.5
    to = target(device)
    out, words = torch.empty_like(x), torch.empty(8, dtype=torch.int32, device=device)
    sums = torch.empty(2, device=device)
    room = elsewhere(to, 1, 64, device)
    turned_kernel[(1,)](x, room, words, out, sums, FORM=to.form, num_warps=1, **to.options)
    assert torch.equal(out, x.flip(0))
    assert words.view(torch.uint8).tolist() == list(range(31, -1, -1))
    assert sums.tolist() == [6 * 31.5 + 9 * 30.5, 6 * 29.5 + 9 * 28.5]


def test_a_barrier_lies_between() -> None:
    check_rooms(f"{ROOM} st.shared.b32 [a], b; bar.sync 0; ld.shared.b32 c, [a];", "good")
    check_rooms("st.shared.b32 [a], b; ld.shared.b32 c, [a];", "without a room")
    check_rooms(f"{ROOM} st.shared.b32 [a], b; ld.shared.b32 c, [d];", "_gdn_columns")
    with pytest.raises(RuntimeError, match="bad: words are looked for"):
        check_rooms(f"{ROOM} bar.sync 0; st.shared.b32 [a], b; ld.shared.b32 c, [a];", "bad")


def test_each_turn_is_taken_once() -> None:
    wait, go_on = "@p bar.sync %r7, 64;", "@p bar.arrive %r9, 64;"
    check_rooms(wait + go_on + wait + go_on, "good")
    with pytest.raises(RuntimeError, match="bad: warps wait for 2 turns and take 1"):
        check_rooms(wait + wait + go_on, "bad")
