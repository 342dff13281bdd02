"""A network's leaves made ready for the kernels: views of the file's blocks, and the small float32 parts copied.

The classes follow their namesakes in `arch.weights`, with `_cpu.Weight` for matrices. `kernel` is the native object
that holds a part's small weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ... import _cpu
from ...arch import weights as arch
from ...arch.config import Config
from ...arch.tensor import Tensor
from ...errors import MachineError

Weight = _cpu.Weight


@dataclass(frozen=True, slots=True)
class Gdn:
    """A gated delta net. `projections` are what its input goes through: qkv, gate, beta, alpha."""

    kernel: _cpu.Gdn
    projections: tuple[Weight, Weight, Weight, Weight]
    out: Weight


@dataclass(frozen=True, slots=True)
class Indexer:
    """What chooses blocks of an attention layer."""

    kernel: _cpu.Indexer
    q: Weight
    k: Weight


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention layer. `projections` are what its input goes through: q, k, v, and with an indexer its q and k."""

    kernel: _cpu.Attention
    projections: tuple[Weight, ...]
    output: Weight
    indexer: Indexer | None
    ratio: int


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a layer and the one all tokens share."""

    router: Weight
    gate: Weight
    up: Weight
    down: Weight
    shared_router: Weight
    shared_gate: Weight
    shared_up: Weight
    shared_down: Weight


@dataclass(frozen=True, slots=True)
class Ngram:
    """The n-gram embedding: its table, and how it enters the streams."""

    kernel: _cpu.Ngram
    table: Weight


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; hyper-connection mixers are native objects."""

    index: int
    hc_attn: _cpu.HyperMix
    mixer: Gdn | Attention
    hc_ffn: _cpu.HyperMix
    experts: Experts
    ngram: Ngram | None


@dataclass(frozen=True, slots=True)
class Draft:
    """The draft layer; embed and output are the trunk's where the file has no others. norms are float32 arrays."""

    embed: Weight
    output: Weight
    fc_embedding: Weight
    fc_hidden: Weight
    norm_embedding: np.ndarray
    norm_hidden: np.ndarray
    layer: Layer
    head_mix: _cpu.HyperMix


@dataclass(frozen=True, slots=True)
class Network:
    """All of it."""

    config: Config
    embed: Weight
    output: Weight
    head_mix: _cpu.HyperMix
    layers: list[Layer]
    draft: Draft | None


def prepare(network: arch.Network) -> Network:
    """Wrap every weight. Nothing large is copied. Raises MachineError for sizes that the kernels can't take."""
    try:
        return _Preparation(network.config).network(network)
    except ValueError as error:
        raise MachineError(f"the CPU kernels can't run this network: {error}") from error


def weight(tensor: Tensor) -> Weight:
    """A matrix or a stack of them, in place."""
    return _cpu.Weight(tensor.data, tensor.type.id, tensor.scale)


def floats(tensor: Tensor) -> np.ndarray:
    """A small tensor decoded: contiguous float32."""
    return np.ascontiguousarray(tensor.decoded())


class _Preparation:
    """One pass over a network. All attention layers share one table of rotations."""

    def __init__(self, config: Config) -> None:
        self.config = config
        frequencies = config.rope_frequencies_numpy()
        self.rope = _cpu.Rope(frequencies, config.rope_magnitude, config.context_length)

    def network(self, network: arch.Network) -> Network:
        embed, output = weight(network.embed), weight(network.output)
        layers = [self.layer(layer) for layer in network.layers]
        draft = self.draft(network.draft, embed, output) if network.draft else None
        return Network(self.config, embed, output, self.hyper_mix(network.head_mix), layers, draft)

    def hyper_mix(self, mix: arch.HyperMix) -> _cpu.HyperMix:
        inject = weight(mix.inject) if mix.inject is not None else None
        return _cpu.HyperMix(
            floats(mix.norm), weight(mix.down), weight(mix.up), inject, self.config.streams, self.config.eps
        )

    def layer(self, layer: arch.Layer) -> Layer:
        mixer = self.gdn(layer.mixer) if isinstance(layer.mixer, arch.Gdn) else self.attention(layer.mixer)
        return Layer(
            layer.index,
            self.hyper_mix(layer.hc_attn),
            mixer,
            self.hyper_mix(layer.hc_ffn),
            self.experts(layer.experts),
            self.ngram(layer.ngram) if layer.ngram else None,
        )

    def gdn(self, gdn: arch.Gdn) -> Gdn:
        kernel = _cpu.Gdn(
            floats(gdn.conv),
            floats(gdn.dt_bias),
            floats(gdn.a),
            floats(gdn.norm),
            self.config.gdn_key_heads,
            self.config.eps,
        )
        projections = (weight(gdn.qkv), weight(gdn.gate), weight(gdn.beta), weight(gdn.alpha))
        return Gdn(kernel, projections, weight(gdn.out))

    def attention(self, attention: arch.Attention) -> Attention:
        config = self.config
        kernel = _cpu.Attention(
            floats(attention.q_norm), floats(attention.k_norm), config.heads, config.kv_heads, config.eps, self.rope
        )
        projections = [weight(attention.q), weight(attention.k), weight(attention.v)]
        indexer = self.indexer(attention.indexer, attention.ratio) if attention.indexer else None
        if indexer:
            projections += [indexer.q, indexer.k]
        return Attention(kernel, tuple(projections), weight(attention.output), indexer, attention.ratio)

    def indexer(self, indexer: arch.Indexer, ratio: int) -> Indexer:
        config = self.config
        kernel = _cpu.Indexer(
            floats(indexer.q_norm),
            floats(indexer.k_norm),
            config.index_heads,
            ratio,
            config.index_blocks(ratio),
            config.eps,
            self.rope,
        )
        return Indexer(kernel, weight(indexer.q), weight(indexer.k))

    def experts(self, experts: arch.Experts) -> Experts:
        return Experts(
            weight(experts.router),
            weight(experts.gate),
            weight(experts.up),
            weight(experts.down),
            weight(experts.shared_router),
            weight(experts.shared_gate),
            weight(experts.shared_up),
            weight(experts.shared_down),
        )

    def ngram(self, ngram: arch.Ngram) -> Ngram:
        assert self.config.ngram is not None
        kernel = _cpu.Ngram(
            weight(ngram.key),
            weight(ngram.value),
            floats(ngram.norm_key),
            floats(ngram.norm_query),
            floats(ngram.norm_conv),
            floats(ngram.conv),
            self.config.streams,
            self.config.ngram.size,
            self.config.eps,
        )
        return Ngram(kernel, weight(ngram.table))

    def draft(self, draft: arch.Draft, embed: Weight, output: Weight) -> Draft:
        return Draft(
            weight(draft.embed) if draft.embed is not None else embed,
            weight(draft.output) if draft.output is not None else output,
            weight(draft.fc_embedding),
            weight(draft.fc_hidden),
            floats(draft.norm_embedding),
            floats(draft.norm_hidden),
            self.layer(draft.layer),
            self.hyper_mix(draft.head_mix),
        )
