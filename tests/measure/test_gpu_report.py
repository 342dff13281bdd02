"""The GPU benchmark as text: every figure in its table, and a profile where there is one."""

from __future__ import annotations

import json

from jubako.measure.drafts import DraftRates
from jubako.measure.gpu_figures import (
    AnswerTime,
    DiskTime,
    GpuReport,
    Memory,
    PromptTime,
    ResumeTime,
    SpeculativeTime,
    StepTime,
)
from jubako.measure.gpu_profile import KernelTime, stage_of, stages
from jubako.measure.gpu_report import markdown


def report() -> GpuReport:
    made = GpuReport("Card", "random", 8, 4.0e12, 58 * 10**9, 7 * 10**9, capture_seconds=12.34)
    made.memory.append(Memory("loaded", 1_500_000_000, 250_000_000, 750_000_000))
    kernels = [KernelTime("linear_kernel", "dense products", 90.0, 9), KernelTime("other", "other", 10.0, 1)]
    made.steps.append(StepTime(65536, 4, 1, 5.125, [5.125], 5.25, 10**10, 0.5, stages(kernels), kernels))
    made.prompts.append(PromptTime(4096, 0, 0.25, 16384.0))
    made.speculative.append(SpeculativeTime(0, 3, 5.5, 1.25, 5.4, 5.6, kernels))
    made.answers.append(AnswerTime(0, 0.7, 4.0625))
    made.resumed.append(ResumeTime(65536, 20.0, 10.0, 14.0))
    made.texts.append(DraftRates("code", 3, True, 0.0, 128, 4.0, 6.0, 0.6, 2.5, 1.67, [50, 50, 50], [40, 30, 15]))
    made.disk.append(DiskTime(65536, 1_250_000_000, 0.75, 400.0, 410.0))
    return made


def test_every_figure_has_its_place() -> None:
    text = markdown(report())
    for row in (
        "| loaded | 1.50 | 0.25 | 0.75 |",
        "| 65,536 | 1 | 4 | 5.125 | 5.250 | 10.00 | 50% |",
        "| 4,096 | 0 | 0.250 | 16,384 |",
        "| 0 | 3 | 5.500 | 1.250 | 5.400 | 5.600 |",
        "| 0 | 0.7 | 4.062 |",
        "| 65,536 | 20.0 | 10.0 | 14.0 |",
        "| code | 3 | 4.00 | 6.00 | 0.60 | 2.50 | 1.67 | 0.80 0.60 0.30 |",
        "| 65,536 | 1.25 | 0.75 | 400 | 410 |",
        "| linear_kernel | dense products | 9 | 10.00 | 90.0 |",
        "- dense products: 0.090 ms",
    ):
        assert row in text.splitlines()
    assert "captured in 12.3 s" in text and json.loads(json.dumps(report().as_json()))["name"] == "random"


def test_kernels_belong_to_stages() -> None:
    names = ("_gdn_columns", "_attend", "linear_kernel", "gate_up_kernel", "argmax_kernel", "something")
    assert [stage_of(name) for name in names] == [
        "gdn",
        "attention",
        "dense products",
        "experts",
        "head",
        "other",
    ]
