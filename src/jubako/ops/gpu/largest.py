"""The largest logits of a row, for samplers that need no others: of each piece, then of those.

A logit and its place are one number of BITS bits, so that no two are the same: the least of those to be kept is found
bit by bit, by counting.
"""
# mypy: allow-untyped-defs

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .launch import overlapped, power_of_two
from .route import order_key
from .target import release, target, wait

LARGEST = 64  # logits that are found
PIECE = 2048  # logits of which a program finds them
PLACES = 20  # bits of a place
BITS = 32 + PLACES


@triton.jit
def _kept(key, MOST: tl.constexpr, BITS: tl.constexpr):
    """Whether each of key [n] is among the MOST largest, and how many of those lie before it. A key below 0 is none."""
    least = tl.zeros([1], tl.int64)
    for bit in range(BITS):
        more = least | (tl.full([1], 1, tl.int64) << (BITS - 1 - bit))
        least = tl.where(tl.sum((key >= more).to(tl.int32), axis=0) >= MOST, more, least)
    kept = key >= least
    return kept, tl.cumsum(kept.to(tl.int32), axis=0) - 1


@triton.jit
def _of_piece(
    logits, stride, count, keys,
    PIECE: tl.constexpr, MOST: tl.constexpr, PLACES: tl.constexpr, BITS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (piece, t): the largest of a piece, the lower place first where they tie; -1 for each that lacks."""
    release(OVERLAP)
    wait(OVERLAP)
    piece, token = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = piece * PIECE + tl.arange(0, PIECE)
    x = tl.load(logits + token * stride + i, mask=i < count, other=float("-inf"))
    key = ((order_key(x).to(tl.int64) + 2147483648) << PLACES) | ((1 << PLACES) - 1 - i).to(tl.int64)
    kept, before = _kept(tl.where(i < count, key, -1), MOST, BITS)
    out = keys + (token * tl.num_programs(0) + piece) * MOST
    place = tl.arange(0, MOST)
    tl.store(out + place, tl.full([MOST], -1, tl.int64), mask=place >= count - piece * PIECE)
    tl.store(out + before, key, mask=kept & (i < count))


@triton.jit
def _of_all(
    keys, pieces, ids, values,
    SIZE: tl.constexpr, MOST: tl.constexpr, PLACES: tl.constexpr, BITS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program t: the largest of all pieces', as places and logits."""
    release(OVERLAP)
    wait(OVERLAP)
    token = tl.program_id(0)
    i = tl.arange(0, SIZE)
    key = tl.load(keys + token.to(tl.int64) * pieces * MOST + i, mask=i < pieces * MOST, other=-1)
    kept, before = _kept(key, MOST, BITS)
    order = ((key >> PLACES) - 2147483648).to(tl.int32)
    value = tl.where(order >= 0, order, -2147483648 - order).to(tl.float32, bitcast=True)
    tl.store(ids + token * MOST + before, ((1 << PLACES) - 1 - (key & ((1 << PLACES) - 1))).to(tl.int32), mask=kept)
    tl.store(values + token * MOST + before, value, mask=kept)


def find_largest(logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    """Of each row [T, vocabulary] the LARGEST largest logits into values [T, LARGEST], and their ids int32, in any
    order; the lowest ids of those that tie. Rows hold no NaN, and at least so many logits."""
    tokens, count = logits.shape
    assert LARGEST <= count <= 1 << PLACES
    pieces = -(-count // PIECE)
    keys = torch.empty(tokens, pieces, LARGEST, dtype=torch.int64, device=logits.device)
    overlap, options = target(logits.device).overlap, overlapped(logits.device)
    _of_piece[(pieces, tokens)](
        logits, logits.stride(0), count, keys, PIECE=PIECE, MOST=LARGEST, PLACES=PLACES, BITS=BITS, OVERLAP=overlap,
        num_warps=4, **options,
    )  # fmt: skip
    _of_all[(tokens,)](
        keys, pieces, ids, values, SIZE=power_of_two(pieces * LARGEST), MOST=LARGEST, PLACES=PLACES, BITS=BITS,
        OVERLAP=overlap, num_warps=8, **options,
    )  # fmt: skip
