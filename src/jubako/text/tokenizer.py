"""Text to token ids and back.

The BPE model itself is the `tokenizers` library. It is given the normal tokens only; control and user-defined tokens
are found here, before the text is cut, and only where the caller asks for it. So plain text can't turn into a special
token.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers

from ..errors import RequestError
from .vocabulary import CONTROL, NORMAL, UNKNOWN, USER_DEFINED, Vocabulary, byte_alphabet

# Where every one of PATTERNS ends a piece, and none looks back: behind a letter without marks, behind a digit.
_CUT = re.compile(r"(?<=[A-Za-zа-яぁ-ん一-龥가-힣])(?=[\x00-@\[-`{-\x7f，。、])|(?<=[0-9])")
_LONG = 1 << 18  # characters encoded at a time, or a few more: the library holds some 200 bytes a token meanwhile
_LONGEST = 1 << 20  # a piece of so many characters, which no language has, is cut anywhere
_TURN_ENDS = ("<|im_end|>", "<|endoftext|>")


class SpecialFinder:
    """Finds special tokens in text: leftmost first, and of those that start together the longest."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = dict(ids)
        lengths: dict[str, set[int]] = {}
        for token in ids:
            lengths.setdefault(token[0], set()).add(len(token))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        self._first = re.compile("[" + re.escape("".join(sorted(lengths))) + "]") if lengths else None

    def find(self, text: str, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, id) of every special token that lies whole within text[start:end]."""
        while self._first is not None and (match := self._first.search(text, start, end)):
            start = match.start()
            for length in self._lengths[match.group()]:
                token_id = self._ids.get(text[start : start + length]) if start + length <= end else None
                if token_id is not None:
                    yield start, start + length, token_id
                    start += length
                    break
            else:
                start += 1


class Tokenizer:
    """A vocabulary ready for use. Threads may share it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokens = vocabulary.tokens
        self._kinds = vocabulary.kinds.tolist()
        self._ids = {token: i for i, token in enumerate(self._tokens)}
        specials = {token: i for token, i in self._ids.items() if self._kinds[i] in (CONTROL, USER_DEFINED)}
        self._finder = SpecialFinder(specials)
        normal = {token: i for token, i in self._ids.items() if self._kinds[i] == NORMAL}
        self._bpe = tokenizers.Tokenizer(models.BPE(normal, vocabulary.merges))
        split = pre_tokenizers.Split(tokenizers.Regex(vocabulary.pattern), "isolated")
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._bpe.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
        self._alphabet = byte_alphabet()
        self._characters = {byte: character for character, byte in self._alphabet.items()}
        self.bos_id = vocabulary.bos_id
        self.special_ids = frozenset(specials.values())
        ends = {self._ids[token] for token in _TURN_ENDS if token in self._ids}
        self.eos_id = vocabulary.eos_id
        self.eos_ids = vocabulary.end_ids | ends | ({self.eos_id} if self.eos_id is not None else set())

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, object]) -> Tokenizer:
        """From the keys `tokenizer.ggml.*` of a GGUF file; raises FileFormatError naming the key."""
        return cls(Vocabulary.from_metadata(metadata))

    @classmethod
    def from_huggingface(cls, directory: Path | str) -> Tokenizer:
        """From the directory of a safetensors checkpoint, which holds `tokenizer.json`."""
        return cls(Vocabulary.from_huggingface(Path(directory)))

    @property
    def vocab_size(self) -> int:
        return len(self._tokens)

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Ids of `text`. Spellings of special tokens become those tokens only when `special` is set."""
        return self.encode_spans(text, [(0, len(text))] if special else [])

    def encode_spans(self, text: str, trusted: Iterable[tuple[int, int]]) -> list[int]:
        """Ids of `text`, in which special tokens may stand only inside the `trusted` spans (start, end), in order.

        All between two special tokens is one piece of plain text, wherever spans begin or end.
        """
        ids: list[int] = []
        done = 0
        for start, end in trusted:
            for first, last, token_id in self._finder.find(text, start, end):
                ids += self._plain(text[done:first])
                ids.append(token_id)
                done = last
        return ids + self._plain(text[done:])

    def _plain(self, text: str) -> list[int]:
        ids: list[int] = []
        start = 0
        while start < len(text):
            longest = min(start + _LONGEST, len(text))
            cut = _CUT.search(text, start + _LONG, longest) if start + _LONG < longest else None
            end = cut.start() if cut else longest
            ids += self._pieces(text[start:end])
            start = end
        return ids

    def _pieces(self, text: str) -> list[int]:
        """Ids of text without special tokens, all at once. Other threads run meanwhile, as they do not in `encode`."""
        try:
            text.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, as JSON may spell it
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        try:
            ids: list[int] = self._bpe.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except BaseException as error:
            # The Rust side panics where its regular expression gives up, as on ten million spaces at once.
            if type(error).__name__ == "PanicException":
                raise RequestError(f"text of {len(text)} characters can't be cut into tokens: {error}") from error
            raise
        return ids

    def decode(self, ids: Iterable[int], special: bool = False) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD. Control tokens are left out unless `special` is set."""
        return b"".join(self.piece(i, special) for i in ids).decode("utf-8", "replace")

    def piece(self, token_id: int, special: bool = False) -> bytes:
        """The bytes that a token adds to decoded text: none for a control token, unless `special` is set."""
        token = self.token_bytes(token_id)
        return b"" if not special and self._kinds[token_id] in (CONTROL, UNKNOWN) else token

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token spells; raises RequestError for an id outside the vocabulary."""
        if not 0 <= token_id < len(self._tokens):
            raise RequestError(f"token id {token_id} is not in the vocabulary; ids are 0 to {len(self._tokens) - 1}")
        text = self._tokens[token_id]
        if self._kinds[token_id] == NORMAL:
            try:
                return bytes(map(self._alphabet.__getitem__, text))
            except KeyError:
                pass
        return text.encode("utf-8", "replace")

    def byte_id(self, byte: int) -> int:
        """The normal token that spells one byte; every vocabulary has all 256."""
        return self._ids[self._characters[byte]]

    def is_normal(self, token_id: int) -> bool:
        """Whether a token is a piece of text, and nothing else."""
        return bool(self._kinds[token_id] == NORMAL)

    def id_of(self, token: str) -> int | None:
        """The id of a token by its spelling in the file, or None."""
        return self._ids.get(token)

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """Spelling -> id of the control and user-defined tokens."""
        return {self._tokens[i]: i for i in sorted(self.special_ids)}


class StreamDecoder:
    """Turns ids into text as they come; the pieces together equal `Tokenizer.decode` of all the ids.

    A character is given out when its last byte is there; U+FFFD when no further byte could make the bytes valid.
    """

    def __init__(self, tokenizer: Tokenizer, special: bool = False) -> None:
        self.vocab_size = tokenizer.vocab_size
        self._tokenizer = tokenizer
        self._special = special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that became complete with this token, often a word, sometimes nothing."""
        return self._utf8.decode(self._tokenizer.piece(token_id, self._special))

    def finish(self) -> str:
        """What an unfinished character leaves behind: U+FFFD, or nothing."""
        return self._utf8.decode(b"", True)
