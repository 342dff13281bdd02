#!/usr/bin/env python3
"""Feed damaged model files to the readers: only JubakoError may come out, quickly and in little memory.

    PYTHONPATH=src python tools/fuzz_files.py --minutes 5 [--seed 1] [--corpus tests/data/tiny]

Each mutant is a tiny model with its header (or JSON) damaged and opened as a user would: open_model, load_network,
inspect, and a few tensors decoded. Mutant N of seed S is always the same; failing ones are kept in --keep.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import random
import resource
import shutil
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from jubako.errors import JubakoError
from jubako.files import GgufWriter, ModelFiles, open_model, read_gguf

ROOT = Path(__file__).resolve().parents[1]
INTERESTING = [
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    31,
    32,
    42,
    127,
    128,
    255,
    256,
    65535,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
]
INTERESTING += [1 << 32, 1 << 40, 1 << 60, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, (1 << 64) - 32]
JSON_VALUES: list[object] = [
    None,
    True,
    -1,
    0,
    1,
    1 << 31,
    1 << 63,
    1 << 200,
    0.5,
    1e308,
    "",
    "../x",
    [],
    {},
    [[]],
    [-1],
    ["a"],
    {"a": 1},
]


@dataclass
class Sample:
    """Files that open as one model; `victims` are those whose first `header` bytes get damaged."""

    name: str
    files: dict[str, bytes]  # headers only
    sizes: dict[str, int]  # the files are zeros beyond their header
    given: list[str]
    victims: list[str]


@dataclass
class Report:
    mutants: int = 0
    refused: int = 0
    slowest: float = 0.0
    slowest_mutant: str = ""
    messages: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


def gguf_header(path: Path) -> bytes:
    return path.read_bytes()[: read_gguf(path).data_start]


def samples(corpus: Path, workspace: Path) -> list[Sample]:
    """The tiny files: alone, with the draft layer, as a split set, and a safetensors checkpoint with an index."""
    mixed, draft = corpus / "tiny-mixed.gguf", corpus / "tiny-mtp.gguf"
    trunk = {"a.gguf": gguf_header(mixed)}
    sizes = {"a.gguf": mixed.stat().st_size, "d.gguf": draft.stat().st_size}
    found = [
        Sample("trunk", trunk, sizes, ["a.gguf"], ["a.gguf"]),
        Sample("draft", {**trunk, "d.gguf": gguf_header(draft)}, sizes, ["a.gguf", "d.gguf"], ["a.gguf", "d.gguf"]),
    ]
    parts = split(mixed, workspace)
    headers = {part.name: gguf_header(part) for part in parts}
    part_sizes = {part.name: part.stat().st_size for part in parts}
    found.append(Sample("split", headers, part_sizes, [parts[0].name], [part.name for part in parts]))
    found.append(checkpoint(corpus))
    return found


def split(path: Path, directory: Path) -> list[Path]:
    """A two-part set made from one file, the first part metadata only."""
    whole = read_gguf(path)
    parts = [directory / f"m-{i:05d}-of-00002.gguf" for i in (1, 2)]
    for number, part in enumerate(parts):
        with GgufWriter(part) as writer:
            for key, value in whole.metadata.items() if number == 0 else ():
                writer.add(key, value)
            writer.add("split.no", number, "u16")
            writer.add("split.count", 2, "u16")
            writer.add("split.tensors.count", len(whole.tensors), "i32")
            tensors = list(whole.tensors.values()) if number == 1 else []
            for tensor in tensors:
                writer.declare(tensor.name, tensor.type, tensor.shape)
            for tensor in tensors:
                writer.write(tensor.name, tensor.data)
    return parts


def checkpoint(corpus: Path) -> Sample:
    """The official tiny checkpoint where it lies beside the project, else a small stand-in under real names."""
    golden = ROOT.parent / "shared" / "golden" / "tiny"
    shard = "model-00001-of-00001.safetensors"
    if golden.exists():
        with (golden / "model.safetensors").open("rb") as file:
            head = file.read(8)
            text, config = file.read(int.from_bytes(head, "little")), (golden / "config.json").read_bytes()
        size = (golden / "model.safetensors").stat().st_size
    else:
        names = ["model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.gate.weight"]
        entries = {
            n: {"dtype": "BF16", "shape": [8, 4], "data_offsets": [64 * i, 64 * i + 64]} for i, n in enumerate(names)
        }
        text, config = json.dumps(entries).encode(), b'{"hidden_size": 4, "num_hidden_layers": 1, "vocab_size": 8}'
        head, size = struct.pack("<Q", len(text)), 8 + len(text) + 64 * len(names)
    names = [name for name in json.loads(text) if name != "__metadata__"]
    index = json.dumps({"weight_map": dict.fromkeys(names, shard)}).encode()
    files = {shard: head + text, "config.json": config, "model.safetensors.index.json": index}
    return Sample(
        "safetensors",
        files,
        {shard: size},
        ["."],
        [shard, "config.json", "config.json", "model.safetensors.index.json"],
    )


def mutate(raw: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """One to four kinds of damage, most of them a plausible field with an implausible value."""
    data = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(max(1, len(data)))
        kind = rng.randrange(10)
        if kind == 0:
            data[at : at + 1] = bytes([data[at] ^ (1 << rng.randrange(8))]) if data else b"\0"
        elif kind == 1:
            data[at : at + 1] = bytes([rng.randrange(256)])
        elif kind <= 3:
            size = rng.choice((1, 2, 4, 8))
            data[at : at + size] = (rng.choice(INTERESTING) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        elif kind <= 5:
            damage_value(data, rng)
        elif kind == 6:
            del data[at : at + rng.choice((1, 4, 8, 100))]
        elif kind == 7:
            data[at:at] = rng.randbytes(rng.choice((1, 4, 8, 100)))
        elif kind == 8:
            other = rng.choice(others)
            start = rng.randrange(max(1, len(other)))
            piece = other[start : start + rng.choice((4, 16, 200))]
            data[at : at + len(piece)] = piece
        else:
            swap_records(data, rng)
    return bytes(data)


def damage_value(data: bytearray, rng: random.Random) -> None:
    """Change the value of a metadata key, or the type, a dimension or the offset of a tensor."""
    prefix = rng.choice((b"qwen4exp.", b"general.", b"blk.", b"split.", b"token", b"output"))
    places = (
        [i for i in range(0, len(data), 1) if data.startswith(prefix, i)] if len(data) < 4096 else finds(data, prefix)
    )
    if not places:
        return
    at = rng.choice(places)
    length = int.from_bytes(data[at - 8 : at], "little")
    if length > 200:
        return
    field_at = at + length + rng.choice((0, 4, 4, 4, 8, 12, 20, 24))
    size = rng.choice((1, 4, 4, 8))
    value = rng.choice(INTERESTING) if rng.random() < 0.7 else rng.randrange(64)
    data[field_at : field_at + size] = (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def finds(data: bytearray, what: bytes) -> list[int]:
    places, at = [], data.find(what)
    while at >= 0:
        places.append(at)
        at = data.find(what, at + 1)
    return places


def swap_records(data: bytearray, rng: random.Random) -> None:
    """Rename: copy the name of one record over another of the same length."""
    places = finds(data, rng.choice((b"blk.", b"qwen4exp.")))
    if len(places) < 2:
        return
    first, second = rng.choice(places), rng.choice(places)
    length = min(int.from_bytes(data[p - 8 : p], "little") for p in (first, second))
    if length < 200:
        data[first : first + length] = data[second : second + length]


def mutate_json(raw: bytes, rng: random.Random) -> bytes:
    """Replace, delete or add values anywhere in a JSON document."""
    document = json.loads(raw)
    for _ in range(rng.choice((1, 1, 2, 3))):
        node, key = document, None
        while isinstance(node, (dict, list)) and node:
            parent, key = node, rng.choice(list(node)) if isinstance(node, dict) else rng.randrange(len(node))
            node = parent[key]
            if rng.random() < 0.3:
                break
        if key is None:
            break
        if rng.random() < 0.2:
            del parent[key]
        else:
            parent[key] = copy.deepcopy(rng.choice(JSON_VALUES))
    return json.dumps(document).encode()


def mutants(found: list[Sample], seed: int) -> Iterator[tuple[str, Sample, dict[str, bytes], int]]:
    """Without end: name, sample, its files with damage, and by how much the damaged file grew or shrank."""
    everything = [raw for sample in found for raw in sample.files.values()]
    number = 0
    while True:
        rng = random.Random(f"{seed}/{number}")
        sample = rng.choice(found)
        victim = rng.choice(sample.victims)
        raw, files, cut = sample.files[victim], dict(sample.files), 0
        if victim.endswith(".json") and rng.random() < 0.8:
            files[victim] = mutate_json(raw, rng)
        elif victim.endswith(".safetensors") and rng.random() < 0.6:
            text = mutate_json(raw[8:], rng)
            files[victim] = struct.pack("<Q", len(text)) + text
        else:
            files[victim] = mutate(raw, rng, everything)
        if rng.random() < 0.1:
            cut = rng.choice((1, 32, 1000, 1 << 20, 1 << 40))
        yield f"{seed}/{number} ({sample.name}, {victim})", sample, files, cut
        number += 1


def place(directory: Path, sample: Sample, files: dict[str, bytes], cut: int) -> list[Path]:
    """Write a mutant; what lies beyond a header is zeros that take no room."""
    for name, raw in files.items():
        path = directory / name
        path.write_bytes(raw)
        if name in sample.sizes:
            grown = len(raw) - len(sample.files[name])
            os.truncate(path, max(0, sample.sizes[name] + grown - cut))
    return [directory / name for name in sample.given]


def use(paths: list[Path]) -> ModelFiles:
    """What a user does with a file before it runs."""
    from jubako.arch.weights import load_network
    from jubako.cli.inspect import inspect

    stdout, sys.stdout = sys.stdout, io.StringIO()
    try:
        files = open_model(paths)
        inspect(paths, json=True)
        for tensor in list(files.tensors.values())[::16]:
            if tensor.nbytes < 1 << 16:
                tensor.float32()
        load_network(files)
    finally:
        sys.stdout = stdout
    return files


def fuzz(found: list[Sample], seed: int, workspace: Path, keep: Path | None = None) -> Iterator[Report]:
    """Try mutants without end, yielding the running report after each."""
    report = Report()
    for sample in found:
        with contextlib.suppress(JubakoError):  # undamaged: the imports are then no mutant's time
            use(place(workspace, sample, sample.files, 0))
    for name, sample, files, cut in mutants(found, seed):
        directory = workspace / "mutant"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        paths = place(directory, sample, files, cut)
        started = time.process_time()
        try:
            use(paths)
        except JubakoError as error:
            report.refused += 1
            report.messages[" ".join(str(error).split(": ", 1)[-1].split()[:3])] += 1
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                return
            report.failures.append(f"{name}\n{traceback.format_exc(limit=-6)}")
            if keep is not None:
                shutil.copytree(directory, keep / name.split(" ")[0].replace("/", "-"), dirs_exist_ok=True)
        seconds = time.process_time() - started
        if seconds > report.slowest:
            report.slowest, report.slowest_mutant = seconds, name
        report.mutants += 1
        yield report


def peak_memory() -> int:
    """Bytes of the largest resident set of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    import logging

    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, default=ROOT / "tests" / "data" / "tiny")
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "jubako-fuzz")
    options = parser.parse_args()
    os.nice(19)
    logging.disable(logging.CRITICAL)
    console = Console(stderr=True)
    shared_memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None) as name:
        found = samples(options.corpus, Path(name))
        before, end, report = 0, time.monotonic() + 60 * options.minutes, Report()
        columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
        with Progress(*columns, console=console) as progress:
            task = progress.add_task("", total=60 * options.minutes)
            for report in fuzz(found, options.seed, Path(name), options.keep):
                if report.mutants == 50:
                    before = peak_memory()
                if report.mutants % 20 == 0:
                    text = (
                        f"{report.mutants:,} mutants, {len(report.failures)} failures, slowest {report.slowest:.2f} s"
                    )
                    left = max(0.0, end - time.monotonic())
                    progress.update(task, completed=60 * options.minutes - left, description=text)
                if time.monotonic() > end or len(report.failures) >= 20:
                    break
    for failure in report.failures:
        console.print(failure, markup=False, highlight=False)
    print(
        f"seed {options.seed}: {report.mutants:,} mutants, {report.refused:,} refused with a message "
        f"({len(report.messages):,} different), {report.mutants - report.refused - len(report.failures):,} accepted, "
        f"{len(report.failures)} failures; slowest {report.slowest:.3f} s of CPU time {report.slowest_mutant}; "
        f"peak memory {peak_memory() / 2**20:.0f} MiB, {(peak_memory() - before) / 2**20:.0f} MiB above the start"
    )
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
