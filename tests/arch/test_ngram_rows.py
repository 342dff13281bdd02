"""Row ids of the n-gram table against a plain rereading of the rule, and its constants against the published ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jubako.arch.config import Config, NgramConfig
from jubako.arch.ngram import hash_multipliers, head_table, ngram_row_ids
from jubako.files import open_model

EOS = 1011
PUBLISHED_SIZES = (
    20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
    20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171,
)  # fmt: skip
_config: list[Config] = []


def tiny_config() -> Config:
    if not _config:
        data = Path(__file__).parents[1] / "data" / "tiny"
        _config.append(Config.from_files(open_model(data / "tiny-bf16.gguf")))
    return _config[0]


def rows_of(ngram: NgramConfig, tokens: Sequence[int], place: int) -> list[int]:
    """Row ids of tokens[place], by the letter of the rule, in Python's unbounded integers."""
    context = [tokens[place]]
    cut = False
    for back in range(1, ngram.size):
        cut = cut or place - back < 0 or tokens[place - back] == ngram.eos
        context.append(ngram.eos if cut else tokens[place - back])
    rows = []
    for head in range(ngram.heads):
        mixed = 0
        for token, multiplier in list(zip(context, ngram.multipliers, strict=True))[
            : head // ngram.heads_per_ngram + 2
        ]:
            mixed ^= token * multiplier % 2**64
        rows.append(mixed % ngram.head_sizes[head] + ngram.head_offsets[head])
    return rows


tokens = st.lists(st.sampled_from([0, 1, 7, 500, 1010, EOS, EOS, 1023]), min_size=1, max_size=12)


@given(tokens, st.integers(0, 12))
def test_rows_follow_the_rule_whatever_the_split(line: list[int], split: int) -> None:
    config = tiny_config()
    assert config.ngram is not None
    expected = np.array([rows_of(config.ngram, line, place) for place in range(len(line))])
    assert ngram_row_ids(config, line, []).tolist() == expected.tolist()
    cut = min(split, len(line) - 1)
    assert ngram_row_ids(config, line[cut:], line[:cut]).tolist() == expected[cut:].tolist()


def test_rows_lie_in_the_table() -> None:
    config = tiny_config()
    assert config.ngram is not None
    rows = ngram_row_ids(config, np.arange(1024), [])
    assert rows.dtype == np.int64 and rows.min() >= 0 and rows.max() < config.ngram.rows


def test_published_constants() -> None:
    assert hash_multipliers(248320, 3) == (23703573157769, 20109073645365, 8052911324071)
    sizes, offsets = head_table(20_000_000, 16)
    assert sizes == PUBLISHED_SIZES
    assert offsets == tuple(sum(PUBLISHED_SIZES[:head]) for head in range(16))


def test_stored_constants_follow_the_formula() -> None:
    ngram = tiny_config().ngram
    assert ngram is not None
    assert ngram.multipliers == hash_multipliers(1024, 3)
    assert (ngram.head_sizes, ngram.head_offsets) == head_table(500, 8)


@pytest.mark.parametrize("ordinal", [1, 2])
def test_later_layers_take_later_primes(ordinal: int) -> None:
    sizes, offsets = head_table(500, 4, ordinal)
    assert sizes == head_table(500, 4 * (ordinal + 1))[0][-4:] and offsets[0] == 0
    assert hash_multipliers(1024, 3, ordinal=ordinal) != hash_multipliers(1024, 3)
