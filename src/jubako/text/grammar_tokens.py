"""A vocabulary as llguidance sees it: the bytes of each token, and which are never text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast
from weakref import WeakMethod

import llguidance

from .tokenizer import Tokenizer


@dataclass
class _Tokens:
    """What `LLTokenizer` reads of a tokenizer."""

    tokens: list[bytes]
    special_token_ids: list[int]
    eos_token_id: int
    bos_token_id: int | None
    encode: WeakMethod[Callable[[str], list[int]]]  # the table is kept for as long as the tokenizer lives
    is_tokenizer_wrapper: bool = True

    def __call__(self, text: str) -> list[int]:
        encode = self.encode()
        assert encode is not None
        return encode(text)


def grammar_tokens(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    """The tokens of `tokenizer`; all but the normal ones are special. Takes a second and 100 MB at 250,000 tokens."""
    count = tokenizer.vocab_size
    ids = range(count)
    tokens = _Tokens(
        tokens=[tokenizer.token_bytes(id) for id in ids],
        special_token_ids=[id for id in ids if not tokenizer.is_normal(id)],
        eos_token_id=min(tokenizer.eos_ids, default=count - 1),
        bos_token_id=tokenizer.bos_id,
        encode=WeakMethod(tokenizer.encode),
    )
    wrapper = cast(llguidance._tokenizer.TokenizerWrapper, tokens)
    return llguidance.LLTokenizer(wrapper, slices=llguidance.LLTokenizer.json_slices())
