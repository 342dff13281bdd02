"""The plain dataclasses that the parts of Jubako speak to each other.

Who fills which:
  SamplingParams    the caller (library, command line, server); read by text.sampling
  Token             engine.generate, one for each token it yields
  GenerationStats   engine, when the last token is out
  Request           the server or `Model.generate`; read by engine.scheduler
  Reading, Tokens, Finished, Failed
                    engine.scheduler, what a request hears of its answer, in this order
The network's sizes are `arch.config.Config`; stored tensors are `files.tensors.StoredTensor`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral, Real

from .errors import RequestError


def whole(name: str, value: object, low: int | None = None) -> int:
    """An integer of any type, numpy's too, from `low` on. Raises RequestError, which calls it `name`."""
    if not isinstance(value, Integral):
        raise RequestError(f"{name} is {value!r:.50}; it must be an integer")
    number = int(value)
    if low is not None and number < low:
        raise RequestError(f"{name} is {number}; it must be at least {low}")
    return number


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen from the logits.

    temperature 0 is greedy. top_k 0, top_p 1 and min_p 0 switch those filters off. Penalties follow
    the OpenAI definition over the tokens generated so far; repetition_penalty also sees the prompt.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 100.0),
            ("top_k", 0, 2**31),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("repetition_penalty", 0.01, 100.0),
            ("frequency_penalty", -100.0, 100.0),
            ("presence_penalty", -100.0, 100.0),
        ):
            value = getattr(self, name)
            if not isinstance(value, Integral if name == "top_k" else Real):
                raise RequestError(f"{name} is {value!r:.50}; it must be a number")
            if not low <= float(value) <= high:
                raise RequestError(f"{name} is {value}; it must lie between {low} and {high}")
        if self.seed is not None:
            object.__setattr__(self, "seed", whole("seed", self.seed))


class Token(int):
    """One generated token: the id itself, and the text that became complete with it (may be empty)."""

    text: str

    def __new__(cls, id: int, text: str = "") -> Token:
        token = super().__new__(cls, id)
        token.text = text
        return token


@dataclass
class GenerationStats:
    """What one generation did, in tokens and seconds."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    finish_reason: str = ""  # "stop": an end token; "length": max_tokens or the context is used up
    seed: int = 0  # what the sampler drew with; gives the same text again
    steps: int = 0  # passes of the network after the prompt; with drafts one gives several tokens
    draft_seconds: float = 0.0  # the part of decode_seconds that proposing took
    drafted: list[int] = field(default_factory=list)  # drafts verified, by their place in the step
    accepted: list[int] = field(default_factory=list)  # of those accepted

    @property
    def tokens_per_second(self) -> float:
        """Decode speed; the first token belongs to the prompt."""
        steps = self.generated_tokens - 1
        return steps / self.decode_seconds if steps > 0 and self.decode_seconds > 0 else 0.0

    @property
    def tokens_per_step(self) -> float:
        return (self.generated_tokens - 1) / self.steps if self.steps else 0.0

    @property
    def ms_per_step(self) -> float:
        return 1000 * self.decode_seconds / self.steps if self.steps else 0.0


@dataclass(frozen=True)
class Constraint:
    """What the answer must look like; compiled into a token mask by `text.grammar`.

    kind      "json_schema", "json_object", "regex", "grammar" (Lark, as llguidance reads it), or "composed": such
              a list of grammars as `text.answer_form` makes for calls
    source    the schema as JSON text, the expression, the grammar; empty for json_object
    after     token ids after whose first occurrence in the answer the mask begins (the end of thinking); empty: at once
    prefix    bytes of the answer that the prompt already holds, as when a given beginning is continued
    lead      text that comes first in the mask, before what `source` describes: the blank line after thinking
    optional  the answer may end before any of `after` came; otherwise end tokens are barred until then
    """

    kind: str
    source: str = ""
    after: tuple[int, ...] = ()
    prefix: bytes = b""
    lead: str = ""
    optional: bool = False


@dataclass(frozen=True)
class ThinkingBudget:
    """At most `tokens` tokens before one of `ends` (ids); then the ids of `close` are forced, one by one."""

    tokens: int
    ends: tuple[int, ...]
    close: tuple[int, ...]


@dataclass(frozen=True)
class Request:
    """One answer wanted of the engine.

    keep          lengths of the prompt after which its state is worth keeping: system prompt with its tools, each turn
    top_logprobs  None: no log probabilities; n: of the chosen token and of the n likeliest
    drafts        most drafts a step; None: what the engine chooses
    """

    id: str
    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int = 256
    stop_ids: frozenset[int] = frozenset()
    keep: tuple[int, ...] = ()
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None
    constraint: Constraint | None = None
    thinking: ThinkingBudget | None = None
    drafts: int | None = None


@dataclass(frozen=True)
class Reading:
    """Progress of a prompt: `read` of `total` tokens are in, `cached` of them were known."""

    read: int
    total: int
    cached: int


@dataclass(frozen=True)
class TokenChoice:
    """One token of an answer. Log probabilities are of the network's own distribution (temperature 1, no filters)."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Tokens:
    """What one step gave: one token, or several where drafts were accepted."""

    tokens: tuple[TokenChoice, ...]


@dataclass(frozen=True)
class Finished:
    """The answer is complete; stats.finish_reason is "stop", "length" or "cancelled"."""

    stats: GenerationStats


@dataclass(frozen=True)
class Failed:
    """The answer ends in an error. kind: "request" (the caller's fault), or "engine"."""

    kind: str
    message: str


Event = Reading | Tokens | Finished | Failed
