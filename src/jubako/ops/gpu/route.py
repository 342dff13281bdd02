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
from .fixed import put
from .kinds import plain_type
from .linear import Input, launch, long, prompt_of
from .mathfun import exp
from .room import elsewhere, found, found_four, leave, own_room
from .router import fits_router, router_product
from .target import release, target, wait

PIECE = 4096  # logits of which a program finds the largest
WARPS = 4  # that choose a token's experts together


@triton.jit
def order_key(x):
    """Integers in the order of the floats, as csrc/kernels/route.cpp has them; a NaN is the lowest."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    key = tl.where(bits >= 0, bits, -2147483648 - bits)
    return tl.where(x == x, key, -2147483647)


@triton.jit
def in_order(keys, numbers):
    """Both tuples by falling keys, lane by lane; what is equal stays in its order."""
    COUNT: tl.constexpr = len(keys)
    for last in tl.static_range(COUNT - 1):
        after, after_numbers = (), ()
        key, number = keys[0], numbers[0]
        for i in tl.static_range(1, COUNT):
            if i < COUNT - last:
                larger = keys[i] > key
                after = after + (tl.where(larger, keys[i], key),)
                after_numbers = after_numbers + (tl.where(larger, numbers[i], number),)
                key = tl.where(larger, key, keys[i])
                number = tl.where(larger, number, numbers[i])
            else:
                after = after + (key,)
                after_numbers = after_numbers + (number,)
                key, number = keys[i], numbers[i]
        keys, numbers = after + (key,), after_numbers + (number,)
    return keys, numbers


@triton.jit
def route_kernel(
    logits, stride, part_stride, ids, weights, share, table, slots, experts, outside,
    PARTS: tl.constexpr, EACH: tl.constexpr, WARPS: tl.constexpr, CHOSEN: tl.constexpr, PLACES: tl.constexpr,
    WORDS: tl.constexpr, SHARED: tl.constexpr, FORM: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """Program t: the CHOSEN largest logits of token t, the lower expert first where they tie, and their softmax.

    Logits are the sums of PARTS arrays, in order, EACH a lane of WARPS warps. A warp has experts that follow each
    other, so where logits tie those of the lower warp come first. SHARED: the logit after the experts' goes to share
    [t], and the chosen experts' slots by `table` to slots [t].
    """
    release(OVERLAP)
    LOWEST: tl.constexpr = -2147483648
    LIST: tl.constexpr = (CHOSEN + 3) // 4 * 4
    token = tl.program_id(0)
    room = own_room(outside, token, WORDS, FORM)
    wait(OVERLAP)
    w = tl.arange(0, WARPS)[:, None]
    lane = tl.arange(0, 32)[None, :]
    raws, homes = (), ()
    for i in tl.static_range(EACH):
        e = (w * EACH + i) * 32 + lane
        for part in tl.static_range(PARTS):
            raws = raws + (tl.load(logits + part * part_stride + token * stride + e, mask=e < experts, other=0.0),)
        homes = homes + ((tl.load(table + e, mask=e < experts, other=-1) if SHARED else e),)
    if SHARED:
        logit = 0.0
        for part in tl.static_range(PARTS):
            logit += tl.load(logits + part * part_stride + token * stride + experts)
        tl.store(share + token, logit)
    keys, numbers = (), ()
    for i in tl.static_range(EACH):
        e = (w * EACH + i) * 32 + lane
        x = raws[i * PARTS] + 0.0
        for part in tl.static_range(1, PARTS):
            x += raws[i * PARTS + part]
        keys = keys + (tl.where(e < experts, order_key(x), LOWEST),)
        numbers = numbers + ((e << 16) | ((homes[i] + 1) & 0xFFFF),)  # an expert, and where it is
    keys, numbers = in_order(keys, numbers)
    place = tl.arange(0, PLACES)[None, :]
    best_keys = tl.full([WARPS, PLACES], LOWEST, tl.int32)
    best = tl.full([WARPS, PLACES], 2147483647, tl.int32)
    for rank in tl.static_range(CHOSEN):  # each warp the best of its part
        top = tl.max(keys[0], axis=1)[:, None]
        number = tl.min(tl.where(keys[0] == top, numbers[0], 2147483647), axis=1)[:, None]
        best_keys = tl.where(place == rank, top, best_keys)
        best = tl.where(place == rank, number, best)
        taken = numbers[0] == number
        after, after_numbers = (), ()
        for i in tl.static_range(EACH - 1):
            after = after + (tl.where(taken, keys[i + 1], keys[i]),)
            after_numbers = after_numbers + (tl.where(taken, numbers[i + 1], numbers[i]),)
        keys = after + (tl.where(taken, LOWEST, keys[EACH - 1]),)
        numbers = after_numbers + (tl.where(taken, 2147483647, numbers[EACH - 1]),)
    OTHER: tl.constexpr = WARPS * LIST
    leave(room, w * LIST + place, best_keys, (place < LIST) & (w >= 0), FORM)
    leave(room, OTHER + w * LIST + place, best, (place < LIST) & (w >= 0), FORM)
    tl.debug_barrier()
    n = tl.arange(0, WARPS * PLACES)
    mine = n // PLACES
    at = mine * LIST + tl.minimum(n % PLACES, LIST - 1)
    key = found(room, at, FORM).to(tl.int32, bitcast=True)
    number = found(room, OTHER + at, FORM).to(tl.int32, bitcast=True)
    rank = n % PLACES  # in its own warp's list; what others have above it comes before it
    first = at * 0 + LOWEST
    for warp in tl.static_range(WARPS):
        least = tl.where(warp < mine, tl.maximum(key, LOWEST + 1) - 1, tl.where(warp > mine, key, 2147483647))
        for four in tl.static_range(LIST // 4):
            others = found_four(room, at * 0 + (warp * LIST + four * 4), FORM)
            if four == 0:
                first = tl.maximum(first, others[0])
            for i in tl.static_range(4):
                if four * 4 + i < CHOSEN:
                    rank += (others[i] > least).to(tl.int32)
    there = (n % PLACES < CHOSEN) & (rank < CHOSEN)
    part = exp(number_of(key) - number_of(first), FORM)
    leave(room, OTHER * 2 + rank, part, there, FORM)
    tl.debug_barrier()
    total = at * 0.0
    for i in tl.static_range(CHOSEN):
        total += found(room, OTHER * 2 + i + at * 0, FORM)
    to = token * CHOSEN + rank
    if SHARED:
        put(slots + to, (number & 0xFFFF) - 1, there, FORM)
    put(ids + to, number >> 16, there, FORM)
    put(weights + to, tl.div_rn(part, total), there, FORM)


@triton.jit
def number_of(key):
    """The float of an `order_key`."""
    return tl.where(key >= 0, key, -2147483648 - key).to(tl.float32, bitcast=True)


def route(logits: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The k likeliest of logits [T, E]: ids int32 [T, k], likeliest first, and weights [T, k] that sum to 1."""
    routed = _route(logits[None], k, logits.shape[1], None)
    return routed.ids, routed.weights


def _route(parts: torch.Tensor, k: int, experts: int, table: torch.Tensor | None) -> Routed:
    """Of logits whose parts are [parts, T, experts], or with a table of slots [parts, T, experts + 1]."""
    tokens = parts.shape[1]
    assert experts < 1 << 15, f"{experts} experts and their slots are not told by 32 bits"
    ids = torch.empty(tokens, k, dtype=torch.int32, device=parts.device)
    weights = torch.empty(tokens, k, device=parts.device)
    share, slots = torch.empty(tokens, device=parts.device), torch.empty_like(ids)
    to, places = target(parts.device), triton.next_power_of_2(k)
    words = WARPS * -(-k // 4) * 8 + places
    route_kernel[(tokens,)](
        parts, parts.stride(1), parts.stride(0), ids, weights, share, ids if table is None else table, slots, experts,
        elsewhere(to, tokens, words, parts.device), PARTS=parts.shape[0],
        EACH=max(1, triton.next_power_of_2(experts) // (WARPS * 32)), WARPS=WARPS, CHOSEN=k, PLACES=places, WORDS=words,
        SHARED=table is not None, FORM=to.form, OVERLAP=to.overlap, num_warps=WARPS, **to.options,
    )  # fmt: skip
    return Routed(ids, weights, share, None if table is None else slots)


def route_experts(layer: Experts, x: Input, k: int) -> Routed:
    """The experts of x [T, H] by the layer's router, whose rows are few and long: quantised ones are read in parts."""
    assert len(layer.routed.data) < 0xFFFF, "a slot is told by 16 bits"
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
