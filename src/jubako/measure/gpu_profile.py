"""Where a GPU step's time goes: kernels by name, and the stages they belong to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

# The stage of a kernel, by how its name begins (those with an underscore) or by a part of it; the first that fits.
STAGES = {
    "gdn": ("_gdn_columns", "_settle", "_mix_channels", "_solve_chunks", "_run_chunks", "_gate_answers"),
    "attention": (
        "_prepare",
        "_score_",
        "_select",
        "_attend",
        "attend_bytes",
        "_merge",
        "_keep_ring",
        "_mark",
        "_locate",
        "_choose",
    ),
    "n-gram": ("_rows", "_gate", "_smooth"),
    "hyper-connections": (
        "square_kernel",
        "gate_kernel",
        "gates_kernel",
        "long_kernel",
        "long_part_kernel",
        "combine_kernel",
        "mix_kernel",
        "settle_kernel",
        "low_kernel",
    ),
    "experts": ("gate_up", "down_", "sum_kernel", "weighted"),
    "routing": ("route_kernel", "router_kernel", "rank_kernel", "order_kernel", "sort", "Sort", "scan", "searchsorted"),
    "dense products": (
        "linear_kernel",
        "tile_kernel",
        "tiles_kernel",
        "quantize_kernel",
        "decode_kernel",
        "gemm",
        "cutlass",
        "nvjet",
    ),
    "drafts": ("_take", "_follow", "_note", "_last_rows", "_move", "join_kernel", "norm_kernel"),
    "head": ("argmax_kernel", "best_kernel", "_of_piece", "_of_all", "_advance"),
}


@dataclass(frozen=True)
class KernelTime:
    """One kernel's share of a step: microseconds and launches."""

    name: str
    stage: str
    microseconds: float
    launches: float


def stage_of(name: str) -> str:
    """The stage that a kernel's name belongs to."""
    for stage, parts in STAGES.items():
        if any(name.startswith(part) if part[0] == "_" else part in name for part in parts):
            return stage
    return "other"


def kernel_times(work: Callable[[], None], repeats: int, trace: Path | None = None) -> list[KernelTime]:
    """Kernels of one call of `work`, slowest first, the mean of `repeats`. trace: a file that a browser opens."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
        for _ in range(repeats):
            work()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in recorded.events():
        if "CUDA" in str(event.device_type):
            times[event.name].append(float(event.time_range.elapsed_us()))
    if trace is not None:
        recorded.export_chrome_trace(str(trace))
    found = [KernelTime(name, stage_of(name), sum(t) / repeats, len(t) / repeats) for name, t in times.items()]
    return sorted(found, key=lambda kernel: -kernel.microseconds)


def stages(kernels: list[KernelTime]) -> dict[str, float]:
    """Milliseconds of each stage, largest first."""
    sums: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        sums[kernel.stage] += kernel.microseconds / 1000
    return dict(sorted(sums.items(), key=lambda item: -item[1]))
