"""Which tensors a synthetic file holds: name, shape, block type, and how its values are drawn.

Deviations keep activations sane. Streams start near one and every block adds about a third of that, so that the
embedding stays visible and tokens stay different; gates, scores and router logits get a deviation near one. Inputs of
the GDN's silu stay small, where it is nearly linear: its mean would be a direction common to all tokens, and routing no
longer flat.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from ..arch.config import Config
from ..errors import RequestError
from ..quant import BlockType, block_type
from .geometry import table_rows
from .random_blocks import TYPES

Routing = Literal["flat", "skewed"]
Draw = Literal["normal", "norm", "router", "decay", "time_step"]

DEFAULT_TYPES = {
    "gate_up": "IQ3_XXS",  # routed experts' gate and up
    "down": "IQ4_NL",  # routed experts' down
    "dense": "Q8_0",  # every other matrix of the layers
    "embedding": "Q8_0",
    "output": "Q8_0",
    "ngram": "Q8_0",  # the n-gram table
    "router": "F32",
    "small": "F32",  # matrices with few rows: alpha, beta, inject
}

# What llama-quantize takes instead where a row is no whole number of 256-weight blocks.
_NARROW = {
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
} | dict.fromkeys(
    ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS", "TQ1_0", "TQ2_0", "Q1_0", "PQ2_0"),
    "IQ4_NL",
)


@dataclass(frozen=True)
class PlannedTensor:
    """One tensor to make. shape in torch order; deviation is that of its weights (a router's: of an average row)."""

    name: str
    shape: tuple[int, ...]
    type: BlockType
    draw: Draw
    deviation: float
    replaced: str = ""  # the type that was asked for and does not fit its rows

    @property
    def row_bytes(self) -> int:
        return self.type.row_bytes(self.shape[-1])

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def nbytes(self) -> int:
        return self.rows * self.row_bytes


@dataclass(frozen=True)
class BlockTypes:
    """Block type by group (the keys of DEFAULT_TYPES), or by a pattern of names such as "blk.2.*_exps.weight"."""

    groups: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULT_TYPES))
    patterns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> BlockTypes:
        """From "gate_up=IQ3_XXS,down=IQ4_NL,…"; groups left out keep their default. A type alone is that of the dense
        group, the embedding and the output. RequestError for an unknown group or type."""
        groups, patterns = dict(DEFAULT_TYPES), {}
        for part in filter(None, (part.strip() for part in text.split(","))):
            key, _, name = part.rpartition("=")
            name = name.upper()
            if name not in TYPES:
                raise RequestError(f"block type {name!r} can't be made; it can be {', '.join(TYPES)}")
            if key in groups:
                groups[key] = name
            elif "." in key:
                patterns[key] = name
            elif not key:
                groups |= dict.fromkeys(("dense", "embedding", "output"), name)
            else:
                raise RequestError(
                    f"--types group {key!r} is unknown; groups are {', '.join(groups)}, or a tensor name pattern"
                )
        return cls(groups, patterns)

    def of(self, name: str, group: str, columns: int) -> tuple[BlockType, str]:
        """The type of a tensor with rows of `columns`, and the one it replaces where that does not fit ("" if none)."""
        asked = self.groups[group]
        for pattern, matched in self.patterns.items():
            if fnmatchcase(name, pattern):
                asked = matched
        kind = block_type(asked)
        if columns % kind.weights == 0:
            return kind, ""
        narrow = _NARROW.get(asked)
        if narrow and columns % block_type(narrow).weights == 0:
            return block_type(narrow), asked
        raise RequestError(
            f"{name}: rows of {columns} weights are no whole number of {asked} blocks of {kind.weights}; "
            f"give the group {group!r} another type (Q8_0 and IQ4_NL have blocks of 32)"
        )


def plan_tensors(config: Config, types: BlockTypes) -> list[PlannedTensor]:
    """All tensors of a file, in the order they are written."""
    return list(_Planner(config, types).tensors())


@dataclass(frozen=True)
class _Planner:
    config: Config
    types: BlockTypes

    def matrix(self, name: str, group: str, deviation: float, *shape: int, draw: Draw = "normal") -> PlannedTensor:
        kind, replaced = self.types.of(name, group, shape[-1])
        return PlannedTensor(name, shape, kind, draw, deviation, replaced)

    def linear(self, name: str, group: str, gain: float, *shape: int) -> PlannedTensor:
        """A matrix that turns inputs of deviation one into outputs of deviation `gain`."""
        return self.matrix(name, group, gain / math.sqrt(shape[-1]), *shape)

    def vector(self, name: str, draw: Draw, deviation: float, *shape: int) -> PlannedTensor:
        return PlannedTensor(name, shape, block_type("F32"), draw, deviation)

    def norm(self, name: str, size: int) -> PlannedTensor:
        return self.vector(name, "norm", 0.05, size)

    def tensors(self) -> Iterator[PlannedTensor]:
        c, ngram = self.config, self.config.ngram
        assert ngram is not None
        yield self.matrix("token_embd.weight", "embedding", 1.0, c.vocabulary, c.hidden)
        yield self.matrix("per_layer_token_embd.weight", "ngram", 1.0, table_rows(c), ngram.width)
        for layer in range(c.layers):
            yield from self.layer(layer)
        yield from self.mixer("output_hc_")
        yield self.linear("output.weight", "output", 5.0, c.vocabulary, c.hidden)
        if c.draft_layers:
            yield from self.draft(c.layers)

    def layer(self, layer: int) -> Iterator[PlannedTensor]:
        assert self.config.ngram is not None
        prefix = f"blk.{layer}."
        if layer == self.config.ngram.layer:
            yield from self.ngram(prefix)
        yield from self.mixer(prefix + "hc_attn_", inject=True)
        yield from (
            self.gdn(prefix) if layer < self.config.layers and self.config.recurrent[layer] else self.attention(prefix)
        )
        yield from self.mixer(prefix + "hc_ffn_", inject=True)
        yield from self.experts(prefix)

    def mixer(self, prefix: str, inject: bool = False) -> Iterator[PlannedTensor]:
        c = self.config
        width = c.streams * c.hidden
        yield self.norm(prefix + "norm.weight", width)
        yield self.linear(prefix + "down.weight", "dense", c.streams, c.hyper_rank, width)
        yield self.linear(prefix + "up.weight", "dense", 1.7, width, c.hyper_rank)
        if inject:
            yield self.linear(prefix + "inject.weight", "small", 2.0, c.streams, width)

    def gdn(self, prefix: str) -> Iterator[PlannedTensor]:
        c = self.config
        yield self.linear(prefix + "attn_qkv.weight", "dense", 0.8, c.gdn_channels, c.hidden)
        yield self.linear(prefix + "attn_gate.weight", "dense", 2.0, c.gdn_inner, c.hidden)
        yield self.vector(prefix + "ssm_conv1d.weight", "normal", 0.5, c.gdn_channels, c.conv_kernel)
        yield self.vector(prefix + "ssm_dt.bias", "time_step", 0.0, c.gdn_value_heads)
        yield self.vector(prefix + "ssm_a", "decay", 0.0, c.gdn_value_heads)
        yield self.linear(prefix + "ssm_beta.weight", "small", 2.0, c.gdn_value_heads, c.hidden)
        yield self.linear(prefix + "ssm_alpha.weight", "small", 1.0, c.gdn_value_heads, c.hidden)
        yield self.norm(prefix + "ssm_norm.weight", c.gdn_dim)
        yield self.linear(prefix + "ssm_out.weight", "dense", 0.55, c.hidden, c.gdn_inner)

    def attention(self, prefix: str) -> Iterator[PlannedTensor]:
        c = self.config
        yield self.linear(prefix + "attn_q.weight", "dense", 2.0, 2 * c.heads * c.head_dim, c.hidden)
        yield self.linear(prefix + "attn_k.weight", "dense", 2.0, c.kv_heads * c.head_dim, c.hidden)
        yield self.linear(prefix + "attn_v.weight", "dense", 2.0, c.kv_heads * c.head_dim, c.hidden)
        yield self.norm(prefix + "attn_q_norm.weight", c.head_dim)
        yield self.norm(prefix + "attn_k_norm.weight", c.head_dim)
        yield self.linear(prefix + "attn_output.weight", "dense", 1.0, c.hidden, c.heads * c.head_dim)
        yield self.linear(prefix + "indexer.q_proj.weight", "dense", 2.0, c.index_heads * c.index_dim, c.hidden)
        yield self.linear(prefix + "indexer.k_proj.weight", "dense", 2.0, c.index_dim, c.hidden)
        yield self.norm(prefix + "indexer.q_norm.weight", c.index_dim)
        yield self.norm(prefix + "indexer.k_norm.weight", c.index_dim)

    def experts(self, prefix: str) -> Iterator[PlannedTensor]:
        c = self.config
        size, shared = c.expert_size, c.shared_expert_size
        router = 3.0 / math.sqrt(c.hidden)
        yield self.matrix(prefix + "ffn_gate_inp.weight", "router", router, c.experts, c.hidden, draw="router")
        yield self.linear(prefix + "ffn_gate_exps.weight", "gate_up", 2.0, c.experts, size, c.hidden)
        yield self.linear(prefix + "ffn_up_exps.weight", "gate_up", 2.0, c.experts, size, c.hidden)
        yield self.linear(prefix + "ffn_down_exps.weight", "down", 0.8, c.experts, c.hidden, size)
        yield self.vector(prefix + "ffn_gate_inp_shexp.weight", "normal", 2.0 / math.sqrt(c.hidden), c.hidden)
        yield self.linear(prefix + "ffn_gate_shexp.weight", "dense", 2.0, shared, c.hidden)
        yield self.linear(prefix + "ffn_up_shexp.weight", "dense", 2.0, shared, c.hidden)
        yield self.linear(prefix + "ffn_down_shexp.weight", "dense", 0.8, c.hidden, shared)

    def ngram(self, prefix: str) -> Iterator[PlannedTensor]:
        c, ngram = self.config, self.config.ngram
        assert ngram is not None
        width = c.streams * c.hidden
        yield self.linear(prefix + "ple_key.weight", "dense", 1.0, width, ngram.heads * ngram.width)
        yield self.linear(prefix + "ple_value.weight", "dense", 0.6, c.hidden, ngram.heads * ngram.width)
        for norm in ("key", "query", "conv"):
            yield self.norm(f"{prefix}ple_norm_{norm}.weight", width)
        yield self.vector(prefix + "ple_conv1d.weight", "normal", 0.2, width, ngram.conv_kernel)

    def draft(self, layer: int) -> Iterator[PlannedTensor]:
        c = self.config
        prefix = f"blk.{layer}."
        width = c.streams * c.hidden
        yield self.linear(prefix + "nextn.eh_proj.weight", "dense", 1.4, c.hidden, 2 * c.hidden)
        yield self.norm(prefix + "nextn.enorm.weight", c.hidden)
        yield self.norm(prefix + "nextn.hnorm.weight", width)
        yield from self.layer(layer)
        yield from self.mixer(prefix + "nextn.hc_head_")
