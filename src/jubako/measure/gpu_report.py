"""A GPU benchmark as text: tables of steps and prompts, and the kernels of the steps that were profiled."""

from __future__ import annotations

from .drafts import DraftRates
from .gpu_figures import GpuReport
from .gpu_profile import KernelTime

KERNELS = 40  # lines a step's profile shows at most


def markdown(report: GpuReport) -> str:
    """The report as two tables and the kernels of the profiled steps."""
    lines = [
        f"# {report.name} on {report.device}, KV {report.kv_bits} bit",
        "",
        f"copy {report.copy_bandwidth / 1e12:.2f} TB/s · weights {report.weight_bytes / 1e9:.2f} GB · state "
        f"{report.state_bytes / 1e9:.2f} GB · compiled and captured in {report.capture_seconds:.1f} s",
        "",
        "| memory | beyond weights and state, GB | tensors | kept by torch |",
        "|---|---|---|---|",
        *(f"| {m.moment} | {m.beyond / 1e9:.2f} | {m.tensors / 1e9:.2f} | {m.kept / 1e9:.2f} |" for m in report.memory),
        "",
        "| depth | sequences | columns | ms | from the host, ms | GB moved | of copy speed |",
        "|---|---|---|---|---|---|---|",
    ]
    for step in report.steps:
        lines.append(
            f"| {step.depth:,} | {step.sequences} | {step.width} | {step.milliseconds:.3f} | {step.host:.3f} "
            f"| {step.moved / 1e9:.2f} | {step.share:.0%} |"
        )
    lines += ["", "| prompt | after | s | tok/s |", "|---|---|---|---|"]
    for prompt in report.prompts:
        lines.append(
            f"| {prompt.tokens:,} | {prompt.depth:,} | {prompt.seconds:.3f} | {prompt.tokens_per_second:,.0f} |"
        )
    if report.speculative:
        lines += ["", "| depth | drafts | whole step, ms | of that drafting | without the host | in an answer |"]
        lines += ["|---|---|---|---|---|---|"]
        lines += [
            f"| {s.depth:,} | {s.drafts} | {s.milliseconds:.3f} | {s.drafting:.3f} | {s.device:.3f} | {s.engine:.3f} |"
            for s in report.speculative
        ]
    if report.answers:
        lines += ["", "| depth | temperature | step in an answer, ms |", "|---|---|---|"]
        lines += [f"| {a.depth:,} | {a.temperature:g} | {a.milliseconds:.3f} |" for a in report.answers]
    if report.resumed:
        lines += ["", "| tokens | checkpoint, ms | resumed | first token |", "|---|---|---|---|"]
        lines += [f"| {r.depth:,} | {r.save:.1f} | {r.resume:.1f} | {r.first_token:.1f} |" for r in report.resumed]
    if report.disk:
        lines += ["", "| tokens on disk | GB | written, s | read, ms | first token, ms |", "|---|---|---|---|---|"]
        lines += [
            f"| {d.depth:,} | {d.size / 1e9:.2f} | {d.write_seconds:.2f} | {d.read:.0f} | {d.first_token:.0f} |"
            for d in report.disk
        ]
    if report.texts:
        lines += ["", "| text | drafts | ms without | ms a step | of it drafting | tokens a step | speed-up | kept |"]
        lines += ["|---|---|---|---|---|---|---|---|", *map(text_row, report.texts)]
    for step in report.steps:
        if step.kernels:
            lines += ["", f"## {step.width} columns at depth {step.depth:,}", ""]
            lines += [f"- {stage}: {ms:.3f} ms" for stage, ms in step.stages.items()]
            lines += ["", *kernel_rows(step.kernels)]
    for one in report.speculative:
        if one.kernels:
            lines += ["", f"## {one.drafts} drafts alone at depth {one.depth:,}", "", *kernel_rows(one.kernels)]
    if report.prompt_kernels:
        lines += ["", "## A chunk of a prompt", "", *kernel_rows(report.prompt_kernels)]
    return "\n".join(lines) + "\n"


def text_row(rate: DraftRates) -> str:
    """What drafts gained on a kind of text; kept: of the drafts at each place in the step."""
    kept = " ".join(f"{a / d:.2f}" for a, d in zip(rate.accepted, rate.drafted, strict=False))
    return (
        f"| {rate.kind} | {rate.most if rate.fixed else 'as pays'} | {rate.plain_ms:.2f} | {rate.ms:.2f} "
        f"| {rate.draft_ms:.2f} | {rate.tokens_per_step:.2f} | {rate.speed_up:.2f} | {kept} |"
    )


def kernel_rows(kernels: list[KernelTime]) -> list[str]:
    """One line a kernel, slowest first."""
    rows = ["| kernel | stage | launches | µs each | µs |", "|---|---|---|---|---|"]
    for kernel in kernels[:KERNELS]:
        each = kernel.microseconds / max(kernel.launches, 1e-9)
        rows.append(
            f"| {kernel.name[:60]} | {kernel.stage} | {kernel.launches:.0f} | {each:.2f} | {kernel.microseconds:.1f} |"
        )
    return rows
