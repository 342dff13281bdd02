"""A network's leaves made ready for a GPU: matrices in planar layouts, projections that share an input side by side.

The classes follow their namesakes in `arch.weights`; small parts are float32 tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...arch import weights as arch
from ...arch.config import Config
from ...arch.tensor import Tensor
from ...quant import BY_NAME, decode
from .boxes import Boxes
from .draft_join import TOGETHER, Join
from .experts import Experts
from .far_table import FarTable
from .hyper import HyperMix
from .kinds import plain_type
from .matrix import Matrix, Projections, Source, beside, matrix, projections, upload
from .slots import filled
from .table import HostTable
from .tiles import PAIR, UNIT, fits, is_tiled

TablePlace = bool | Callable[[Tensor, torch.device], HostTable | FarTable]


@dataclass(frozen=True, slots=True, eq=False)
class Gdn:
    """A gated delta net. projections: qkv, gate, beta, alpha; conv [kernel, C], dt_bias, a [heads], norm [dim]."""

    projections: Projections
    conv: torch.Tensor
    dt_bias: torch.Tensor
    a: torch.Tensor
    norm: torch.Tensor
    out: Matrix


@dataclass(frozen=True, slots=True, eq=False)
class Indexer:
    """What chooses blocks of an attention layer; its matrices are among the layer's projections."""

    q_norm: torch.Tensor
    k_norm: torch.Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """An attention layer. projections: q, k, v, and with an indexer its q and k."""

    projections: Projections
    output: Matrix
    q_norm: torch.Tensor
    k_norm: torch.Tensor
    indexer: Indexer | None
    ratio: int


@dataclass(frozen=True, slots=True, eq=False)
class Ngram:
    """The n-gram embedding. projections: key, value; the table may lie in host memory."""

    projections: Projections
    norm_key: torch.Tensor
    norm_query: torch.Tensor
    norm_conv: torch.Tensor
    conv: torch.Tensor
    table: Matrix | HostTable | FarTable


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """One layer."""

    index: int
    hc_attn: HyperMix
    mixer: Gdn | Attention
    hc_ffn: HyperMix
    experts: Experts
    ngram: Ngram | None


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """The draft layer; what it embeds with and its output are the trunk's where the file has no others."""

    join: Join
    output: Matrix
    layer: Layer
    head_mix: HyperMix


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """All of it, or what one of several cards holds: its layers, and None for what other cards have."""

    config: Config
    embed: Matrix | None
    output: Matrix | None
    head_mix: HyperMix | None
    layers: list[Layer]
    draft: Draft | None


def prepare(
    network: arch.Network,
    device: torch.device,
    source: Source | None = None,
    host_table: TablePlace = False,
    layers: range | None = None,
    boxes: Boxes | None = None,
) -> Network:
    """Every weight on the device, repacked there tensor by tensor.

    source gives a tensor's raw blocks on the device (default: a copy of the file's); host_table leaves the n-gram table
    in pinned host memory, or says where else it lies. layers: only these, the embedding with the first of all, head and
    draft layer with the last. boxes: has the routed experts, where not all are to lie on the device.
    """
    preparation = _Preparation(network.config, device, source, host_table, boxes)
    return preparation.network(network, range(len(network.layers)) if layers is None else layers)


class _Preparation:
    """One pass over a network."""

    def __init__(
        self, config: Config, device: torch.device, source: Source | None, host_table: TablePlace, boxes: Boxes | None
    ) -> None:
        self.config, self.device, self.source, self.host_table = config, device, source, host_table
        self.boxes = boxes

    def network(self, network: arch.Network, run: range) -> Network:
        first, last = run.start == 0, run.stop == len(network.layers)
        drafts = network.draft if last else None
        reads = first or (drafts is not None and drafts.embed is None)
        tied = last and network.output is network.embed
        embed = self.matrix(network.embed) if reads or tied else None
        output = embed if tied else self.matrix(network.output) if last else None
        layers = [self.layer(network.layers[index]) for index in run]
        head_mix = self.hyper_mix(network.head_mix) if last else None
        draft = self.draft(drafts, embed, output) if drafts else None
        return Network(self.config, embed, output, head_mix, layers, draft)

    def matrix(self, *tensors: Tensor) -> Matrix:
        return matrix(tensors, self.device, self.source)

    def projections(self, *tensors: Tensor) -> Projections:
        return projections(tensors, self.device, self.source)

    def floats(self, tensor: Tensor) -> torch.Tensor:
        raw = self.source(tensor) if self.source else upload(tensor, self.device)
        values = raw.contiguous().view(torch.float32) if tensor.type.name == "F32" else decode(tensor.type, raw)
        return values.reshape(tensor.shape).contiguous()

    def hyper_mix(self, mix: arch.HyperMix) -> HyperMix:
        wide = (mix.down, mix.up)
        tiled = all(fits(tensor.type, tensor.shape[-1], PAIR) for tensor in wide) and mix.down.shape[-1] % UNIT == 0
        step = PAIR if tiled else None
        down, up = (matrix([tensor], self.device, self.source, step) for tensor in wide)
        inject = None
        if mix.inject is not None:
            inject = self.numbers(mix.inject) if is_tiled(down.type) else self.matrix(mix.inject)
        return HyperMix(self.floats(mix.norm), down, up, inject, self.config.streams, self.config.eps)

    def numbers(self, tensor: Tensor) -> Matrix:
        """A small matrix as plain numbers without a factor, as hyper_long.py wants it."""
        if plain_type(tensor.type.id) and tensor.scale is None:
            return self.matrix(tensor)
        factor = 1.0 if tensor.scale is None else float(tensor.scale.reshape(-1)[0])
        values = self.floats(tensor) * factor
        rows, cols = tensor.shape
        return Matrix(values.view(torch.uint8).reshape(-1), BY_NAME["F32"], rows, cols)

    def layer(self, layer: arch.Layer) -> Layer:
        return Layer(
            layer.index,
            self.hyper_mix(layer.hc_attn),
            self.gdn(layer.mixer) if isinstance(layer.mixer, arch.Gdn) else self.attention(layer.mixer),
            self.hyper_mix(layer.hc_ffn),
            self.experts(layer.experts),
            self.ngram(layer.ngram) if layer.ngram else None,
        )

    def gdn(self, gdn: arch.Gdn) -> Gdn:
        return Gdn(
            self.projections(gdn.qkv, gdn.gate, gdn.beta, gdn.alpha),
            self.floats(gdn.conv).t().contiguous(),
            self.floats(gdn.dt_bias),
            self.floats(gdn.a),
            self.floats(gdn.norm),
            self.matrix(gdn.out),
        )

    def attention(self, attention: arch.Attention) -> Attention:
        parts, indexer = [attention.q, attention.k, attention.v], None
        if attention.indexer is not None:
            parts += [attention.indexer.q, attention.indexer.k]
            indexer = Indexer(self.floats(attention.indexer.q_norm), self.floats(attention.indexer.k_norm))
        return Attention(
            self.projections(*parts),
            self.matrix(attention.output),
            self.floats(attention.q_norm),
            self.floats(attention.k_norm),
            indexer,
            attention.ratio,
        )

    def experts(self, experts: arch.Experts) -> Experts:
        together = experts.router.type is experts.shared_router.type
        routers = (experts.router, experts.shared_router)
        if self.boxes is None:
            routed, away = filled(experts.gate, experts.up, experts.down, self.device, self.source), None
        else:
            routed, away = self.boxes.of(experts)
        return Experts(
            (self.matrix(*routers),) if together else tuple(self.matrix(tensor) for tensor in routers),
            routed,
            filled(experts.shared_gate, experts.shared_up, experts.shared_down, self.device, self.source),
            away,
        )

    def ngram(self, ngram: arch.Ngram) -> Ngram:
        return Ngram(
            self.projections(ngram.key, ngram.value),
            self.floats(ngram.norm_key),
            self.floats(ngram.norm_query),
            self.floats(ngram.norm_conv),
            self.floats(ngram.conv),
            self.table(ngram.table),
        )

    def table(self, tensor: Tensor) -> Matrix | HostTable | FarTable:
        if callable(self.host_table):
            return self.host_table(tensor, self.device)
        return HostTable.of(tensor, self.device) if self.host_table else self.matrix(tensor)

    def draft(self, draft: arch.Draft, embed: Matrix | None, output: Matrix | None) -> Draft:
        own_embed = self.matrix(draft.embed) if draft.embed is not None else embed
        own_output = self.matrix(draft.output) if draft.output is not None else output
        assert own_embed is not None and own_output is not None
        join = Join(
            own_embed,
            beside((draft.fc_embedding, draft.fc_hidden), self.device, self.source),
            self.floats(draft.norm_hidden),
            self.floats(draft.norm_embedding),
            torch.ones(TOGETHER, self.config.streams, device=self.device),
            self.config.eps,
        )
        return Draft(join, own_output, self.layer(draft.layer), self.hyper_mix(draft.head_mix))
