"""Which experts a token goes to, and the likeliest token: decided on the device."""
# mypy: disable-error-code="no-untyped-def,assignment,misc,var-annotated"

from __future__ import annotations

import torch
import triton
import triton.language as tl

from . import prompt
from .activation import Quantised, quantize
from .cuts import divisor
from .experts import Experts, Routed
from .kinds import plain_type
from .linear import Input, launch, long, prompt_of
from .mathfun import exp
from .router import fits_router, router_product
from .target import release, target, wait

PIECE = 4096  # logits of which a program finds the largest


@triton.jit
def order_key(x):
    """Integers in the order of the floats, as csrc/kernels/route.cpp has them; a NaN is the lowest."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    key = tl.where(bits >= 0, bits, -2147483648 - bits)
    return tl.where(x == x, key, -2147483647)


@triton.jit
def route_kernel(
    logits, stride, part_stride, ids, weights, share, table, slots, experts,
    PARTS: tl.constexpr, SIZE: tl.constexpr, CHOSEN: tl.constexpr, PLACES: tl.constexpr, SHARED: tl.constexpr,
    FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program t: the CHOSEN largest logits of token t, the lower expert first where they tie, and their softmax.

    Logits are the sums of PARTS arrays, in order. SHARED: the logit after the experts' goes to share [t], and
    the chosen experts' slots by `table` to slots [t].
    """
    release(OVERLAP)
    wait(OVERLAP)
    token = tl.program_id(0)
    e = tl.arange(0, SIZE)
    x = tl.zeros([SIZE], tl.float32)
    for part in tl.static_range(PARTS):
        x += tl.load(logits + part * part_stride + token * stride + e, mask=e < experts, other=0.0)
    if SHARED:
        logit = 0.0
        for part in tl.static_range(PARTS):
            logit += tl.load(logits + part * part_stride + token * stride + experts)
        tl.store(share + token, logit)
    keys = tl.reshape(tl.where(e < experts, order_key(x), -2147483648), [SIZE // 128, 4, 32])
    number = tl.reshape(e, [SIZE // 128, 4, 32])
    place = tl.arange(0, PLACES)[None, :]
    best_keys = tl.full([4, PLACES], -2147483648, tl.int32)
    best = tl.full([4, PLACES], SIZE, tl.int32)
    for rank in tl.static_range(CHOSEN):  # each warp the best of its quarter
        top = tl.max(tl.max(keys, axis=0), axis=1)
        same = keys == top[None, :, None]
        id = tl.min(tl.min(tl.where(same, number, SIZE), axis=0), axis=1)
        best_keys = tl.where(place == rank, top[:, None], best_keys)
        best = tl.where(place == rank, id[:, None], best)
        keys = tl.where(number == id[None, :, None], -2147483648, keys)
    key = tl.reshape(best_keys, [4 * PLACES])
    id = tl.reshape(best, [4 * PLACES])
    above = (key[None, :] > key[:, None]) | ((key[None, :] == key[:, None]) & (id[None, :] < id[:, None]))
    rank = tl.sum(above.to(tl.int32), axis=1)
    place = tl.arange(0, PLACES)
    taken = rank[:, None] == place[None, :]
    top = tl.sum(tl.where(taken, key[:, None], 0), axis=0)
    picked = tl.sum(tl.where(taken, id[:, None], 0), axis=0)
    there = place < CHOSEN
    value = tl.where(there, tl.where(top >= 0, top, -2147483648 - top).to(tl.float32, bitcast=True), 0.0)
    first = tl.sum(tl.where(place == 0, value, 0.0), axis=0)
    part = tl.where(there, exp(value - first, FORM), 0.0)
    total = 0.0
    for rank in tl.static_range(CHOSEN):
        total += tl.sum(tl.where(place == rank, part, 0.0), axis=0)
    tl.store(ids + token * CHOSEN + place, picked, mask=there)
    if SHARED:
        tl.store(slots + token * CHOSEN + place, tl.load(table + picked, mask=there, other=-1), mask=there)
    tl.store(weights + token * CHOSEN + place, tl.div_rn(part, total + part * 0.0), mask=there)


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k likeliest of logits [T, E]: ids int32 [T, k], likeliest first, and weights [T, k] that sum to 1."""
    routed = _route(logits[None], k, logits.shape[1], None)
    return routed.ids, routed.weights


def _route(parts: torch.Tensor, k: int, experts: int, table: torch.Tensor | None) -> Routed:
    """Of logits whose parts are [parts, T, experts], or with a table of slots [parts, T, experts + 1]."""
    tokens = parts.shape[1]
    ids = torch.empty(tokens, k, dtype=torch.int32, device=parts.device)
    weights = torch.empty(tokens, k, device=parts.device)
    share, slots = torch.empty(tokens, device=parts.device), torch.empty_like(ids)
    to = target(parts.device)
    route_kernel[(tokens,)](
        parts, parts.stride(1), parts.stride(0), ids, weights, share, ids if table is None else table, slots, experts,
        PARTS=parts.shape[0],
        SIZE=max(128, triton.next_power_of_2(experts)), CHOSEN=k, PLACES=triton.next_power_of_2(k),
        SHARED=table is not None, FORM=to.form, OVERLAP=to.overlap, num_warps=4, **to.options,
    )  # fmt: skip
    return Routed(ids, weights, share, None if table is None else slots)


def route_experts(layer: Experts, x: Input, k: int) -> Routed:
    """The experts of x [T, H] by the layer's router, whose rows are few and long: quantised ones are read in parts."""
    if long(x):
        return _route(prompt.multiply(layer.router, prompt_of(x))[None], k, layer.count, layer.routed.table)
    assert not isinstance(x, prompt.Halves)
    needs_fine = not all(plain_type(m.type.id) for m in layer.router)
    if not isinstance(x, Quantised) or (needs_fine and not x.fine):
        x = quantize(x.plain() if isinstance(x, Quantised) else x)
    if fits_router(layer.router):
        logits = torch.empty(1, x.tokens, layer.count + 1, device=x.d.device)
        router_product(layer.router[0], x, logits[0])
        return _route(logits, k, layer.count, layer.routed.table)
    units = -(-layer.router[0].blocks // 8)
    splits = 1 if plain_type(layer.router[0].type.id) else units // divisor(units, 2)
    parts = torch.empty(splits, x.tokens, layer.count + 1, device=x.d.device)
    launch(layer.router, x, parts, splits)
    return _route(parts, k, layer.count, layer.routed.table)


@triton.jit
def argmax_kernel(
    logits, stride, count, best, PIECE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program (piece, t): the largest of PIECE logits and where it is, as one number that orders both."""
    release(OVERLAP)
    wait(OVERLAP)
    i = tl.program_id(0) * PIECE + tl.arange(0, PIECE)
    token = tl.program_id(1)
    x = tl.load(logits + token.to(tl.int64) * stride + i, mask=i < count, other=float("-inf"))
    key = tl.where(x == x, order_key(x), 0x7FFFFFFF)
    keys = (tl.where(i < count, key, -2147483648).to(tl.int64) << 32) | (0x7FFFFFFF - i).to(tl.int64)
    tl.store(best + token * tl.num_programs(0) + tl.program_id(0), tl.max(keys, axis=0))


@triton.jit
def token_of(top):
    """The place of the largest logit by `argmax_kernel`'s numbers; -1 if that is no finite number."""
    key = top >> 32
    finite = (key < 0x7F800000) & (key > -2139095040)  # the keys of +inf and -inf
    return tl.where(finite, 0x7FFFFFFF - (top & 0x7FFFFFFF), -1)


@triton.jit
def likeliest_tokens(best, pieces, row, live, SIZE: tl.constexpr):
    """`token_of` each row [n] of best [T, pieces] where live [n]: int32 [n]; SIZE: pieces as a power of two."""
    p = tl.arange(0, SIZE)
    there = live[:, None] & (p < pieces)[None, :]
    keys = tl.load(best + row[:, None] * pieces + p[None, :], mask=there, other=-9223372036854775808)
    return token_of(tl.max(keys, axis=1)).to(tl.int32)


@triton.jit
def best_kernel(best, pieces, out, SIZE: tl.constexpr, OVERLAP: tl.constexpr):
    """Program t: the token of the largest of its pieces."""
    release(OVERLAP)
    wait(OVERLAP)
    i = tl.arange(0, SIZE)
    token = tl.program_id(0)
    top = tl.max(tl.load(best + token * pieces + i, mask=i < pieces, other=-9223372036854775808), axis=0)
    tl.store(out + token, token_of(top))


def largest_of(logits: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Of each row [T, vocabulary] the largest of every piece, as int64 [T, pieces] that `token_of` reads."""
    tokens, count = logits.shape
    pieces = -(-count // PIECE)
    best = torch.empty(tokens, pieces, dtype=torch.int64, device=logits.device) if out is None else out
    to = target(logits.device)
    argmax_kernel[(pieces, tokens)](
        logits, logits.stride(0), count, best, PIECE=PIECE, OVERLAP=to.overlap, **to.options
    )
    return best


def argmax(logits: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row [T, vocabulary]: int64 [T]; the lowest id on ties.

    -1 for a row that holds NaN or +inf, or -inf alone.
    """
    best, to = largest_of(logits), target(logits.device)
    out = torch.empty(len(best), dtype=torch.int64, device=logits.device)
    best_kernel[(len(best),)](
        best, best.shape[1], out, SIZE=triton.next_power_of_2(best.shape[1]), OVERLAP=to.overlap, num_warps=1,
        **to.options,
    )  # fmt: skip
    return out
