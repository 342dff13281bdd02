#!/usr/bin/env python3
"""Jubako beside llama.cpp on the same file in the same run, turn by turn; medians and ratios as markdown.

    PYTHONPATH=src python tools/compare_peer.py LLAMA_BENCH --file model.gguf --depths 0,4096 --rounds 3
    PYTHONPATH=src python tools/compare_peer.py LLAMA_BENCH --types all --rounds 3

With --types a small file of real widths is made for each gate/up block type, measured and deleted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from jubako.measure.geometry import network_config
from jubako.measure.random_blocks import TYPES
from jubako.measure.synth import synth
from jubako.measure.tensor_plan import BlockTypes

PEER_LACKS = ("PQ2_0",)


@dataclass
class Speeds:
    """Tokens/s of all rounds, by depth: prompt reading and decoding."""

    prefill: dict[int, list[float]] = field(default_factory=dict)
    decode: dict[int, list[float]] = field(default_factory=dict)

    def add(self, depth: int, prefill: float, decode: float) -> None:
        self.prefill.setdefault(depth, []).append(prefill)
        self.decode.setdefault(depth, []).append(decode)


@dataclass
class Comparison:
    """Both engines on one file; bandwidth in bytes/s; report: Jubako's last."""

    ours: Speeds = field(default_factory=Speeds)
    peer: Speeds = field(default_factory=Speeds)
    bandwidth: list[float] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    failure: str = ""


def main() -> None:
    options = _options()
    depths = [int(depth) for depth in options.depths.split(",")]
    if options.types:
        _compare_types(options, depths)
        return
    comparison = compare(options, options.file, depths)
    print(f"| {options.file.name} | Jubako | llama.cpp | ratio |\n|---|---|---|---|")
    for depth in depths:
        for what in ("prefill", "decode"):
            print(f"| {what}, depth {depth:,} | {_row(comparison, what, depth)} |")
    report = comparison.report
    share = [rate["bandwidth_share"] for rate in report.get("rates", [])]
    print(
        f"\nRead bandwidth {median(comparison.bandwidth) / 1e9:.1f} GB/s; share of it in the last run "
        f"{', '.join(f'{part:.0%}' for part in share)}; load {report['load_seconds']:.2f} s; "
        f"memory beyond the file {(report['private_bytes'] or 0) / 1e6:.0f} MB; {report['isa']}, "
        f"{report['threads']} threads; medians of {options.rounds} rounds in turn."
    )


def _compare_types(options: argparse.Namespace, depths: Sequence[int]) -> None:
    """One row per gate/up block type."""
    names = [name for name in TYPES if name not in PEER_LACKS] if options.types == "all" else options.types.split(",")
    config = network_config(options.layers, options.experts, 8192, ngram_rows=16_384)
    head = "| gate/up | decode tok/s | llama.cpp | ratio | prefill tok/s | llama.cpp | ratio |"
    print(head + "\n|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        for name in names:
            file = Path(folder) / f"{name}.gguf"
            synth(file, config, BlockTypes.parse(f"gate_up={name},down={options.down}"))
            comparison = compare(options, file, depths[:1])
            decode, prefill = (_row(comparison, what, depths[0]) for what in ("decode", "prefill"))
            print(f"| {name} | {decode} | {prefill} | {comparison.failure}", flush=True)
            file.unlink()


def compare(options: argparse.Namespace, file: Path, depths: Sequence[int]) -> Comparison:
    """Rounds of peer, Jubako, peer, Jubako … A peer that can't load the file leaves its side empty."""
    comparison = Comparison()
    for _ in range(options.rounds):
        if not comparison.failure:
            try:
                for row_depth, prefill, decode in run_peer(options, file, depths):
                    comparison.peer.add(row_depth, prefill, decode)
            except subprocess.CalledProcessError as error:
                comparison.failure = f"llama.cpp fails: {error.returncode}"
        comparison.report = run_jubako(options, file, depths)
        comparison.bandwidth.append(comparison.report["read_bandwidth"])
        for rate in comparison.report["rates"]:
            comparison.ours.add(rate["depth"], rate["prefill"], rate["decode"])
    return comparison


def run_peer(options: argparse.Namespace, file: Path, depths: Sequence[int]) -> list[tuple[int, float, float]]:
    """(depth, prefill, decode) in tokens/s, from one llama-bench process."""
    command = [str(options.peer), "-m", str(file), "-p", str(options.prompt), "-n", str(options.tokens), "-o", "json"]
    command += [
        "-d",
        ",".join(map(str, depths)),
        "-t",
        str(options.threads),
        "-r",
        "1",
        *shlex.split(options.peer_args),
    ]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    speeds = {(row["n_depth"], row["n_prompt"] > 0): float(row["avg_ts"]) for row in rows}
    return [(depth, speeds[depth, True], speeds[depth, False]) for depth in depths]


def run_jubako(options: argparse.Namespace, file: Path, depths: Sequence[int]) -> dict[str, Any]:
    """The report of one `jubako bench` process."""
    command = [sys.executable, "-m", "jubako.cli", "bench", str(file), "--json", "-", "--repeat", "1"]
    command += ["--prompt", str(options.prompt), "--tokens", str(options.tokens), "--threads", str(options.threads)]
    command += ["--depths", ",".join(map(str, depths)), *shlex.split(options.jubako_args)]
    report: dict[str, Any] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return report


def _row(comparison: Comparison, what: str, depth: int) -> str:
    """ "ours | peer | ratio" of one measurement."""
    ours = median(getattr(comparison.ours, what)[depth])
    theirs = getattr(comparison.peer, what).get(depth)
    if not theirs:
        return f"{ours:.1f} | – | –"
    return f"{ours:.1f} | {median(theirs):.1f} | {ours / median(theirs):.2f}×"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", type=Path, help="llama-bench, built for this machine")
    parser.add_argument("--file", type=Path, help="the model to run")
    parser.add_argument("--types", default="", help="instead of a file: gate/up block types A,B,… or all")
    parser.add_argument("--down", default="IQ4_NL", help="block type of the down experts with --types")
    parser.add_argument("--layers", type=int, default=4, help="of the files made with --types")
    parser.add_argument("--experts", type=int, default=32, help="of the files made with --types")
    parser.add_argument("--scratch", type=Path, help="where those files are made (default: the temporary directory)")
    parser.add_argument("--depths", default="0")
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-args", default="", help='more for llama-bench, e.g. "-ctk q8_0 -ctv q8_0 -fa on"')
    parser.add_argument("--jubako-args", default="", help='more for jubako bench, e.g. "--kv-bits 16 --isa avx2"')
    options = parser.parse_args()
    if bool(options.file) == bool(options.types):
        parser.error("give either --file or --types")
    return options


if __name__ == "__main__":
    main()
