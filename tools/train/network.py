# mypy: disable-error-code="no-untyped-call,no-any-return,arg-type"
"""The network for training: `jubako.arch.reference`, batched, in bfloat16 and with gradients.

Weights carry their GGUF names and stand in the GGUF convention (norms include the +1; V head j uses K head j mod key
heads), but ssm_a is held as its logarithm. B sequences, T tokens, S streams, H hidden elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jubako.arch.config import Config
from jubako.measure.tensor_plan import BlockTypes, PlannedTensor, plan_tensors

from .delta import delta_rule

Weights = dict[str, Tensor]
_OUTPUTS = ("ssm_out", "attn_output", "ffn_down_exps", "ffn_down_shexp")


def initial(tensor: PlannedTensor) -> Tensor:
    """Starting values of a weight."""
    name, shape = tensor.name, tensor.shape
    noise = torch.randn(shape)
    if tensor.draw == "norm":
        return torch.ones(shape)
    if name.endswith("ssm_a"):
        return torch.empty(shape).uniform_(1, 16).log()
    if name.endswith("ssm_dt.bias"):
        return torch.empty(shape).uniform_(math.log(1e-3), math.log(0.1)).exp().expm1().log()
    if name.endswith("conv1d.weight"):
        noise *= 0.1
        if "ssm" in name:
            noise[:, -1] += 0.8
        return noise
    if "token_embd" in name:
        return noise * 0.3
    gain = 0.3 if any(part in name for part in _OUTPUTS) else 0.5 if name.startswith("output.") else 1.0
    return noise * gain / math.sqrt(shape[-1])


class Network(nn.Module):
    """The weights by GGUF name, in float32."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.weights: dict[str, nn.Parameter] = {}
        for tensor in plan_tensors(config, BlockTypes.parse("Q8_0,gate_up=Q8_0,down=Q8_0,ngram=Q8_0")):
            self.weights[tensor.name] = nn.Parameter(initial(tensor))
            self.register_parameter(tensor.name.replace(".", "/"), self.weights[tensor.name])

    def part(self, prefix: str) -> Weights:
        """The weights whose names start so, by the rest of their names."""
        return {name.removeprefix(prefix): w for name, w in self.weights.items() if name.startswith(prefix)}


@dataclass(frozen=True)
class Pass:
    """What is common to all layers in one pass."""

    cos: Tensor  # [T, rope_dims / 2]
    sin: Tensor
    probe: Tensor  # [Q] positions whose block choice is taught in this pass
    sparse: bool  # attend to chosen blocks only
    dtype: torch.dtype


def rms(x: Tensor, gamma: Tensor, eps: float = 1e-6) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * gamma).to(x.dtype)


def linear(x: Tensor, *weights: Tensor) -> Tensor:
    """Products with several matrices at once, side by side."""
    joined = torch.cat([weight.to(x.dtype) for weight in weights]) if len(weights) > 1 else weights[0].to(x.dtype)
    return F.linear(x, joined)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, T, heads, D]; cos and sin [T, n] for pairs (i, i + n)."""
    n = cos.shape[-1]
    cos, sin = cos[:, None], sin[:, None]
    a, b = x[..., :n].float(), x[..., n : 2 * n].float()
    return torch.cat([(a * cos - b * sin).to(x.dtype), (b * cos + a * sin).to(x.dtype), x[..., 2 * n :]], dim=-1)


def shifted(x: Tensor, by: int) -> Tensor:
    """x [B, T, …] moved `by` tokens into the future, zeros first."""
    return F.pad(x, (0, 0) * (x.dim() - 2) + (by, 0))[:, : x.shape[1]] if by else x


def causal_conv(x: Tensor, taps: Tensor, dilation: int = 1) -> Tensor:
    """x [B, T, C], taps [C, K], the last tap on the token itself."""
    kernel = taps.shape[1]
    return sum(
        (taps[:, k].to(x.dtype) * shifted(x, (kernel - 1 - k) * dilation) for k in range(kernel)), torch.zeros_like(x)
    )


def hyper_mix(streams: Tensor, w: Weights, prefix: str) -> tuple[Tensor, Tensor | None]:
    """mixed [B, T, H] and inject [B, T, S] of streams [B, T, S, H]."""
    count, hidden = streams.shape[-2:]
    normed = rms(streams, w[prefix + "norm.weight"].view(count, hidden))
    down, up = w[prefix + "down.weight"], w[prefix + "up.weight"]
    inject = w.get(prefix + "inject.weight")
    low = linear(normed.flatten(-2), *([down] if inject is None else [down, inject]))
    gate = torch.sigmoid(linear(F.silu(low[..., : len(down)] / count), up))
    mixed = (gate.view(streams.shape) * normed).mean(-2)
    return mixed, None if inject is None else 2 * torch.sigmoid(low[..., len(down) :] / count)


def combine(streams: Tensor, inject: Tensor | None, out: Tensor) -> Tensor:
    assert inject is not None
    return streams + inject[..., None] * out[..., None, :]


def unit(x: Tensor) -> Tensor:
    wide = x.float()
    return wide * torch.rsqrt(wide.square().sum(-1, keepdim=True) + 1e-6)


def gdn(x: Tensor, w: Weights, config: Config) -> Tensor:
    """The gated delta net on x [B, T, H]."""
    heads, keys, dim, inner = config.gdn_value_heads, config.gdn_key_heads, config.gdn_dim, config.gdn_inner
    matrices = [w[name + ".weight"] for name in ("attn_qkv", "attn_gate", "ssm_beta", "ssm_alpha")]
    qkv, z, beta, alpha = linear(x, *matrices).split([config.gdn_channels, inner, heads, heads], dim=-1)
    q, k, v = F.silu(causal_conv(qkv, w["ssm_conv1d.weight"])).split([keys * dim, keys * dim, inner], dim=-1)
    shape = (*x.shape[:2], -1, dim)
    q = (unit(q.reshape(shape)) / math.sqrt(dim)).repeat(1, 1, heads // keys, 1)
    k = unit(k.reshape(shape)).repeat(1, 1, heads // keys, 1)
    decay = -w["ssm_a"].exp() * F.softplus(alpha.float() + w["ssm_dt.bias"])
    out = delta_rule(q, k, v.reshape(shape), torch.sigmoid(beta.float()), decay)
    gated = rms(out, w["ssm_norm.weight"]) * torch.sigmoid(z.reshape(shape).float())
    return linear(gated.flatten(-2).to(x.dtype), w["ssm_out.weight"])


def block_scores(q: Tensor, pooled: Tensor, positions: Tensor, ratio: int) -> Tensor:
    """Index scores [B, Q, blocks] of queries [B, Q, heads, D] at `positions` [Q]; -inf for incomplete blocks."""
    scores = F.relu(torch.einsum("bqhd,bnd->bhqn", q, pooled)).float().sum(1) / math.sqrt(q.shape[-1])
    late = torch.arange(pooled.shape[1], device=q.device) >= ((positions + 1) // ratio)[:, None]
    return scores.masked_fill(late, -torch.inf)


def chosen_tokens(scores: Tensor, budget: int, ratio: int) -> Tensor:
    """Which tokens each of T queries attends to, bool [B, T, T], from scores [B, T, blocks]."""
    tokens = scores.shape[1]
    least = scores.topk(min(budget, scores.shape[2]), dim=-1).values[..., -1:]
    above, tied = scores > least, (scores == least) & scores.isfinite()
    room = min(budget, scores.shape[2]) - above.sum(-1, keepdim=True)
    blocks = above | (tied & (tied.cumsum(-1) <= room))  # where scores tie the lower block wins
    place = torch.arange(tokens, device=scores.device)
    tail = place >= ((place + 1) // ratio * ratio)[:, None]
    return (blocks.repeat_interleave(ratio, dim=-1) | tail) & (place <= place[:, None])


def index_lesson(
    q: Tensor, k: Tensor, index_q: Tensor, pooled: Tensor, config: Config, run: Pass
) -> tuple[Tensor, Tensor]:
    """Loss that pulls block scores toward the attention's mass per block, and the mass that the chosen blocks hold.

    q [B, T, heads, D] and k [B, T, kv_heads, D] as attention sees them.
    """
    ratio, blocks = 4, pooled.shape[1]
    with torch.no_grad():
        rows = q[:, run.probe]
        keys = k.repeat_interleave(config.heads // config.kv_heads, dim=2)
        logits = torch.einsum("bqhd,bnhd->bhqn", rows, keys).float() / math.sqrt(config.head_dim)
        hidden = torch.arange(k.shape[1], device=q.device) > run.probe[:, None]
        mass = logits.masked_fill(hidden, -torch.inf).softmax(-1).mean(1)
        mass = mass.view(*mass.shape[:2], blocks, ratio).sum(-1)
        incomplete = torch.arange(blocks, device=q.device) >= ((run.probe + 1) // ratio)[:, None]
        mass = mass.masked_fill(incomplete, 0)
        mass = mass / mass.sum(-1, keepdim=True).clamp(min=1e-6)
    scores = block_scores(index_q[:, run.probe], pooled, run.probe, ratio)
    loss = -(mass * scores.log_softmax(-1).clamp(min=-100)).sum(-1).mean()
    entropy = -(mass * mass.clamp(min=1e-9).log()).sum(-1).mean()
    best = scores.topk(min(config.index_blocks(ratio), blocks), dim=-1).indices
    return loss - entropy, mass.gather(-1, best).sum(-1).mean()


def project(x: Tensor, w: Weights, config: Config, run: Pass) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries [B, T, heads, D] and their gates, keys and values [B, T, kv_heads, D]; normed and rotated."""
    heads, kv, dim = config.heads, config.kv_heads, config.head_dim
    sizes = [2 * heads * dim, kv * dim, kv * dim]
    q, k, v = linear(x, *(w[f"attn_{name}.weight"] for name in "qkv")).split(sizes, dim=-1)
    q, gate = q.reshape(*x.shape[:2], heads, 2 * dim).chunk(2, dim=-1)
    q = rope(rms(q, w["attn_q_norm.weight"]), run.cos, run.sin)
    k = rope(rms(k.reshape(*x.shape[:2], kv, dim), w["attn_k_norm.weight"]), run.cos, run.sin)
    return q, gate, k, v.reshape(*x.shape[:2], kv, dim)


def attention(x: Tensor, w: Weights, config: Config, run: Pass) -> tuple[Tensor, Tensor, Tensor]:
    """Block-sparse attention on x [B, T, H]; its index loss and recall."""
    heads, kv, ratio = config.heads, config.kv_heads, 4
    q, gate, k, v = project(x, w, config, run)
    index_q, index_k = (linear(x.detach(), w[f"indexer.{name}_proj.weight"]) for name in "qk")
    index_q = index_q.view(*x.shape[:2], config.index_heads, config.index_dim)
    index_q = rope(rms(index_q, w["indexer.q_norm.weight"]), run.cos, run.sin)
    pooled = index_k.view(x.shape[0], -1, ratio, config.index_dim).float().mean(2).to(x.dtype)[:, :, None]
    pooled = rope(rms(pooled, w["indexer.k_norm.weight"]), run.cos[::ratio], run.sin[::ratio])[:, :, 0]
    loss, recall = index_lesson(q, k, index_q, pooled, config, run)

    query, key, value = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    if run.sparse:
        with torch.no_grad():
            positions = torch.arange(x.shape[1], device=x.device)
            mask = chosen_tokens(block_scores(index_q, pooled, positions, ratio), config.index_blocks(ratio), ratio)
        key, value = (t.repeat_interleave(heads // kv, dim=1) for t in (key, value))
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None])
    else:
        out = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    out = out.transpose(1, 2) * torch.sigmoid(gate)
    return linear(out.flatten(-2), w["attn_output.weight"]), loss, recall


def experts(x: Tensor, w: Weights, config: Config) -> tuple[Tensor, Tensor]:
    """The expert layer on x [B, T, H], all experts at once with most of them weighted zero; its balance loss."""
    count, used, hidden = config.experts, config.experts_used, x.shape[-1]
    routed = linear(x, w["ffn_gate_inp.weight"], w["ffn_gate_inp_shexp.weight"].view(1, -1)).float()
    probabilities = routed[..., :count].softmax(-1)
    best, ids = probabilities.topk(used, dim=-1)
    weights = torch.zeros_like(probabilities).scatter(-1, ids, best / best.sum(-1, keepdim=True))
    share = (weights > 0).float().flatten(0, 1).mean(0) / used
    balance = count * (share * probabilities.flatten(0, 1).mean(0)).sum()

    gate = linear(x, w["ffn_gate_exps.weight"].flatten(0, 1), w["ffn_gate_shexp.weight"])
    up = linear(x, w["ffn_up_exps.weight"].flatten(0, 1), w["ffn_up_shexp.weight"])
    factors = torch.cat(
        [
            weights.repeat_interleave(config.expert_size, dim=-1),
            torch.sigmoid(routed[..., count:]).expand(*x.shape[:2], config.shared_expert_size),
        ],
        dim=-1,
    ).to(x.dtype)
    down = torch.cat(
        [w["ffn_down_exps.weight"].permute(1, 0, 2).reshape(hidden, -1), w["ffn_down_shexp.weight"]], dim=1
    )
    return linear(F.silu(gate) * up * factors, down), balance


def layer(streams: Tensor, w: Weights, config: Config, run: Pass) -> tuple[Tensor, Tensor]:
    """One layer, and its losses: balance, index loss, recall of the index."""
    mixed, inject = hyper_mix(streams, w, "hc_attn_")
    if "ssm_a" in w:
        out, extra = gdn(mixed, w, config), streams.new_zeros(2, dtype=torch.float32)
    else:
        out, *pair = attention(mixed, w, config, run)
        extra = torch.stack(pair)
    streams = combine(streams, inject, out)
    mixed, inject = hyper_mix(streams, w, "hc_ffn_")
    out, balance = experts(mixed, w, config)
    return combine(streams, inject, out), torch.cat([balance[None], extra])


def ngram_inject(streams: Tensor, w: Weights, rows: Tensor, config: Config) -> Tensor:
    """Add the n-gram embedding, rows [B, T, E] of the table, to the streams."""
    assert config.ngram is not None
    count, hidden = streams.shape[-2:]
    key, value = linear(rows, w["ple_key.weight"], w["ple_value.weight"]).split([count * hidden, hidden], dim=-1)
    key = rms(key.view(streams.shape), w["ple_norm_key.weight"].view(count, hidden))
    query = rms(streams, w["ple_norm_query.weight"].view(count, hidden))
    match = (key.float() * query.float()).sum(-1, keepdim=True) / math.sqrt(hidden)
    gate = torch.sigmoid(match.sign() * match.abs().clamp(min=1e-6).sqrt()).to(rows.dtype)
    value = gate * value[..., None, :]
    normed = rms(value, w["ple_norm_conv.weight"].view(count, hidden)).flatten(-2)
    smoothed = F.silu(causal_conv(normed, w["ple_conv1d.weight"], config.ngram.size))
    return streams + value + smoothed.view(streams.shape)


def draft_input(streams: Tensor, embedded: Tensor, w: Weights) -> Tensor:
    """Streams that enter the draft layer, from those of the token before and the embedding [B, T, H] of the token."""
    hidden = embedded.shape[-1]
    token = linear(rms(embedded, w["nextn.enorm.weight"]), w["nextn.eh_proj.weight"][:, :hidden])
    wide = rms(streams.flatten(-2), w["nextn.hnorm.weight"]).view(streams.shape)
    return linear(wide, w["nextn.eh_proj.weight"][:, hidden:]) + token[..., None, :]


def logits(streams: Tensor, w: Weights, prefix: str, output: Tensor) -> Tensor:
    return linear(hyper_mix(streams, w, prefix)[0], output)
