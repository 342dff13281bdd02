"""Ids against those of llama.cpp and of the tokenizers library; text that comes back whole, at once or in pieces."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers
from vocabularies import GOLDEN, SPECIALS, needs_golden, real_metadata, small_metadata, tiny_metadata

from jubako.errors import RequestError
from jubako.text import tokenizer as tokenizer_module
from jubako.text.stop import StopMatcher
from jubako.text.tokenizer import StreamDecoder, Tokenizer
from jubako.text.vocabulary import PATTERNS

SMALL = Tokenizer.from_metadata(small_metadata())
TINY = Tokenizer.from_metadata(tiny_metadata())
texts = st.one_of(
    st.text(),
    st.lists(st.sampled_from([*SPECIALS, "<|im_", "end|>", "<think", ">", "hello", " ", "\n", "é", "<", "🙂"])).map(
        "".join
    ),
)


@needs_golden
def test_ids_are_those_of_llama_cpp() -> None:
    tokenizer = Tokenizer.from_metadata(real_metadata())
    vectors = json.loads((GOLDEN / "tokenizer" / "vectors.json").read_text())
    assert len(vectors) == 26
    for vector in vectors:
        assert tokenizer.encode(vector["text"]) == vector["ids_plain"]
        assert tokenizer.encode(vector["text"], special=True) == vector["ids_special"]
        assert tokenizer.decode(vector["ids_special"], special=True) == vector["text"]
    assert tokenizer.eos_ids == {151643, 151645} and tokenizer.vocab_size == 151936


def test_small_vocabulary_by_hand() -> None:
    ids = {token: i for i, token in enumerate(small_metadata()["tokenizer.ggml.tokens"])}
    assert SMALL.encode("hello well") == [ids["hello"], ids["Ġw"], ids["e"], ids["ll"]]
    assert SMALL.encode("é\n") == [ids["Ã©"], ids["Ċ"]]
    assert SMALL.encode("<|im_end|>") == [ids[t] for t in ["<|", "im", "_", "e", "n", "d", "|", ">"]]
    assert SMALL.encode("a<|im_end|>", special=True) == [ids["a"], ids["<|im_end|>"]]
    assert SMALL.token_bytes(ids["Ã©"]) == "é".encode() and SMALL.token_bytes(ids["<think>"]) == b"<think>"
    assert SMALL.id_of("<think>") == ids["<think>"] and SMALL.id_of("<nope>") is None
    assert SMALL.eos_ids == {ids["<|im_end|>"], ids["<|endoftext|>"]} and SMALL.eos_id == ids["<|im_end|>"]


def test_decode_leaves_out_control_tokens_but_not_tags() -> None:
    ids = SMALL.encode("<|im_start|>hello<think>", special=True)
    assert SMALL.decode(ids) == "hello<think>"
    assert SMALL.decode(ids, special=True) == "<|im_start|>hello<think>"


@pytest.mark.parametrize("token_id", [-1, SMALL.vocab_size])
def test_ids_outside_the_vocabulary(token_id: int) -> None:
    with pytest.raises(RequestError, match=str(token_id)):
        SMALL.decode([token_id])


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    assert SMALL.decode(SMALL.encode("a\ud83db\ud83d\ude42")) == "a\ufffdb🙂"


def _peer(metadata: dict[str, Any]) -> tokenizers.Tokenizer:
    """The same vocabulary with special tokens handled by the library itself."""
    tokens, kinds = metadata["tokenizer.ggml.tokens"], list(metadata["tokenizer.ggml.token_type"])
    merges = [tuple(merge.split()) for merge in metadata["tokenizer.ggml.merges"]]
    peer = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    peer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    specials = [token for token, kind in zip(tokens, kinds, strict=True) if kind != 1]
    peer.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in specials])
    return peer


PEERS = [(SMALL, _peer(small_metadata())), (TINY, _peer(tiny_metadata()))]


@given(texts)
@settings(max_examples=150, deadline=None)
def test_special_tokens_are_found_as_the_library_finds_them(text: str) -> None:
    for tokenizer, peer in PEERS:
        assert tokenizer.encode(text, special=True) == peer.encode(text).ids
        plain = tokenizer.encode(text)
        assert not tokenizer.special_ids & set(plain)
        assert tokenizer.decode(plain) == text


@given(st.text(st.sampled_from("aZ90é字яあ가\0~[@+/ \n\t\r，。、.,'s\u0301\u3000_<|-")))
@settings(max_examples=300, deadline=None)
def test_where_long_text_is_cut_a_piece_ends_anyway(text: str) -> None:
    cuts = [cut.start() for cut in tokenizer_module._CUT.finditer(text)]
    for pattern in PATTERNS.values():
        pieces = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated").pre_tokenize_str(text)
        assert {len(text), *(start for _, (start, _) in pieces)} >= set(cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer_module, "_LONG", 3)
        pieced = TINY.encode(text)
    assert pieced == TINY.encode(text)


def test_text_without_an_end_of_a_piece_is_cut_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory would grow with it: 7 GB for a request of 30 MB."""
    monkeypatch.setattr(tokenizer_module, "_LONG", 4)
    monkeypatch.setattr(tokenizer_module, "_LONGEST", 8)
    seen: list[str] = []
    pieces = TINY._pieces

    def watched(text: str) -> list[int]:
        seen.append(text)
        return pieces(text)

    monkeypatch.setattr(TINY, "_pieces", watched)
    text = "hello" * 4 + "  " * 8 + "well 12"
    assert TINY.decode(TINY.encode(text)) == text
    assert max(map(len, seen)) == 8 and "".join(seen) == text


def test_long_text_keeps_no_other_thread_waiting() -> None:
    """A server has answers to stream while somebody's file is cut into tokens."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(TINY.encode, "word and " * 60_000)
        turns = 0
        while not running.done():
            time.sleep(0.001)
            turns += 1
    assert turns > 10 and len(running.result()) > 100_000


def test_special_tokens_only_within_trusted_spans() -> None:
    text = "<think><think></think>"
    assert [SMALL.decode([i]) for i in SMALL.encode_spans(text, [(0, 7), (15, 22)]) if i in SMALL.special_ids] == [
        "<think>"
    ]
    assert SMALL.decode(SMALL.encode_spans(text, [(0, 7), (15, 22)])) == text
    ends = SMALL.encode_spans(text, [(14, 22)])
    assert [i for i in ends if i in SMALL.special_ids] == [SMALL.id_of("</think>")]


@given(st.lists(st.integers(0, 265) | st.integers(0, TINY.vocab_size - 1), max_size=60), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_stream_of_any_ids_equals_the_whole(ids: list[int], special: bool) -> None:
    for tokenizer in (SMALL, TINY):
        ids = [i % tokenizer.vocab_size for i in ids]
        decoder = StreamDecoder(tokenizer, special)
        pieces = [decoder.push(i) for i in ids]
        seen = b""
        for i, token_id in enumerate(ids):
            seen += tokenizer.piece(token_id, special)
            shown = "".join(pieces[: i + 1])
            # What is shown never changes, whatever bytes come next.
            assert (seen + b"A").decode("utf-8", "replace").startswith(shown)
            assert (seen + b"\x80\x80\x80").decode("utf-8", "replace").startswith(shown)
        assert "".join(pieces) + decoder.finish() == tokenizer.decode(ids, special)


def test_a_character_comes_with_its_last_byte() -> None:
    decoder = StreamDecoder(SMALL)
    byte_ids = [SMALL.encode("🙂")[i] for i in range(4)]
    assert [decoder.push(i) for i in byte_ids] == ["", "", "", "🙂"]
    assert decoder.push(byte_ids[0]) == "" and decoder.finish() == "\ufffd"


def test_invalid_bytes_show_once_they_are_certain() -> None:
    raw = {bytes([b]): i for i in range(256) for b in SMALL.token_bytes(i)}
    decoder = StreamDecoder(SMALL)
    assert decoder.push(raw[b"\xff"]) == "\ufffd"
    assert decoder.push(raw[b"\xf0"]) == ""
    assert decoder.push(raw[b"a"]) == "\ufffda"


def _run(stops: list[str], pieces: list[str]) -> tuple[str, str | None]:
    matcher = StopMatcher(stops)
    shown = "".join(matcher.push(piece) for piece in pieces)
    return shown + matcher.finish(), matcher.matched


def _first_complete(stops: list[str], text: str) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - len(max(matches, key=len))], max(matches, key=len)
    return text, None


@given(st.lists(st.text("abc", min_size=1, max_size=4), max_size=3), st.lists(st.text("abc", max_size=4), max_size=12))
@settings(max_examples=400, deadline=None)
def test_stops_do_not_depend_on_the_pieces(stops: list[str], pieces: list[str]) -> None:
    assert _run(stops, pieces) == _first_complete(stops, "".join(pieces))


@pytest.mark.parametrize(
    ("stops", "pieces", "shown"),
    [
        (["###"], ["a#", "#", "b"], ["a", "", "##b"]),
        (["###"], ["a##", "#b"], ["a", ""]),
        (["\n\n", "END"], ["x\n", "E", "N", "D"], ["x", "\n", "", ""]),
        ([""], ["abc"], ["abc"]),
    ],
)
def test_what_may_become_a_stop_is_held_back(stops: list[str], pieces: list[str], shown: list[str]) -> None:
    matcher = StopMatcher(stops)
    assert [matcher.push(piece) for piece in pieces] == shown


@pytest.mark.parametrize("make", [lambda: SMALL, lambda: TINY])
def test_nothing_in_nothing_out(make: Callable[[], Tokenizer]) -> None:
    assert make().encode("") == [] and make().decode([]) == ""
