"""Usage, timings and log probabilities in OpenAI's shapes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from ...core import TokenChoice
from ...text.tokenizer import Tokenizer
from ..ask import Progress, Usage

_NEVER = -9999.0  # how OpenAI writes the logarithm of nothing


def usage_body(usages: Mapping[int, Usage], count: int = 1) -> dict[str, Any]:
    """The sums over all choices; `count` in a row answer one prompt, which counts once."""
    prompts = [usages[choice] for choice in range(0, len(usages), count)]
    prompt = sum(usage.prompt for usage in prompts)
    completion = sum(usage.completion for usage in usages.values())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": sum(usage.cached for usage in prompts)},
        "completion_tokens_details": {"reasoning_tokens": sum(usage.reasoning for usage in usages.values())},
    }


def progress_body(progress: Progress, began: float) -> dict[str, Any]:
    """How much of the prompt is read, as llama.cpp tells it; `began` by time.monotonic()."""
    return {
        "total": progress.total,
        "cache": progress.cached,
        "processed": progress.read,
        "time_ms": round(1000 * (time.monotonic() - began), 1),
    }


def timings(usage: Usage) -> dict[str, Any]:
    """The figures of one answer as llama.cpp names them; times in milliseconds."""
    stats = usage.stats
    read = usage.prompt - usage.cached
    return {
        "cache_n": usage.cached,
        "prompt_n": read,
        "prompt_ms": round(1000 * stats.prefill_seconds, 3),
        "prompt_per_second": round(read / stats.prefill_seconds, 3) if stats.prefill_seconds else 0.0,
        "predicted_n": usage.completion,
        "predicted_ms": round(1000 * stats.decode_seconds, 3),
        "predicted_per_second": round(stats.tokens_per_second, 3),
        "draft_n": sum(stats.drafted),
        "draft_n_accepted": sum(stats.accepted),
    }


def token_text(tokenizer: Tokenizer, id: int) -> bytes:
    """The bytes of any id that a network may give, special tokens spelled out."""
    return tokenizer.token_bytes(id) if id < tokenizer.vocab_size else b""


def chat_logprobs(tokenizer: Tokenizer, tokens: Iterable[TokenChoice]) -> list[dict[str, Any]]:
    """The entries of logprobs.content."""

    def entry(id: int, logprob: float | None) -> dict[str, Any]:
        raw = token_text(tokenizer, id)
        return {"token": raw.decode("utf-8", "replace"), "logprob": _finite(logprob), "bytes": list(raw)}

    return [
        {**entry(token.id, token.logprob), "top_logprobs": [entry(*other) for other in token.top]} for token in tokens
    ]


def completion_logprobs(tokenizer: Tokenizer, tokens: Iterable[TokenChoice], offset: int) -> dict[str, Any]:
    """The lists of a completion's logprobs; `offset` is where the first token's text begins."""
    result: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for token in tokens:
        text = token_text(tokenizer, token.id).decode("utf-8", "replace")
        top = {token_text(tokenizer, id).decode("utf-8", "replace"): _finite(value) for id, value in token.top}
        result["tokens"].append(text)
        result["token_logprobs"].append(_finite(token.logprob))
        result["top_logprobs"].append(top)
        result["text_offset"].append(offset)
        offset += len(text)
    return result


def _finite(logprob: float | None) -> float:
    return _NEVER if logprob is None or not logprob > _NEVER else logprob
