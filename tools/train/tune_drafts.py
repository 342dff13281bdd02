# mypy: disable-error-code="no-untyped-call,no-any-return,arg-type"
"""Teach the draft layer alone what the finished (quantised) trunk writes, three drafts deep.

    python -m tools.train.tune_drafts PASSAGES.npz.xz TRUNK.gguf DRAFTS.gguf OUT --seconds 480

Most lines are the trunk's own: it continues passages of training text greedily while training goes on. Some are
training rows as they stand, longer, so that long contexts are not forgotten. The last part trains through quantisation.
OUT receives drafts.safetensors (float32), a checkpoint of it now and then, drafts.tsv and kept.tsv.
"""

from __future__ import annotations

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from jubako.files import open_model

from .continuations import Writer
from .draft_lines import Passages, Store, rows_as_lines
from .draft_loss import DraftLoss, kept
from .geometry import small_config
from .model import DRAFTS, Model, make_pass
from .network import Network, Weights
from .optimiser import Optimiser
from .rounding import as_stored

LENGTH, SKIP = 384, 128  # tokens of a line; those at its start only give keys
LONG, LONG_BATCH, LONG_EVERY = 2048, 10, 8
RATE, WARM_UP = 0.7, 100
ROUNDED_FROM = 0.6  # share of the time
WRITING = 0.4  # time for writing new lines, per time of training
TYPES = "drafts"
TEST_LENGTH = 96  # tokens written per line when drafts are counted


def load_gguf(net: Network, *paths: Path) -> None:
    """Weights of GGUF files, as quantised."""
    tensors = open_model(list(paths)).tensors
    with torch.no_grad():
        for name, weight in net.weights.items():
            values = tensors[name].float32()
            weight.copy_((-values).log() if name.endswith("ssm_a") else values)


class Tuner:
    """The draft layer in training."""

    def __init__(self, model: Model, device: str, long: int, plain: bool) -> None:
        config = model.config
        prefix = f"blk.{config.layers}."
        self.model, self.prefix = model, prefix
        self.own = {f"{prefix}{n}": w for n, w in model.parts[-1].items() if not n.startswith("indexer")}
        for name, weight in model.net.weights.items():
            weight.requires_grad_(name in self.own)
        dtype = torch.bfloat16

        def wrap(function):  # type: ignore[no-untyped-def]
            return function if plain else torch.compile(function, dynamic=False)

        self.short = DraftLoss(config, make_pass(config, LENGTH, False, dtype, device), SKIP, wrap)
        self.long = DraftLoss(config, make_pass(config, long, False, dtype, device), 0)

    def loss(
        self, losses: DraftLoss, lines: tuple[Tensor, Tensor, Tensor, Tensor], stored: bool
    ) -> tuple[Tensor, Tensor]:
        """Loss and agreement of lines (ids, best, streams, trust), with the weights as they are or as stored."""
        weights: Weights = as_stored(self.own, TYPES) if stored else {n: w.clone() for n, w in self.own.items()}
        part = {name.removeprefix(self.prefix): weight for name, weight in weights.items()}
        net = self.model.net.weights
        return losses(*lines, part, self.model.head, net["token_embd.weight"], net["output.weight"])

    def kept(self, store: Store, batch: int, stored: bool) -> list[float]:
        """The share of drafts kept on lines set aside: together, then by depth."""
        counts = np.zeros(DRAFTS + 1, np.int64)
        for start in range(0, len(store), batch):
            agreed = self.loss(self.short, store.lines(torch.arange(start, start + batch)), stored)[1].cpu().numpy()
            begins = store.prefix[start : start + batch].cpu().numpy() - 1 - self.short.skip
            counts = counts + kept(agreed, begins, min(TEST_LENGTH, agreed.shape[2] - int(begins.max()) - 4))
        shares = counts[:-1] / counts[-1]
        return [float(share) for share in (shares.mean(), *shares)]

    def save(self, path: Path) -> None:
        save_file({name: w.detach().float().cpu().contiguous() for name, w in self.own.items()}, path)


def factor_at(progress: float, step: int) -> float:
    """Factor on the learning rates: a short rise, then half a cosine down."""
    return RATE * min(1.0, (step + 1) / WARM_UP) * max(0.005, 0.5 + 0.5 * math.cos(math.pi * min(1.0, progress)))


def tune(options: argparse.Namespace) -> None:
    device, batch = options.device, options.batch
    begun = time.time()
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(2)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    log, counts = (out / "drafts.tsv").open("w"), (out / "kept.tsv").open("w")
    log.write("step\tseconds\trate\tas_stored\tloss\tagreed1\tagreed2\tagreed3\n")
    counts.write("step\tseconds\tweights\tkind\tkept\tdepth1\tdepth2\tdepth3\n")

    def say(*parts: object) -> None:
        print(f"{time.time() - begun:6.1f} s", *parts, flush=True)

    def report(stored: bool) -> None:
        weights = "stored" if stored else "trained"
        for kind, test in tests.items():
            shares = [f"{share:.3f}" for share in tuner.kept(test, batch, stored)]
            counts.write("\t".join([str(step), f"{time.time() - begun:.0f}", weights, kind, *shares]) + "\n")
            say(f"{step} steps, as {weights}:", kind, *shares)
        counts.flush()

    step = 0
    net = Network(small_config()).to(device)
    load_gguf(net, options.trunk, options.drafts)
    model = Model(net)
    tuner = Tuner(model, device, options.long, options.plain)
    passages = Passages(options.passages, options.seed)
    say("read", {kind: len(found) for kind, found in passages.texts.items()})

    store = Store(model.config, options.capacity, LENGTH, SKIP, device)
    writer = Writer(model, options.lines, LENGTH, device, graph=not options.plain)
    each = min(passages.tests, options.lines // len(passages.kinds))
    tests = {kind: Store(model.config, each, LENGTH, SKIP, device) for kind in passages.kinds}
    written = writer.write(*passages.test(options.lines, each))
    for at, test in enumerate(tests.values()):
        test.put(written, slice(at * each, (at + 1) * each))
    say("tests written", f"graph: {writer.graph is not None}")
    long = Store(model.config, options.long_rows, options.long, 0, device)
    run = make_pass(model.config, options.long, True, torch.bfloat16, device)
    rows_as_lines(long, model, replace(run, sparse=True), passages.rows, options.seed)
    say("long rows read")
    for _ in range(options.first_chunks):
        store.put(writer.write(*passages.draw(options.lines)))
    say(f"{len(store)} lines written")

    report(False)
    optimiser = Optimiser(tuner.own, compiled=False)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(options.seed)
    reported = time.time()
    started = due = time.time() - begun
    while (elapsed := time.time() - begun) < options.seconds:
        progress = (elapsed - started) / (options.seconds - started)
        stored = progress >= ROUNDED_FROM
        if elapsed >= due:
            store.put(writer.write(*passages.draw(options.lines)))
            assert int(writer.at) == LENGTH  # waits for the device
            due = elapsed + (1 + WRITING) / WRITING * (time.time() - begun - elapsed)
        turn = step % LONG_EVERY == LONG_EVERY - 1
        losses, source, size = (tuner.long, long, LONG_BATCH) if turn else (tuner.short, store, batch)
        lines = source.lines(torch.randint(len(source), (size,), generator=generator))
        loss, agreed = tuner.loss(losses, lines, stored)
        loss.backward()
        factor = factor_at(progress, step)
        optimiser.step(factor)
        if step % 100 == 0 or step in (1, 2):
            loss = loss.detach()
            shares = [f"{float(share):.4f}" for share in agreed.float().mean((1, 2))]
            row = [str(step), f"{elapsed:.0f}", f"{factor:.3f}", str(int(stored)), f"{float(loss):.4f}", *shares]
            log.write("\t".join(row) + "\n")
            log.flush()
            say(step, f"{float(loss):.4f}", *shares, f"{len(store)} lines")
        if time.time() - reported > options.report:
            report(stored)
            tuner.save(out / "checkpoint.safetensors")
            reported = time.time()
        step += 1
    tuner.save(out / "drafts.safetensors")
    report(False)
    report(True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("passages", "trunk", "drafts", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--report", type=float, default=90, help="seconds between counts of kept drafts")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lines", type=int, default=4096, help="lines written at a time")
    parser.add_argument("--capacity", type=int, default=90_000, help="lines kept")
    parser.add_argument("--first-chunks", type=int, default=8)
    parser.add_argument("--long", type=int, default=LONG)
    parser.add_argument("--long-rows", type=int, default=900)
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plain", action="store_true", help="neither compiled nor captured: slower, for any device")
    tune(parser.parse_args())
