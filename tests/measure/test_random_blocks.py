"""Random blocks decode to weights of the wanted spread, whatever their type."""

import numpy as np
import pytest

from jubako.measure.random_blocks import TYPES, generator_for, random_blocks
from jubako.quant import BY_NAME, block_type, decode


def test_every_quantised_type_can_be_made() -> None:
    assert set(TYPES) == {name for name in BY_NAME if name not in ("I8", "I16", "I32", "I64", "F64")}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("deviation", [0.02, 1.0])
def test_spread_and_mean(name: str, deviation: float) -> None:
    kind = block_type(name)
    count = (1 << 18) // kind.weights
    blocks = random_blocks(kind, count, deviation, generator_for(3, name))
    assert blocks.shape == (count, kind.bytes) and blocks.dtype == np.uint8
    weights = decode(kind, blocks)
    assert np.isfinite(weights).all()
    assert weights.std() == pytest.approx(deviation, rel=0.03)
    assert abs(weights.mean()) < 0.02 * deviation
    assert abs(weights).max() < 6 * deviation


@pytest.mark.parametrize("name", ["Q4_K", "IQ3_XXS", "NVFP4"])
def test_blocks_differ(name: str) -> None:
    blocks = random_blocks(block_type(name), 1000, 0.02, generator_for(3, name))
    assert len(np.unique(blocks, axis=0)) == 1000


def test_parts_are_independent_of_each_other() -> None:
    kind = block_type("Q8_0")
    first, again, other = (random_blocks(kind, 10, 1.0, generator_for(1, "a", part)) for part in (0, 0, 1))
    assert (first == again).all() and not (first == other).all()
