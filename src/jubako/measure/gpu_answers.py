"""How long a GPU's steps take in an answer, with all that the engine does between them."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

from ..core import Request, SamplingParams
from ..engine.answer import Answer
from ..engine.depth import Costs
from ..engine.draft import DraftOptions, Speculation, verify
from ..ops.gpu.sequence import GpuState
from .gpu_figures import AnswerTime

if TYPE_CHECKING:
    from .bench_gpu import GpuBench

WARM = 3  # steps that do not count


def answered(bench: GpuBench, depth: int, repeats: int = 32, **params: Any) -> AnswerTime:
    """Time the steps of an answer without drafts after `depth` tokens; params: how its tokens are chosen."""
    bench.note(f"steps of an answer at depth {depth}, {params or 'greedy'}")
    with bench.states(1, depth) as [state]:
        milliseconds = answer_milliseconds(bench, state, 0, repeats, **params)
    return AnswerTime(depth, SamplingParams(**params).temperature, milliseconds)


def answer_milliseconds(bench: GpuBench, state: GpuState, drafts: int, repeats: int, **params: Any) -> float:
    """The median of an answer's steps of so many drafts each, from where `state` stands."""
    tokens = (drafts + 1) * (repeats + WARM) + 1
    answer = Answer(Request("", (0,), SamplingParams(**params), max_tokens=tokens), state.context)
    text = Speculation(answer, state, [], DraftOptions(drafts, fixed=True))
    text.columns = bench.ids(1)
    costs, times = Costs(), []
    for _ in range(repeats + WARM):
        started = time.perf_counter()
        [rows] = verify(bench.executor, costs, [text])
        text.accept(rows)
        times.append(1000 * (time.perf_counter() - started))
    return median(times[WARM:])
