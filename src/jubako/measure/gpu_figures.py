"""What a benchmark of a GPU engine finds. Times are milliseconds unless they are called seconds; sizes are bytes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from .drafts import DraftRates
from .gpu_profile import KernelTime


@dataclass(frozen=True)
class StepTime:
    """Steps of `sequences` with `width` columns together, each after `depth` tokens.

    milliseconds  median of `runs`, each the mean of several steps replayed without the host
    host          of a step that the host asks for and whose likeliest tokens it gets
    moved         bytes that such a step must move: weights, experts (of a flat routing), state, cache
    share         of the copy bandwidth that this takes
    """

    depth: int
    width: int
    sequences: int
    milliseconds: float
    runs: list[float]
    host: float
    moved: int
    share: float
    stages: dict[str, float] = field(default_factory=dict)
    kernels: list[KernelTime] = field(default_factory=list)


@dataclass(frozen=True)
class PromptTime:
    """A prompt of `tokens` after `depth` tokens."""

    tokens: int
    depth: int
    seconds: float
    tokens_per_second: float


@dataclass(frozen=True)
class SpeculativeTime:
    """Greedy speculative steps of one sequence after `depth` tokens. On random weights hardly a draft is kept, but all
    columns of a step are caught up with, whether they are kept or not.

    milliseconds  from the end of one to that of the next, asked for by the host: catch-up, drafts, verification,
                  likeliest tokens read and chosen
    drafting      of that, the draft layer's on the device
    device        of one replayed without the host
    engine        of one with all that an answer does between steps
    """

    depth: int
    drafts: int
    milliseconds: float
    drafting: float
    device: float
    engine: float
    kernels: list[KernelTime] = field(default_factory=list)


@dataclass(frozen=True)
class AnswerTime:
    """A step of an answer without drafts after `depth` tokens, with all that the engine does between steps. At
    temperature 0 it is greedy."""

    depth: int
    temperature: float
    milliseconds: float


@dataclass(frozen=True)
class ResumeTime:
    """A state after `depth` tokens: taking a checkpoint, and from it to the first token."""

    depth: int
    save: float
    resume: float
    first_token: float


@dataclass(frozen=True)
class DiskTime:
    """A state after `depth` tokens on disk: bytes of its file, seconds until it was written, milliseconds until a new
    store had read it, and until the first token."""

    depth: int
    size: int
    write_seconds: float
    read: float
    first_token: float


@dataclass(frozen=True)
class Memory:
    """Of the card at some moment, beyond weights and state.

    beyond    all that is taken, by torch and the driver (by other programs too, if there are any)
    tensors   of that, in use by tensors
    kept      held by torch for tensors to come, graphs' memory among it
    """

    moment: str
    beyond: int
    tensors: int
    kept: int


@dataclass
class GpuReport:
    """A whole benchmark."""

    device: str
    name: str
    kv_bits: int
    copy_bandwidth: float
    weight_bytes: int
    state_bytes: int
    capture_seconds: float = 0.0
    memory: list[Memory] = field(default_factory=list)
    steps: list[StepTime] = field(default_factory=list)
    prompts: list[PromptTime] = field(default_factory=list)
    prompt_kernels: list[KernelTime] = field(default_factory=list)  # of a chunk
    speculative: list[SpeculativeTime] = field(default_factory=list)
    answers: list[AnswerTime] = field(default_factory=list)
    resumed: list[ResumeTime] = field(default_factory=list)
    disk: list[DiskTime] = field(default_factory=list)
    texts: list[DraftRates] = field(default_factory=list)  # drafts on real text

    def as_json(self) -> dict[str, Any]:
        """Plain dictionaries, lists and numbers."""
        return asdict(self)
