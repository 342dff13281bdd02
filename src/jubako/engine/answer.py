"""One answer being written: it chooses its tokens from logits and knows when it ends."""

from __future__ import annotations

from collections.abc import Sequence

from ..core import GenerationStats, Request, TokenChoice
from ..text.logprobs import with_logprobs
from ..text.rules import TokenRule
from ..text.sampling import Sampler
from .logits import Row, sample


class Answer:
    """The answer to `request` under `rules` (`text.rules.build_rules`). context: tokens that its state holds.

    `finish_reason` is "" while it goes on; then "stop" or "length". `stats` counts its tokens.
    """

    def __init__(self, request: Request, context: int, rules: Sequence[TokenRule] = ()) -> None:
        self.request = request
        self.sampler = Sampler(request.params, request.prompt, request.logit_bias, rules)
        self.left = min(request.max_tokens, context - len(request.prompt) + 1)
        self.position = len(request.prompt)  # of the token that comes next
        self.stats = GenerationStats(prompt_tokens=len(request.prompt), seed=self.sampler.seed)

    @property
    def finish_reason(self) -> str:
        return self.stats.finish_reason

    def choose(self, row: Row) -> TokenChoice | None:
        """The next token; None where the answer is complete without one."""
        token = -1 if self.sampler.finished else sample(self.sampler, row, self.position)
        if token < 0 or token in self.request.stop_ids:
            self.stats.finish_reason = "stop"
            return None
        self.sampler.accept(token)
        self.position += 1
        self.left -= 1
        self.stats.generated_tokens += 1
        if self.left == 0:
            self.stats.finish_reason = "stop" if self.sampler.finished else "length"
        top = self.request.top_logprobs
        return TokenChoice(token) if top is None else with_logprobs(token, row.logits, top)
