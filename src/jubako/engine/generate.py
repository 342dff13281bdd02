"""Generation: one token after another from a session, with what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence

from ..core import GenerationStats, SamplingParams, Token
from ..errors import RequestError
from ..text.sampling import Sampler
from ..text.tokenizer import StreamDecoder, Tokenizer
from .session import Session


class Generation(Iterator[Token]):
    """The tokens of one answer, made as they are asked for. `stats` is complete when the iteration has ended.

    `rest` is text that never became a whole character (it shows as U+FFFD); empty for nearly every answer.
    Ending the iteration early (break, `close`) keeps the session at the tokens really read.
    """

    def __init__(
        self,
        session: Session,
        prompt: Sequence[int],
        params: SamplingParams,
        max_tokens: int,
        stop_ids: Collection[int],
        tokenizer: Tokenizer | None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.rest = ""
        self.stats = GenerationStats(prompt_tokens=len(prompt))
        self._tokens = self._run(session, list(prompt), params, max_tokens, frozenset(stop_ids), tokenizer, progress)

    def __next__(self) -> Token:
        return next(self._tokens)

    def close(self) -> None:
        """Stop; nothing more is computed."""
        self._tokens.close()

    def _run(
        self,
        session: Session,
        prompt: list[int],
        params: SamplingParams,
        max_tokens: int,
        stop_ids: frozenset[int],
        tokenizer: Tokenizer | None,
        progress: Callable[[int], None] | None,
    ) -> Generator[Token, None, GenerationStats]:
        stats = self.stats
        sampler = Sampler(params, prompt)
        decoder = StreamDecoder(tokenizer) if tokenizer else None
        stats.seed = sampler.seed
        started = time.perf_counter()
        stats.cached_tokens = session.keep_prefix_of(prompt)
        logits = session.prefill(prompt[stats.cached_tokens :], progress)
        changes = session.changes
        first = time.perf_counter()
        stats.prefill_seconds = first - started
        stats.finish_reason = "length"
        budget = min(max_tokens, session.context - len(prompt) + 1)
        for step in range(budget):
            id = sampler.sample(logits, session.length)
            if id in stop_ids:
                stats.finish_reason = "stop"
                break
            sampler.accept(id)
            stats.generated_tokens += 1
            stats.decode_seconds = time.perf_counter() - first
            # the vocabulary may name fewer ids than the network has rows
            yield Token(id, decoder.push(id) if decoder and id < decoder.vocab_size else "")
            if step + 1 < budget:
                if session.changes != changes:
                    raise RequestError("the session was used for something else meanwhile; give each answer its own")
                logits = session.decode(id)
                stats.steps += 1
                changes = session.changes
        self.rest = decoder.finish() if decoder else ""
        return stats
