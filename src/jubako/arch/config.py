"""The sizes of a network, read once from a file's metadata and checked against each other.

Nothing else in Jubako reads `qwen4exp.*` keys or config.json. Lengths are in elements, contexts and budgets in tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ..errors import RequestError

if TYPE_CHECKING:
    import torch

    from ..files import ModelFiles


@dataclass(frozen=True)
class RopeScaling:
    """Context extension: kind "linear" divides all frequencies by `factor`, "yarn" slow ones (arXiv 2309.00071)."""

    kind: str
    factor: float
    original_context: int
    attention_factor: float  # cos and sin are multiplied by it
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class NgramConfig:
    """The hashed n-gram embedding: heads = (size - 1) * heads_per_ngram rows of `width` per token."""

    layer: int
    size: int
    heads_per_ngram: int
    width: int
    conv_kernel: int
    eos: int
    image_token: int  # stands in for image positions; eos where the file names none
    multipliers: tuple[int, ...]  # u64, one per place of the n-gram
    head_sizes: tuple[int, ...]
    head_offsets: tuple[int, ...]

    @property
    def heads(self) -> int:
        return (self.size - 1) * self.heads_per_ngram

    @property
    def rows(self) -> int:
        """Rows of the table that can be read."""
        return max(offset + size for offset, size in zip(self.head_offsets, self.head_sizes, strict=True))

    @property
    def conv_past(self) -> int:
        """Past columns the dilated convolution looks back on: taps are `size` tokens apart."""
        return (self.conv_kernel - 1) * self.size


@dataclass(frozen=True)
class Config:
    """Every size of the network. A layer index equal to `layers` means the draft layer."""

    name: str
    vocabulary: int
    hidden: int
    layers: int  # without the draft layer
    draft_layers: int  # 0 or 1
    context_length: int
    eps: float
    recurrent: tuple[bool, ...]  # per trunk layer: GDN (True) or attention
    # attention
    heads: int
    kv_heads: int
    head_dim: int
    rope_dims: int
    rope_base: float
    rope_sections: tuple[int, ...]  # pairs per axis (time, height, width); text uses the time position for all
    rope_scaling: RopeScaling | None
    compress_ratios: tuple[int, ...]  # tokens per index block, per layer and draft layer; 0 is dense
    index_heads: int
    index_dim: int
    index_budget: int  # tokens chosen through complete blocks
    # gated delta net
    conv_kernel: int
    gdn_key_heads: int
    gdn_value_heads: int
    gdn_dim: int  # of a key head and of a value head
    # experts
    experts: int
    experts_used: int
    expert_size: int
    shared_expert_size: int
    # hyper-connections
    streams: int
    hyper_rank: int
    ngram: NgramConfig | None

    @property
    def gdn_channels(self) -> int:
        """Rows of attn_qkv: q and k of the key heads, v of the value heads."""
        return (2 * self.gdn_key_heads + self.gdn_value_heads) * self.gdn_dim

    @property
    def gdn_inner(self) -> int:
        return self.gdn_value_heads * self.gdn_dim

    def index_blocks(self, ratio: int) -> int:
        """Most index blocks of `ratio` tokens one query may choose."""
        return self.index_budget // ratio

    def rope_frequencies(self) -> torch.Tensor:
        """`rope_frequencies_numpy` as a torch tensor."""
        import torch

        return torch.from_numpy(self.rope_frequencies_numpy())

    def rope_frequencies_numpy(self) -> np.ndarray:
        """Radians per position of each rotated pair (i, i + rope_dims/2): float32 [rope_dims / 2]."""
        exponents = np.arange(0, self.rope_dims, 2, dtype=np.float32) / np.float32(self.rope_dims)
        periods: np.ndarray = (self.rope_base ** exponents.astype(np.float64)).astype(np.float32)
        one = np.float32(1)
        scaling = self.rope_scaling
        if scaling is None:
            return one / periods
        factor = np.float32(scaling.factor)
        if scaling.kind == "linear":
            return one / (factor * periods)

        def pair_with(rotations: float) -> float:
            """The (fractional) pair that turns `rotations` times within the original context."""
            turns = scaling.original_context / (rotations * 2 * math.pi)
            return self.rope_dims * math.log(turns) / (2 * math.log(self.rope_base))

        low = max(math.floor(pair_with(scaling.beta_fast)), 0)
        high = min(math.ceil(pair_with(scaling.beta_slow)), self.rope_dims - 1)
        slow = (np.arange(len(periods), dtype=np.float32) - np.float32(low)) / np.float32(max(high - low, 0.001))
        slow = slow.clip(0, 1)
        blended: np.ndarray = slow / (factor * periods) + (one - slow) / periods
        return blended

    @property
    def rope_magnitude(self) -> float:
        """Factor on cos and sin."""
        return self.rope_scaling.attention_factor if self.rope_scaling else 1.0

    def with_yarn(self, factor: float) -> Config:
        """The same network with its context extended `factor` times by YaRN, as a user may ask for."""
        if not 1.0 <= factor <= 64.0:
            raise RequestError(f"the YaRN factor is {factor}; it must lie between 1 and 64")
        original = self.rope_scaling.original_context if self.rope_scaling else self.context_length
        scaling = RopeScaling("yarn", factor, original, yarn_magnitude(factor))
        return replace(self, rope_scaling=scaling, context_length=int(original * factor))

    @classmethod
    def from_files(cls, files: ModelFiles, compress_ratio: int | None = None) -> Config:
        """Sizes from GGUF metadata or config.json; FileFormatError names what is missing or can't be.

        compress_ratio: the user's block size for attention layers that have indexer tensors while their metadata says 0
        (some converters write 0 everywhere, which would turn block-sparse attention dense).
        """
        from .read_config import read_config

        return read_config(files, compress_ratio)


def yarn_magnitude(factor: float) -> float:
    """The usual attention factor of YaRN."""
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
