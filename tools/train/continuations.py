# mypy: disable-error-code="no-untyped-call,no-any-return,arg-type"
"""What the trunk writes, greedily, after many prefixes at once: one token a step, as one CUDA graph.

Contexts stay within the index budget, so that every token attends to all before it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from jubako.arch.config import Config

from . import network
from .model import Model, make_pass, ngram_rows
from .network import Pass, Weights


@dataclass
class Lines:
    """B lines of T tokens and what the trunk thought at each.

    ids [B, T + 1]      the tokens, and the one that follows
    best [B, T]         the likeliest next token after each
    streams [B, T, S, H] after the last layer
    prefix [B]          how many tokens were given; the trunk wrote the rest
    """

    ids: Tensor
    best: Tensor
    streams: Tensor
    prefix: Tensor


class Writer:
    """Continues `size` lines at a time to `length` tokens."""

    def __init__(self, model: Model, size: int, length: int, device: str, graph: bool) -> None:
        config = model.config
        assert config.ngram is not None
        self.model, self.config, self.length = model, config, length
        self.angles = make_pass(config, length, False, torch.float32, device)
        width = config.streams * config.hidden
        past = (config.ngram.conv_kernel - 1) * config.ngram.size

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.at = zeros(1, dtype=torch.int64)
        self.recent = zeros(size, config.ngram.size, dtype=torch.int64)
        self.given, self.prefix = zeros(size, length + 1, dtype=torch.int64), zeros(size, dtype=torch.int64)
        self.ngram = zeros(size, past + 1, width)
        self.conv = [zeros(size, config.conv_kernel, config.gdn_channels) for gdn in config.recurrent if gdn]
        self.memory = [
            zeros(size, config.gdn_value_heads, config.gdn_dim, config.gdn_dim) for gdn in config.recurrent if gdn
        ]
        attention = len(config.recurrent) - len(self.conv)
        self.keys, self.values = (
            [zeros(size, config.kv_heads, length, config.head_dim) for _ in range(attention)] for _ in "kv"
        )
        self.best = zeros(size, length, dtype=torch.int64)
        self.streams = zeros(size, length, config.streams, config.hidden, dtype=torch.bfloat16)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.captures = graph

    @torch.no_grad()
    def write(self, given: Tensor, prefix: Tensor) -> Lines:
        """Lines that begin with the first prefix[b] of given [B, ≤ length]."""
        assert self.config.ngram is not None
        for state in (self.at, self.ngram, *self.conv, *self.memory, *self.keys, *self.values):
            state.zero_()
        self.recent.fill_(self.config.ngram.eos)
        self.given[:, : given.shape[1]] = given
        self.prefix.copy_(prefix)
        if self.captures and self.graph is None:
            self._capture()
            return self.write(given, prefix)
        for _ in range(self.length):
            if self.graph is None:
                self._step()
            else:
                self.graph.replay()
        return Lines(self.given, self.best, self.streams, self.prefix)

    def _capture(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._step()

    def _step(self) -> None:
        """Read the token at `at` of every line, and write the next one where none is given."""
        config, w = self.config, self.model.net.weights
        assert config.ngram is not None
        token = self.given.index_select(1, self.at)
        self.recent.copy_(torch.cat([self.recent[:, 1:], token], dim=1))
        run = Pass(
            self.angles.cos.index_select(0, self.at),
            self.angles.sin.index_select(0, self.at),
            self.angles.probe,
            False,
            self.angles.dtype,
        )
        streams = F.embedding(token, w["token_embd.weight"])[:, :, None]
        streams = streams.repeat(1, 1, config.streams, 1)
        gdn = attention = 0
        for index in range(config.layers):
            part = self.model.parts[index]
            if index == config.ngram.layer:
                rows = ngram_rows(config, self.recent)[:, -1:]
                table = w["per_layer_token_embd.weight"]
                streams = self._inject(streams, part, F.embedding(rows, table).flatten(-2))
            mixed, inject = network.hyper_mix(streams, part, "hc_attn_")
            if config.recurrent[index]:
                out = _gdn(mixed, part, config, self.conv[gdn], self.memory[gdn])
                gdn += 1
            else:
                out = self._attend(mixed, part, run, self.keys[attention], self.values[attention])
                attention += 1
            streams = network.combine(streams, inject, out)
            mixed, inject = network.hyper_mix(streams, part, "hc_ffn_")
            streams = network.combine(streams, inject, network.experts(mixed, part, config)[0])
        best = network.logits(streams, self.model.head, "", w["output.weight"]).argmax(-1)
        self.best.index_copy_(1, self.at, best)
        self.streams.index_copy_(1, self.at, streams.to(self.streams.dtype))
        after = self.at + 1
        following = torch.where(after < self.prefix[:, None], self.given.index_select(1, after), best)
        self.given.index_copy_(1, after, following)
        self.at.add_(1)

    def _inject(self, streams: Tensor, w: Weights, rows: Tensor) -> Tensor:
        """`network.ngram_inject` for one token [B, 1, …], its convolution's columns kept in `ngram`."""
        assert self.config.ngram is not None
        count, hidden = streams.shape[-2:]
        key, value = network.linear(rows, w["ple_key.weight"], w["ple_value.weight"]).split(
            [count * hidden, hidden], dim=-1
        )
        key = network.rms(key.view(streams.shape), w["ple_norm_key.weight"].view(count, hidden))
        query = network.rms(streams, w["ple_norm_query.weight"].view(count, hidden))
        match = (key.float() * query.float()).sum(-1, keepdim=True) / math.sqrt(hidden)
        value = torch.sigmoid(match.sign() * match.abs().clamp(min=1e-6).sqrt()).to(rows.dtype) * value[..., None, :]
        normed = network.rms(value, w["ple_norm_conv.weight"].view(count, hidden)).flatten(-2)
        self.ngram.copy_(torch.cat([self.ngram[:, 1:], normed], dim=1))
        taps = self.ngram[:, :: self.config.ngram.size]
        smoothed = F.silu(torch.einsum("bkc,ck->bc", taps, w["ple_conv1d.weight"])).to(streams.dtype)
        return streams + value + smoothed.view(streams.shape)

    def _attend(self, x: Tensor, w: Weights, run: Pass, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of one token [B, 1, H] to all so far."""
        config = self.config
        q, gate, k, v = network.project(x, w, config, run)
        keys.index_copy_(2, self.at, k.transpose(1, 2))
        values.index_copy_(2, self.at, v.transpose(1, 2))
        q = q.view(len(x), config.kv_heads, -1, config.head_dim)
        scores = q @ keys.mT / math.sqrt(config.head_dim)
        late = torch.arange(self.length, device=x.device) > self.at
        out = scores.masked_fill(late, -torch.inf).softmax(-1) @ values
        out = out.view(gate.shape) * torch.sigmoid(gate)
        return network.linear(out.flatten(-2), w["attn_output.weight"])


def _gdn(x: Tensor, w: Weights, config: Config, conv: Tensor, memory: Tensor) -> Tensor:
    """The gated delta net on one token [B, 1, H]; moves conv [B, K, C] and memory [B, heads, N, N] on."""
    heads, keys, dim, inner = config.gdn_value_heads, config.gdn_key_heads, config.gdn_dim, config.gdn_inner
    matrices = [w[name + ".weight"] for name in ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha")]
    qkv, z, beta, alpha = network.linear(x, *matrices).split([config.gdn_channels, inner, heads, heads], dim=-1)
    conv.copy_(torch.cat([conv[:, 1:], qkv], dim=1))
    mixed = F.silu(torch.einsum("bkc,ck->bc", conv, w["ssm_conv1d.weight"]))
    q, k, v = mixed.split([keys * dim, keys * dim, inner], dim=-1)
    q = (network.unit(q.reshape(len(x), -1, dim)) / math.sqrt(dim)).repeat(1, heads // keys, 1)
    k = network.unit(k.reshape(len(x), -1, dim)).repeat(1, heads // keys, 1)
    decay = torch.exp(-w["ssm_a"].exp() * F.softplus(alpha[:, 0].float() + w["ssm_dt.bias"]))
    memory.mul_(decay[..., None, None])
    recalled = torch.einsum("bhk,bhkv->bhv", k, memory)
    correction = torch.sigmoid(beta[:, 0].float())[..., None] * (v.reshape(len(x), heads, dim) - recalled)
    memory.flatten(0, 1).baddbmm_(k.flatten(0, 1)[..., None], correction.flatten(0, 1)[:, None])
    out = torch.einsum("bhk,bhkv->bhv", q, memory)[:, None]
    gated = network.rms(out, w["ssm_norm.weight"]) * torch.sigmoid(z.reshape(out.shape).float())
    return network.linear(gated.flatten(-2).to(x.dtype), w["ssm_out.weight"])
