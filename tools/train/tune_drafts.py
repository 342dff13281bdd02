# mypy: disable-error-code="no-untyped-call,no-any-return,arg-type"
"""Teach the draft layer alone what the finished (quantised) trunk would say, three drafts deep.

    python -m tools.train.tune_drafts DATA SMALL.gguf OUT --seconds 120

At depths two and three the layer sees what it will see when it drafts: its own streams for the token at hand, the
trunk's for all tokens before. The target is the trunk's own distribution, sharpened. OUT receives drafts.safetensors.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from jubako.arch.config import Config
from jubako.files import open_model

from . import network
from .geometry import small_config
from .model import DRAFTS, Model, make_pass
from .network import Network, Pass, Weights
from .optimiser import Optimiser
from .train import Data

WINDOW, SHARPNESS, RATE = 2048, 1.5, 0.5


def load_gguf(net: Network, path: Path) -> None:
    """Weights of a GGUF file, as quantised."""
    tensors = open_model(path).tensors
    with torch.no_grad():
        for name, weight in net.weights.items():
            values = tensors[name].float32()
            weight.copy_((-values).log() if name.endswith("ssm_a") else values)


def draft_layer(
    streams: Tensor, w: Weights, config: Config, run: Pass, past: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The draft layer's streams, and its keys and values. past: those of depth one, which later depths look back on."""
    mixed, inject = network.hyper_mix(streams, w, "hc_attn_")
    q, gate, k, v = (t.transpose(1, 2) for t in network.project(mixed, w, config, run))
    if past is None:
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    else:
        place = torch.arange(q.shape[2], device=q.device)
        seen = torch.cat([place < place[:, None], place == place[:, None]], dim=1)
        repeat = q.shape[1] // k.shape[1]
        keys, values = (
            torch.cat([a, b], dim=2).repeat_interleave(repeat, dim=1) for a, b in zip(past, (k, v), strict=True)
        )
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen)
    out = (out * torch.sigmoid(gate)).transpose(1, 2)
    streams = network.combine(streams, inject, network.linear(out.flatten(-2), w["attn_output.weight"]))
    mixed, inject = network.hyper_mix(streams, w, "hc_ffn_")
    return network.combine(streams, inject, network.experts(mixed, w, config)[0]), k, v


def divergence(streams: Tensor, w: Weights, output: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Cross entropy with the trunk's sharpened distribution, and how often both would write the same token."""
    scores = network.logits(streams, w, "nextn.hc_head_", output).float()
    target = (wanted.float() * SHARPNESS).softmax(-1)
    agreed = (scores.argmax(-1) == wanted.argmax(-1)).float().mean()
    return -(target * scores.log_softmax(-1)).sum(-1).mean(), agreed


def tune(data_folder: Path, trunk: Path, out: Path, seconds: float, batch: int) -> None:
    device = "cuda"
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(2)
    config = small_config()
    net = Network(config).to(device)
    load_gguf(net, trunk)
    model = Model(net)
    part = model.parts[-1]
    own = {f"blk.{config.layers}.{name}": w for name, w in part.items() if not name.startswith("indexer")}
    for name, weight in net.weights.items():
        weight.requires_grad_(name in own)
    layer, compare, enter = (torch.compile(f, dynamic=False) for f in (draft_layer, divergence, network.draft_input))
    optimiser = Optimiser(own)  # type: ignore[arg-type]
    data = Data(data_folder, device, 77)
    run = replace(make_pass(config, WINDOW, True, torch.bfloat16, device), sparse=True)
    output, embed = net.weights["output.weight"], net.weights["token_embd.weight"]
    begun, step, started = 0.0, 0, time.time()
    out.mkdir(parents=True, exist_ok=True)
    while not begun or time.time() - begun < seconds:
        ids = data.batch(batch)[0]
        ids = torch.cat([ids[:, : WINDOW + 1], ids[:, WINDOW:]])
        with torch.no_grad():
            wide = model.streams(ids[:, :-1], run)[0]
            wanted = network.logits(wide, model.head, "", output)
            embedded = F.embedding(ids[:, 1:], embed).bfloat16()
        losses, shares, past = [], [], None
        for depth in range(DRAFTS):
            entered = enter(network.shifted(wide, 1) if depth else wide, embedded, part)
            wide, k, v = layer(entered, part, config, run, past)
            past = past or (k, v)
            loss, agreed = compare(wide[:, :-1], part, output, wanted[:, 1:])
            losses.append(loss)
            shares.append(agreed)
        torch.stack(losses).mean().backward()
        progress = (time.time() - begun) / seconds if begun else 0.0
        optimiser.step(RATE * min(1.0, (step + 1) / 20) * max(0.01, min(1.0, 2 * (1 - progress))))
        step += 1
        if step == 3:
            begun = time.time()
        if step % 20 == 0 or step < 3:
            print(step, *(f"{float(x):.4f}" for x in [*losses, *shares]), f"{time.time() - started:.0f} s", flush=True)
    save_file({name: w.detach().bfloat16().cpu() for name, w in own.items()}, out / "drafts.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("trunk", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--batch", type=int, default=16)
    arguments = parser.parse_args()
    tune(arguments.data, arguments.trunk, arguments.out, arguments.seconds, arguments.batch)
