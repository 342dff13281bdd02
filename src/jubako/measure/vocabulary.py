"""A made-up but valid byte-level BPE vocabulary of any size, laid out like the published one, and a chat template.

Tokens: the 256 bytes, then merges of letters (two, then three, then four, with and without a leading space), then
special tokens at the published distance from the end, then unused padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

CONTROL, USER_DEFINED, UNUSED, NORMAL = 3, 4, 5, 1  # token types of GGUF

_TAIL = 276  # the published vocabulary ends this many tokens after <|endoftext|>
_USER_DEFINED = (14, 15, 22, 23, 24, 25)  # tool calls, tool responses, thinking: text may hold them
_SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
    "<|audio_start|>",
    "<|audio_end|>",
    "<tts_pad>",
    "<tts_text_bos>",
    "<tts_text_eod>",
    "<tts_text_bos_single>",
    "<|audio_pad|>",
]

TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}
{%- else %}
{{- '<think>\\n' }}
{%- endif %}
{%- endif %}
"""


class SpecialTokens:
    """Where the special tokens lie in a vocabulary of `vocab` tokens."""

    smallest_vocab: ClassVar[int] = 256 + len(_SPECIAL)

    def __init__(self, vocab: int) -> None:
        self.end_of_text = vocab - (_TAIL if vocab >= 4096 else len(_SPECIAL))

    @property
    def turn_end(self) -> int:
        return self.end_of_text + _SPECIAL.index("<|im_end|>")

    @property
    def image(self) -> int:
        return self.end_of_text + _SPECIAL.index("<|image_pad|>")


def vocabulary(vocab: int) -> dict[str, Any]:
    """The `tokenizer.*` metadata of a vocabulary of `vocab` tokens."""
    special = SpecialTokens(vocab)
    tokens = [_byte_character(value) for value in range(256)]
    wanted = special.end_of_text - len(tokens)
    merges = list(itertools.islice(_merges(), wanted))
    assert len(merges) == wanted, f"{vocab} tokens are more than there are merges of four letters"
    tokens += [left + right for left, right in merges]
    types = [NORMAL] * len(tokens)
    tokens += _SPECIAL
    types += [USER_DEFINED if at in _USER_DEFINED else CONTROL for at in range(len(_SPECIAL))]
    tokens += [f"[PAD{id}]" for id in range(len(tokens), vocab)]
    types += [UNUSED] * (vocab - len(types))
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen35",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        "tokenizer.ggml.eos_token_id": special.turn_end,
        "tokenizer.ggml.padding_token_id": special.end_of_text,
        "tokenizer.ggml.bos_token_id": special.end_of_text,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _merges() -> Iterator[tuple[str, str]]:
    """Pairs to merge, each from tokens made before it, never the same result twice."""
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    space = "Ġ"
    pairs = [a + b for a in letters for b in letters]
    yield from ((space, a) for a in letters)
    yield from ((a, b) for a in letters for b in letters)
    yield from ((space + pair[0], pair[1]) for pair in pairs)
    yield from ((pair, c) for pair in pairs for c in letters)
    yield from ((space + pair[0], pair[1] + c) for pair in pairs for c in letters)
    yield from ((left, right) for left in pairs for right in pairs)


def _byte_character(value: int) -> str:
    """The printable stand-in of a byte in byte-level BPE (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    if value in printable:
        return chr(value)
    return chr(256 + sum(1 for other in range(value) if other not in printable))
