"""From tensor names to the fields of the network, every shape checked against the sizes in the metadata."""

from __future__ import annotations

import logging
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import FileFormatError
from ..quant.types import block_type
from . import hf_tensors
from .config import Config
from .metadata import missing_tensors
from .network import Attention, Draft, Experts, Gdn, HyperMix, Indexer, Layer, Network, Ngram
from .tensor import Tensor

if TYPE_CHECKING:
    from ..files import ModelFiles
    from ..files.tensors import StoredTensor

__all__ = [
    "Attention",
    "Draft",
    "Experts",
    "Gdn",
    "HyperMix",
    "Indexer",
    "Layer",
    "Network",
    "Ngram",
    "Tensor",
    "load_network",
]
log = logging.getLogger(__name__)
_STAND_IN = Tensor("missing", block_type("F32"), (0, 0), np.empty((0, 0), dtype=np.uint8), Path(), 0)


def load_network(files: ModelFiles, compress_ratio: int | None = None) -> Network:
    """The network held by the files, as views of their bytes.

    compress_ratio: see `Config.from_files`. Raises MissingTensorError naming all that lacks, FileFormatError for a
    tensor of another shape than the sizes ask for.
    """
    config = Config.from_files(files, compress_ratio)
    stored = files.tensors if files.kind == "gguf" else hf_tensors.tensors(files, config)
    return _Loader(config, stored, str(files.paths[0])).network()


class _Loader:
    """One pass over the tensors: `used` grows with every take, `missing` gathers what was needed and not found."""

    def __init__(self, config: Config, stored: dict[str, StoredTensor], source: str) -> None:
        self.config = config
        self.stored = stored
        self.source = source
        self.used: set[str] = set()
        self.missing: list[str] = []

    def network(self) -> Network:
        config = self.config
        wide = config.streams * config.hidden
        embed = self.take("token_embd.weight", (config.vocabulary, config.hidden))
        output = self.optional("output.weight", (config.vocabulary, config.hidden)) or embed
        head_mix = self.hyper("output_hc", inject=False)
        layers = [self.layer(index, recurrent) for index, recurrent in enumerate(config.recurrent)]
        draft = self.draft(f"blk.{config.layers}.", wide)
        if self.missing:
            raise missing_tensors(self.source, self.missing)
        unused = sorted(self.stored.keys() - self.used)
        return Network(config, embed, output, head_mix, layers, draft, unused)

    def optional(self, name: str, shape: tuple[int, ...], padded: bool = False) -> Tensor | None:
        """The tensor, or None. One of another shape but as many weights is reshaped if no block straddles rows."""
        stored = self.stored.get(name)
        if stored is None:
            return None
        self.used.add(name)
        tensor = Tensor.of(stored, self.scale(name, shape))
        if stored.shape == shape:
            return tensor
        if padded and stored.shape[:-1] == shape[:-1] and 0 < stored.shape[-1] - shape[-1] < 256:
            return tensor
        flat = [size for size in stored.shape if size != 1] == [size for size in shape if size != 1]
        gamma = len(shape) == 1 and prod(stored.shape) == shape[0]
        if (flat or gamma) and shape[-1] % stored.type.weights == 0:
            return tensor.reshaped(shape)
        raise FileFormatError(
            f"{stored.file}: {name} has shape {list(stored.shape)} (row length last); "
            f"the sizes in the metadata ask for {list(shape)}"
        )

    def take(self, names: str | tuple[str, ...], shape: tuple[int, ...], padded: bool = False) -> Tensor:
        """A needed tensor under the first of its spellings; a stand-in when it is missing, and `network` will raise."""
        names = (names,) if isinstance(names, str) else names
        for name in names:
            tensor = self.optional(name, shape, padded)
            if tensor is not None:
                return tensor
        self.missing.append(" or ".join(names))
        return _STAND_IN

    def scale(self, name: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """The `.scale` side tensor of an NVFP4 tensor: one factor, or one per expert."""
        side = self.stored.get(name.removesuffix(".weight") + ".scale")
        if side is None:
            return None
        self.used.add(side.name)
        values = side.decoded().reshape(-1)
        if len(values) != 1 and not (len(shape) == 3 and len(values) == shape[0]):
            raise FileFormatError(f"{side.file}: {side.name} has {len(values)} factors for a tensor of {list(shape)}")
        return values

    def hyper(self, prefix: str, inject: bool = True, other: str = "") -> HyperMix:
        """`other` is a second spelling of the prefix."""
        streams, wide, rank = self.config.streams, self.config.streams * self.config.hidden, self.config.hyper_rank

        def spelled(part: str) -> tuple[str, ...]:
            return tuple(f"{name}_{part}.weight" for name in (prefix, other) if name)

        return HyperMix(
            norm=self.take(spelled("norm"), (wide,)),
            down=self.take(spelled("down"), (rank, wide)),
            up=self.take(spelled("up"), (wide, rank)),
            inject=self.take(spelled("inject"), (streams, wide)) if inject else None,
        )

    def layer(self, index: int, recurrent: bool) -> Layer:
        prefix, ngram = f"blk.{index}.", self.config.ngram
        return Layer(
            index=index,
            hc_attn=self.hyper(prefix + "hc_attn"),
            mixer=self.gdn(prefix) if recurrent else self.attention(prefix, self.config.compress_ratios[index]),
            hc_ffn=self.hyper(prefix + "hc_ffn"),
            experts=self.experts(prefix),
            ngram=self.ngram(prefix) if ngram is not None and ngram.layer == index else None,
        )

    def gdn(self, prefix: str) -> Gdn:
        config = self.config
        channels, inner, heads = config.gdn_channels, config.gdn_inner, config.gdn_value_heads
        return Gdn(
            qkv=self.take(prefix + "attn_qkv.weight", (channels, config.hidden)),
            gate=self.take(prefix + "attn_gate.weight", (inner, config.hidden)),
            conv=self.take(prefix + "ssm_conv1d.weight", (channels, config.conv_kernel)),
            dt_bias=self.take(prefix + "ssm_dt.bias", (heads,)),
            a=self.take(prefix + "ssm_a", (heads,)),
            beta=self.take(prefix + "ssm_beta.weight", (heads, config.hidden)),
            alpha=self.take(prefix + "ssm_alpha.weight", (heads, config.hidden)),
            norm=self.take(prefix + "ssm_norm.weight", (config.gdn_dim,)),
            out=self.take(prefix + "ssm_out.weight", (config.hidden, inner)),
        )

    def attention(self, prefix: str, ratio: int) -> Attention:
        config = self.config
        query, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        indexer = None
        if ratio and any(name.startswith(prefix + "indexer.") for name in self.stored):
            indexer = Indexer(
                q=self.take(prefix + "indexer.q_proj.weight", (config.index_heads * config.index_dim, config.hidden)),
                k=self.take(prefix + "indexer.k_proj.weight", (config.index_dim, config.hidden)),
                q_norm=self.take(prefix + "indexer.q_norm.weight", (config.index_dim,)),
                k_norm=self.take(prefix + "indexer.k_norm.weight", (config.index_dim,)),
            )
        elif ratio:
            log.warning("%s: %s has no indexer tensors: its attention runs dense", self.source, prefix.rstrip("."))
        return Attention(
            q=self.take(prefix + "attn_q.weight", (2 * query, config.hidden)),
            k=self.take(prefix + "attn_k.weight", (keys, config.hidden)),
            v=self.take(prefix + "attn_v.weight", (keys, config.hidden)),
            output=self.take(prefix + "attn_output.weight", (config.hidden, query)),
            q_norm=self.take(prefix + "attn_q_norm.weight", (config.head_dim,)),
            k_norm=self.take(prefix + "attn_k_norm.weight", (config.head_dim,)),
            indexer=indexer,
            ratio=ratio if indexer else 0,
        )

    def experts(self, prefix: str) -> Experts:
        config = self.config
        count, size, shared, hidden = config.experts, config.expert_size, config.shared_expert_size, config.hidden
        fused = self.optional(prefix + "ffn_gate_up_exps.weight", (count, 2 * size, hidden))
        if fused is not None:
            gate, up = fused.row_range(0, size), fused.row_range(size, 2 * size)
        else:
            gate = self.take(prefix + "ffn_gate_exps.weight", (count, size, hidden))
            up = self.take(prefix + "ffn_up_exps.weight", (count, size, hidden))
        return Experts(
            router=self.take(prefix + "ffn_gate_inp.weight", (count, hidden)),
            gate=gate,
            up=up,
            down=self.take(prefix + "ffn_down_exps.weight", (count, hidden, size), padded=True),
            shared_router=self.take(prefix + "ffn_gate_inp_shexp.weight", (1, hidden)),
            shared_gate=self.take(prefix + "ffn_gate_shexp.weight", (shared, hidden)),
            shared_up=self.take(prefix + "ffn_up_shexp.weight", (shared, hidden)),
            shared_down=self.take(prefix + "ffn_down_shexp.weight", (hidden, shared), padded=True),
        )

    def ngram(self, prefix: str) -> Ngram:
        config, ngram = self.config, self.config.ngram
        assert ngram is not None
        wide, width = config.streams * config.hidden, ngram.heads * ngram.width
        name = "per_layer_token_embd.weight"
        rows = self.stored[name].shape[0] if name in self.stored else ngram.rows
        if rows < ngram.rows:
            raise FileFormatError(f"{self.source}: {name} has {rows} rows; ple.head_offsets reach {ngram.rows}")
        return Ngram(
            key=self.take(prefix + "ple_key.weight", (wide, width)),
            value=self.take(prefix + "ple_value.weight", (config.hidden, width)),
            norm_key=self.take(prefix + "ple_norm_key.weight", (wide,)),
            norm_query=self.take(prefix + "ple_norm_query.weight", (wide,)),
            norm_conv=self.take(prefix + "ple_norm_conv.weight", (wide,)),
            conv=self.take(prefix + "ple_conv1d.weight", (wide, ngram.conv_kernel)),
            table=self.take(name, (rows, ngram.width)),
        )

    def draft(self, prefix: str, wide: int) -> Draft | None:
        config, nextn = self.config, prefix + "nextn."
        if not config.draft_layers:
            return None
        if not any(name.startswith(prefix) for name in self.stored):
            log.warning("%s: the draft layer that the metadata announces is not in these files", self.source)
            return None
        hidden = config.hidden
        joined = self.optional(nextn + "eh_proj.weight", (hidden, 2 * hidden))
        if joined is None:
            fc_embedding = self.take((nextn + "fc_embd.weight", nextn + "eh_proj.weight"), (hidden, hidden))
            fc_hidden = self.take((nextn + "fc_hidden.weight", nextn + "eh_proj.weight"), (hidden, hidden))
        elif hidden % joined.type.weights:
            raise FileFormatError(f"{self.source}: {joined.name}: blocks of {joined.type.name} straddle its two halves")
        else:
            fc_embedding, fc_hidden = joined.column_range(0, hidden), joined.column_range(hidden, 2 * hidden)
        return Draft(
            embed=self.optional(nextn + "embed_tokens.weight", (config.vocabulary, hidden)),
            output=self.draft_output(nextn),
            fc_embedding=fc_embedding,
            fc_hidden=fc_hidden,
            norm_embedding=self.take(nextn + "enorm.weight", (hidden,)),
            norm_hidden=self.take(nextn + "hnorm.weight", (wide,)),
            layer=self.layer(config.layers, recurrent=False),
            head_mix=self.hyper(nextn + "hc_head", inject=False, other=nextn + "hc"),
        )

    def draft_output(self, nextn: str) -> Tensor | None:
        """The draft layer's own output matrix, if any: by name, or a spare matrix of that shape called a head."""
        shape = (self.config.vocabulary, self.config.hidden)
        name = nextn + "shared_head_head.weight"
        if name in self.stored and self.stored[name].shape != shape:
            log.warning("%s: %s has shape %s and stays unused", self.source, name, list(self.stored[name].shape))
            return None
        spare = [
            name
            for name, tensor in self.stored.items()
            if name not in self.used and tensor.shape == shape and ("head" in name or "output" in name)
        ]
        return self.optional(name if name in self.stored else spare[0], shape) if name in self.stored or spare else None
