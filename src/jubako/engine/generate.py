"""Generation: the tokens of one answer from a session, step by step, with what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence

from ..core import GenerationStats, Request, Token, TokenChoice
from ..errors import RequestError
from ..text.rules import TokenRule
from ..text.tokenizer import StreamDecoder, Tokenizer
from .answer import Answer
from .depth import Costs
from .draft import DraftOptions, Speculation, verify
from .logits import Logits
from .session import Session


class Generation(Iterator[Token]):
    """The tokens of one answer, made as they are asked for. `stats` is complete when the iteration has ended.

    `rest` is text that never became a whole character (it shows as U+FFFD); empty for nearly every answer. `choices`
    holds each token with its log probabilities, where the request wants them.
    Ending the iteration early (break, `close`) keeps the session at the tokens really read.
    """

    def __init__(
        self,
        session: Session,
        request: Request,
        rules: Sequence[TokenRule],
        options: DraftOptions,
        costs: Costs,
        tokenizer: Tokenizer | None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.rest = ""
        self.choices: list[TokenChoice] = []
        self._session, self._options, self._costs, self._progress = session, options, costs, progress
        self._answer = Answer(request, session.context, rules)
        self._decoder = StreamDecoder(tokenizer) if tokenizer else None
        self._tokens = self._run()

    @property
    def stats(self) -> GenerationStats:
        return self._answer.stats

    def __next__(self) -> Token:
        return next(self._tokens)

    def close(self) -> None:
        """Stop; nothing more is computed."""
        self._tokens.close()

    def _run(self) -> Generator[Token, None, None]:
        session, answer, stats = self._session, self._answer, self.stats
        prompt = answer.request.prompt
        started = time.perf_counter()
        stats.cached_tokens = session.keep_prefix_of(prompt)
        logits = session.prefill(prompt[stats.cached_tokens :], self._progress)
        first = time.perf_counter()
        stats.prefill_seconds = first - started
        run = Speculation(answer, session.state, prompt, self._options, session.keep)
        choices = run.accept(Logits.of(logits[None]))
        while True:
            changes = session.changes
            for taken, choice in enumerate(choices, 1):
                stats.decode_seconds = time.perf_counter() - first
                self.choices.append(choice)
                try:
                    yield self._token(choice.id)
                except GeneratorExit:
                    if stats.steps and session.changes == changes:
                        session.keep(taken)
                    raise
            if answer.finish_reason:
                break
            if session.changes != changes:
                raise RequestError("the session was used for something else meanwhile; give each answer its own")
            with session.stepping(run.columns):
                [rows] = verify(session.executor, self._costs, [run])
            choices = run.accept(rows)
        self.rest = self._decoder.finish() if self._decoder else ""

    def _token(self, id: int) -> Token:
        # the vocabulary may name fewer ids than the network has rows
        named = self._decoder is not None and id < self._decoder.vocab_size
        return Token(id, self._decoder.push(id) if self._decoder and named else "")
