"""The made-up vocabulary is a working tokenizer."""

import pytest

from jubako.measure.vocabulary import SpecialTokens, vocabulary
from jubako.text.template import ChatTemplate
from jubako.text.tokenizer import Tokenizer


@pytest.mark.parametrize("vocab", [300, 1024, 8192, 248_320])
def test_tokens_are_distinct_and_special_ones_where_promised(vocab: int) -> None:
    made = vocabulary(vocab)
    tokens = made["tokenizer.ggml.tokens"]
    assert len(tokens) == vocab == len(set(tokens)) == len(made["tokenizer.ggml.token_type"])
    special = SpecialTokens(vocab)
    assert tokens[special.end_of_text] == "<|endoftext|>" and tokens[special.turn_end] == "<|im_end|>"
    assert tokens[special.image] == "<|image_pad|>"
    known = set()
    parts = iter(made["tokenizer.ggml.merges"])
    for token in tokens[:256]:
        known.add(token)
    for merge in parts:
        left, right = merge.split(" ")
        assert left in known and right in known
        known.add(left + right)


def test_published_ids() -> None:
    tokens = vocabulary(248_320)["tokenizer.ggml.tokens"]
    assert tokens.index("<|im_start|>") == 248045 and tokens.index("<tool_call>") == 248058
    assert tokens.index("<think>") == 248068 and tokens.index("<|audio_pad|>") == 248076


def test_text_survives_and_chat_is_encoded() -> None:
    made = vocabulary(8192)
    tokenizer = Tokenizer.from_metadata(made)
    text = "The quick brown fox — 12 jumps, 日本!\n\n  over"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text and len(ids) < len(text.encode())
    special = SpecialTokens(8192)
    chat = ChatTemplate(made["tokenizer.chat_template"], tokenizer).encode([{"role": "user", "content": "hello"}])
    assert chat[0] == special.end_of_text + 1 and special.turn_end in chat
