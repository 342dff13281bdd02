# mypy: disable-error-code="no-untyped-call,no-any-return,arg-type"
"""Train the small model on one GPU for a given time; checkpoints, resumes, and measures itself on held-out data.

    python -m tools.train.train DATA OUT --seconds 1000 [--resume]

The schedule follows the clock: warm-up, constant, then down to zero over the last part; block choice turns sparse at
SPARSE_FROM. OUT receives state.pt (float32, to resume), weights-N.safetensors (bfloat16, below 16 MB each), log.tsv.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from .geometry import small_config
from .model import Losses, Model, make_pass
from .network import Network, Pass
from .optimiser import Optimiser
from .prepare import CONTEXT, KINDS, ROW

SHARES = {"prose": 0.21, "code": 0.19, "docs": 0.16, "dialogues": 0.44}
CONTEXT_WEIGHT = 0.1  # of what the model does not write itself, in dialogues
SPARSE_FROM, COOL_FROM = 0.55, 0.6  # shares of the time
WARM_UP = 100  # steps
PIECE = 15_000_000  # bytes of a file of weights
DRAFT_WEIGHT, BALANCE_WEIGHT, INDEX_WEIGHT = 0.25, 0.02, 1.0


class Data:
    """Rows [B, ROW] of ids and loss weights, drawn from token arrays on the device."""

    def __init__(self, folder: Path, device: str, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.texts = {kind: self._load(folder / f"{kind}.npy", device) for kind in KINDS}
        self.rows = self._load(folder / "dialogues.npy", device)
        self.order: Iterator[int] = iter(())
        self.device = device

    @staticmethod
    def _load(path: Path, device: str) -> Tensor:
        return torch.from_numpy(np.load(path).astype(np.int32)).to(device)

    def _next_row(self) -> int:
        row: int | None = next(self.order, None)
        if row is None:
            self.order = iter(self.random.permutation(len(self.rows)).tolist())
            row = next(self.order)
        return row

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        names = self.random.choice(list(SHARES), size, p=list(SHARES.values()))
        rows = []
        for name in names:
            if name == "dialogues":
                rows.append(self.rows[self._next_row()])
            else:
                start = int(self.random.integers(len(self.texts[name]) - ROW))
                rows.append(self.texts[name][start : start + ROW])
        return unpack(torch.stack(rows))


def unpack(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Ids and loss weights of marked ids."""
    marked = (rows & CONTEXT) > 0
    return (rows & (CONTEXT - 1)).long(), torch.where(marked, CONTEXT_WEIGHT, 1.0)


def factor_at(progress: float, step: int) -> float:
    """Factor on the learning rates."""
    cooled = 1.0 if progress < COOL_FROM else max(0.0, (1 - progress) / (1 - COOL_FROM))
    return min(1.0, (step + 1) / WARM_UP) * max(cooled, 0.01)


def save(out: Path, net: Network, steps: int, elapsed: float) -> None:
    """State to resume from, and the weights in bfloat16 in pieces that fit what may come back."""
    torch.save(
        {"weights": {k: v.detach() for k, v in net.weights.items()}, "steps": steps, "elapsed": elapsed},
        out / "state.pt",
    )
    pieces: list[dict[str, Tensor]] = [{}]
    for name, weight in net.weights.items():
        if sum(t.nbytes for t in pieces[-1].values()) + 2 * weight.numel() > PIECE:
            pieces.append({})
        pieces[-1][name] = weight.detach().bfloat16().cpu()
    for number, piece in enumerate(pieces):
        save_file(piece, out / f"weights-{number}.safetensors")


@torch.no_grad()
def held_out(model: Model, folder: Path, run: Pass, device: str) -> str:
    """Loss in nats per token on text; share of right tokens on the tasks."""
    parts = []
    for path in sorted(folder.glob("*.held.npy")):
        tokens = np.load(path)
        kind = path.name.split(".")[0]
        rows = tokens if tokens.ndim == 2 else tokens[: len(tokens) // ROW * ROW].reshape(-1, ROW)[:8]
        marked = torch.from_numpy(rows.astype(np.int32)).to(device)
        ids, weights = unpack(marked)
        weights = (weights == 1.0).float()
        streams, _ = model.streams(ids[:, :-1], run)
        hits, nats = 0.0, 0.0
        for row in range(len(ids)):
            scores = model_logits(model, streams[row : row + 1])[0].float()
            mask, target = weights[row, 1:], ids[row, 1:]
            hits += float(((scores.argmax(-1) == target) * mask).sum())
            nats += float((torch.nn.functional.cross_entropy(scores, target, reduction="none") * mask).sum())
        total = float(weights[:, 1:].sum())
        parts.append(f"{kind} {nats / total:.3f} {hits / total:.4f}")
    return " | ".join(parts)


def model_logits(model: Model, streams: Tensor) -> Tensor:
    from .network import logits

    return logits(streams, model.head, "", model.net.weights["output.weight"])


def describe(losses: Losses) -> str:
    values = [losses.token, *losses.drafts, *losses.layers]
    return "\t".join(f"{float(value):.4f}" for value in values)


def train(
    data_folder: Path, out: Path, seconds: float, batch: int, seed: int, resume: bool, sparse_from: float
) -> None:
    device = "cuda"
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.cache_size_limit = 64
    torch.manual_seed(seed)
    out.mkdir(parents=True, exist_ok=True)
    config = small_config()
    net = Network(config).to(device)
    steps, elapsed = 0, 0.0
    if resume:
        state = torch.load(out / "state.pt", map_location=device)
        with torch.no_grad():
            for name, weight in net.weights.items():
                weight.copy_(state["weights"][name])
        steps, elapsed = state["steps"], state["elapsed"]
    model = Model(net, lambda function: torch.compile(function, dynamic=False))
    optimiser = Optimiser(net.weights)
    data = Data(data_folder, device, seed + steps)
    dense = make_pass(config, ROW - 1, False, torch.bfloat16, device)
    log = (out / "log.tsv").open("a")
    begun, local, last = time.time(), 0, time.time()
    clock = elapsed  # seconds of training, without the compilation at the start
    saved = time.time()
    while clock < seconds:
        progress = clock / seconds
        probe = torch.from_numpy(np.sort(data.random.integers(512, ROW - 1, 64))).to(device)
        run = replace(dense, probe=probe, sparse=progress >= sparse_from)
        ids, weights = data.batch(batch)
        losses = model.losses(ids, weights, run, drafted=max(1, batch // 4))
        loss = losses.token + DRAFT_WEIGHT * losses.drafts.mean()
        loss = loss + BALANCE_WEIGHT * losses.layers[0] + INDEX_WEIGHT * losses.layers[1]
        loss.backward()
        factor = factor_at(progress, local)
        optimiser.step(factor)
        steps, local = steps + 1, local + 1
        if local <= 3 or local % 50 == 0:
            text = describe(losses)
            now = time.time()
            line = f"{steps}\t{clock:.0f}\t{factor:.3f}\t{int(run.sparse)}\t{text}"
            speed = batch * (ROW - 1) * (1 if local <= 3 else 50) / (now - last)
            print(
                line,
                f"{speed / 1e3:.0f}k/s {torch.cuda.max_memory_allocated() / 1e9:.0f} GB {now - begun:.0f} s",
                flush=True,
            )
            log.write(line + "\n")
            log.flush()
            if not math.isfinite(float(loss)):
                raise SystemExit("the loss is not finite")
            clock += min(now - last, 60.0) if local > 3 else 0.0
            last = now
            if now - saved > 150:
                save(out, net, steps, clock)
                saved = time.time()
    save(out, net, steps, clock)
    print("held out:", held_out(Model(net), data_folder, replace(dense, sparse=sparse_from <= 1), device), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=1000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sparse-from", type=float, default=SPARSE_FROM)
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()
    train(
        arguments.data,
        arguments.out,
        arguments.seconds,
        arguments.batch,
        arguments.seed,
        arguments.resume,
        arguments.sparse_from,
    )
