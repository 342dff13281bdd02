"""Products of quantised rows: right against float64, and the same bits whatever way they are computed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from block_rows import ISAS, TYPES, bits, floats_of, model, rows_of, weight

from jubako import _cpu
from jubako.quant import BY_NAME

SHAPES = ((45, 1280), (33, 640), (6, 320), (19, 96), (40, 2560), (1, 256), (37, 32), (22, 64), (11, 128))  # rows, cols


def shapes_of(name: str) -> list[tuple[int, int]]:
    return [(rows, cols) for rows, cols in SHAPES if cols % BY_NAME[name].weights == 0]


def columns(tokens: int, cols: int, seed: int = 1) -> np.ndarray:
    """Activations whose tokens differ in size by orders of magnitude."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, cols)) * np.exp(3 * rng.standard_normal((tokens, 1)))
    return x.astype(np.float32)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_products(name: str, isa: str) -> None:
    _cpu.set_isa(isa)
    for rows, cols in shapes_of(name):
        blocks = rows_of(name, (rows,), cols)
        x = columns(21, cols)
        want, magnitude = model(name, blocks, x)
        for tokens in (1, 3, 21):
            got = _cpu.linear(weight(name, blocks), x[:tokens])
            assert got.shape == (tokens, rows)
            assert (np.abs(got - want[:tokens]) <= 1e-6 * magnitude[:tokens] + 1e-30).all()


@pytest.mark.parametrize("name", TYPES)
def test_activations_lose_little(name: str) -> None:
    """Against the unquantised activations: sixteen bits for each block's largest value."""
    blocks = rows_of(name, (16,), 1280)
    x = columns(3, 1280)
    w = floats_of(name, blocks)
    largest = np.abs(x).reshape(3, -1, 32).max(-1).repeat(32, -1).astype(np.float64)
    bound = largest @ np.abs(w).T / 32385 / 2 + 1e-6 * (np.abs(x).astype(np.float64) @ np.abs(w).T)
    assert (np.abs(_cpu.linear(weight(name, blocks), x) - x.astype(np.float64) @ w.T) <= bound).all()


@pytest.mark.parametrize("name", TYPES)
def test_bits_depend_on_nothing(name: str) -> None:
    """Not on the number of columns, the instruction set, the threads, or what other columns hold."""
    tokens = 38
    for rows, cols in shapes_of(name):
        w = weight(name, rows_of(name, (rows,), cols))
        x = columns(tokens, cols)
        _cpu.set_isa("avx2")
        _cpu.set_threads(1)
        want = bits(np.concatenate([_cpu.linear(w, x[t : t + 1]) for t in range(tokens)]))
        for isa in ISAS:
            _cpu.set_isa(isa)
            for threads in (1, 2, 5):
                _cpu.set_threads(threads)
                start = 0
                for width in (1, 2, 3, 4, 5, 6, 17):
                    got = _cpu.linear(w, x[start : start + width])
                    assert np.array_equal(bits(got), want[start : start + width]), (rows, cols, isa, threads, width)
                    start += width
                assert np.array_equal(bits(_cpu.linear(w, x)), want), (rows, cols, isa, threads)


def float32(value: Fraction) -> Fraction:
    """The nearest float32, ties to even, without the double rounding that float(value) would bring."""
    near = np.float32(float(value))
    for other in (np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))):
        distance, best = abs(Fraction(float(other)) - value), abs(Fraction(float(near)) - value)
        if distance < best or (distance == best and not int(np.float32(other).view(np.uint32)) & 1):
            near = other
    return Fraction(float(near))


def written_product(name: str, row: np.ndarray, x: np.ndarray) -> Fraction:
    """One row times one column as csrc/linear.h says, in exact fractions rounded to float32 where it rounds."""
    size = BY_NAME[name].bytes
    partial = [Fraction(0)] * 8
    for b in range(len(x) // 32):
        xb, raw = x[32 * b : 32 * b + 32], row[b * size : (b + 1) * size]
        largest = np.abs(xb).max()
        d = Fraction(float(largest / np.float32(32385)))
        q = np.rint(xb * (np.float32(32385) / largest)).astype(np.int64)
        factor = Fraction(float(raw[:2].view(np.float16)[0]))
        if name == "Q8_0":
            codes = raw[2:].view(np.int8).astype(np.int64)
        else:
            codes = np.concatenate([raw[4:] & 15, raw[4:] >> 4]).astype(np.int64)
        dot = float32(Fraction(int(codes @ q)))
        partial[b % 8] = float32(dot * float32(factor * d) + partial[b % 8])
        if name == "Q4_1":
            s = float32(d * int(q.sum()))
            partial[b % 8] = float32(Fraction(float(raw[2:4].view(np.float16)[0])) * s + partial[b % 8])
    p = partial
    low = float32(float32(p[0] + p[4]) + float32(p[2] + p[6]))
    high = float32(float32(p[1] + p[5]) + float32(p[3] + p[7]))
    return float32(low + high)


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1"])
def test_written_arithmetic(name: str) -> None:
    blocks = rows_of(name, (3,), 640)
    x = columns(1, 640)
    got = _cpu.linear(weight(name, blocks), x)[0]
    for n in range(3):
        assert float(got[n]) == float(written_product(name, blocks[n], x[0]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", TYPES)
def test_largest_values(name: str, isa: str) -> None:
    """Half precision's largest value everywhere, one huge outlier, blocks of zeros, and magnitudes near nothing."""
    _cpu.set_isa(isa)
    cols = 1280
    blocks = rows_of(name, (20,), cols)
    x = np.zeros((20, cols), np.float32)
    x[0] = 65504
    x[1] = -65504
    x[2] = np.where(np.arange(cols) % 2, 65504, -65504)
    x[3] = 1e-3
    x[3, 700] = 65504
    x[4, ::32] = 1
    x[5] = 1e-38
    x[6, 33:60] = 1e-20
    for tokens in (7, 20):
        got = _cpu.linear(weight(name, blocks), x[:tokens])
        want, magnitude = model(name, blocks, np.where(np.abs(x[:tokens]) < 2.0**-100, 0, x[:tokens]))
        assert np.isfinite(got).all()
        # a row's minima may cancel its factors, which its own magnitude does not show
        assert (np.abs(got - want) <= 2e-6 * magnitude.max(1, keepdims=True) + 1e-30).all()
        assert not got[7:].any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["Q8_0", "IQ4_NL", "Q6_K", "IQ3_XXS"])
def test_largest_codes(name: str, isa: str) -> None:
    """Blocks of equal bytes against activations of one sign: the largest sums the integers ever hold."""
    _cpu.set_isa(isa)
    block_type = BY_NAME[name]
    filling = np.array([[0x80], [0x7F], [0xFF], [0x00]], np.uint8)
    blocks = np.repeat(filling, 1280 // block_type.weights * block_type.bytes, 1)
    for start in range(0, blocks.shape[1], block_type.bytes):
        at = start + (block_type.bytes - 2 if name == "Q6_K" else 0)
        blocks[:, at : at + 2] = np.array([1], np.float16).view(np.uint8)
    x = np.repeat(np.array([[1.0], [-1.0]], np.float32), 1280, 1)
    for tokens in (1, 2, 20):
        y = np.resize(x, (tokens, 1280))
        want, magnitude = model(name, blocks, y)
        assert (np.abs(_cpu.linear(weight(name, blocks), y) - want) <= 1e-6 * magnitude).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "IQ3_XXS", "F32", "BF16"])
def test_not_a_number_stays_one(name: str, isa: str) -> None:
    _cpu.set_isa(isa)
    w = weight(name, rows_of(name, (40,), 1280))
    x = columns(20, 1280)
    clean = _cpu.linear(w, x)
    x[3, 77] = np.nan
    for got in (_cpu.linear(w, x), _cpu.linear(w, x[:4])):
        assert np.isnan(got[3]).all()
        assert np.array_equal(bits(got[:3]), bits(clean[:3]))


@pytest.mark.parametrize("name", TYPES)
def test_decoded_rows(name: str) -> None:
    blocks = rows_of(name, (7,), 1280)
    picked = np.array([3, 0, 6, 3])
    for isa in ISAS:
        _cpu.set_isa(isa)
        got = _cpu.decode_rows(weight(name, blocks), picked)
        assert np.array_equal(got, floats_of(name, blocks)[picked].astype(np.float32))


def test_stacks_and_strides() -> None:
    """A fused stack split by slicing, one expert of it, and NVFP4's scales by expert."""
    stack = rows_of("NVFP4", (3, 2 * 24), 640)
    scale = np.array([0.5, 4.0, -0.25], np.float32)  # powers of two: rounding stays where it was
    x = columns(5, 640)
    for half in (stack[:, :24], stack[:, 24:]):
        w = weight("NVFP4", half, scale)
        assert (w.experts, w.rows, w.cols) == (3, 24, 640)
        for e in range(3):
            got = _cpu.linear(w, x, expert=e)
            plain = _cpu.linear(weight("NVFP4", np.ascontiguousarray(half[e])), x)
            assert np.array_equal(bits(got), bits(plain * scale[e]))


def test_padded_columns() -> None:
    """A weight of 768 columns meets 640 values: the rest count as zeros."""
    w = weight("Q2_K", rows_of("Q2_K", (10,), 768))
    x = columns(18, 640)
    padded = np.concatenate([x, np.zeros((18, 128), np.float32)], 1)
    assert np.array_equal(bits(_cpu.linear(w, x)), bits(_cpu.linear(w, padded)))


def test_many_is_each() -> None:
    names = ("Q8_0", "IQ3_XXS", "F32", "Q4_K", "BF16")
    weights = [weight(name, rows_of(name, (10 + 7 * i,), 1280)) for i, name in enumerate(names)]
    for tokens in (1, 4, 18):
        x = columns(tokens, 1280)
        for w, got in zip(weights, _cpu.linear_many(weights, x), strict=True):
            assert np.array_equal(bits(got), bits(_cpu.linear(w, x)))


def test_refusals() -> None:
    rows = rows_of("Q8_0", (4,), 640)
    with pytest.raises(ValueError, match="whole number of Q8_0"):
        weight("Q8_0", rows[:, :-1])
    with pytest.raises(ValueError, match="block type 999"):
        _cpu.Weight(rows, 999)
    with pytest.raises(ValueError, match="x has 600 columns, the weight has 1280"):
        _cpu.linear(weight("Q8_0", rows_of("Q8_0", (4,), 1280)), columns(1, 600))
    with pytest.raises(ValueError, match="x has 672"):
        _cpu.linear(weight("Q8_0", rows), columns(1, 672))
    with pytest.raises(ValueError, match="expert 1 of 1"):
        _cpu.linear(weight("Q8_0", rows), columns(1, 640), expert=1)
    with pytest.raises(ValueError, match="row 4 of 4"):
        _cpu.decode_rows(weight("Q8_0", rows), np.array([4]))
    with pytest.raises(TypeError):
        weight("Q8_0", rows.astype(np.int32))
