"""`shard`: the half of a network that one of two cards holds, a network itself with half the heads and half the words.

Key heads of a gated delta net go with their value heads, query heads with their key and value head, rows of an expert's
gate and up with the columns of its down. Hyper-connections, routers, indexers and the n-gram embedding are on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

import numpy as np
import torch

from ...arch import network as arch
from ...arch.config import Config
from ...arch.tensor import Tensor
from ...errors import MachineError
from .matrix import Source
from .tiles import padded

Ranges = Sequence[tuple[int, int]]
BLOCK = 32  # columns of a product's input are quantised in blocks of so many


@dataclass(frozen=True)
class _Cut:
    """Some rows or columns of a tensor, as ranges of its raw array's last axis but one or of its last."""

    whole: Tensor
    axis: int
    ranges: Ranges

    def of(self, raw: Any) -> Any:
        """They of a raw array, numpy's or torch's."""
        parts = [raw[..., a:b, :] if self.axis == -2 else raw[..., a:b] for a, b in self.ranges]
        if len(parts) == 1:
            return parts[0]
        return torch.cat(parts, self.axis) if isinstance(raw, torch.Tensor) else np.concatenate(parts, self.axis)


def shard(network: arch.Network, card: int, source: Source | None = None) -> tuple[arch.Network, Source | None]:
    """The half of card 0 or 1, without draft layer, and what gives its tensors if `source` gives the whole ones.

    Raises MachineError where heads or experts can't be halved.
    """
    return _Shard(network.config, card, source).network(network)


class _Shard:
    def __init__(self, config: Config, card: int, source: Source | None) -> None:
        for name, count in (
            ("key/value heads", config.kv_heads),
            ("gated delta net's key heads", config.gdn_key_heads),
        ):
            if count % 2:
                raise MachineError(
                    f"{count} {name} can't be shared by two cards; split the layers between them instead"
                )
        self.config, self.card, self.source = config, card, source
        self.cuts: dict[int, _Cut] = {}

    def network(self, network: arch.Network) -> tuple[arch.Network, Source | None]:
        c = self.config
        config = replace(
            c,
            heads=c.heads // 2,
            kv_heads=c.kv_heads // 2,
            gdn_key_heads=c.gdn_key_heads // 2,
            gdn_value_heads=c.gdn_value_heads // 2,
        )
        layers = [self.layer(layer) for layer in network.layers]
        half = replace(network, config=config, layers=layers, output=self.words(network.output), draft=None)
        return half, self.give if self.source else None

    def give(self, tensor: Tensor) -> torch.Tensor:
        """Raw blocks by the source of the whole."""
        assert self.source is not None
        cut = self.cuts.get(id(tensor))
        return self.source(tensor) if cut is None else cut.of(self.source(cut.whole)).contiguous()

    def rows(self, tensor: Tensor, ranges: Ranges) -> Tensor:
        """Some rows."""
        return self._cut(tensor, _Cut(tensor, -2, ranges), -2, ranges)

    def columns(self, tensor: Tensor, ranges: Ranges) -> Tensor:
        """Some columns, on block borders."""
        weights, size = tensor.type.weights, tensor.type.bytes
        if any(a % weights or b % weights for a, b in ranges):
            raise MachineError(
                f"{tensor.name} is {tensor.type.name}, whose blocks of {weights} two cards can't share; "
                "split the layers between them instead"
            )
        raw = [(a // weights * size, b // weights * size) for a, b in ranges]
        return self._cut(tensor, _Cut(tensor, -1, raw), -1, ranges)

    def _cut(self, tensor: Tensor, cut: _Cut, axis: int, ranges: Ranges) -> Tensor:
        shape = list(tensor.shape)
        shape[axis] = sum(b - a for a, b in ranges)
        if self.source:  # which gives the bytes, not the file
            size = list(tensor.data.shape)
            size[axis] = sum(b - a for a, b in cut.ranges)
            data = np.broadcast_to(np.zeros((), np.uint8), size)
        else:
            data = cut.of(tensor.data)
        made = replace(tensor, shape=tuple(shape), data=data)
        self.cuts[id(made)] = cut
        return made

    def words(self, output: Tensor) -> Tensor:
        """The rows of half of the vocabulary, the first half in whole tiles."""
        count = output.shape[0]
        middle = padded(count // 2)
        return self.rows(output, [(middle, count)] if self.card else [(0, middle)])

    def layer(self, layer: arch.Layer) -> arch.Layer:
        mixer = self.gdn(layer.mixer) if isinstance(layer.mixer, arch.Gdn) else self.attention(layer.mixer)
        return replace(layer, mixer=mixer, experts=self.experts(layer.experts))

    def half(self, count: int) -> tuple[int, int]:
        """This card's of `count` things."""
        return self.card * count // 2, (self.card + 1) * count // 2

    def gdn(self, gdn: arch.Gdn) -> arch.Gdn:
        c, dim = self.config, self.config.gdn_dim
        a, b = self.half(c.gdn_key_heads)
        values = [(first + a, first + b) for first in range(0, c.gdn_value_heads, c.gdn_key_heads)]
        wide = [(first * dim, last * dim) for first, last in values]
        keys, above = c.gdn_key_heads * dim, 2 * c.gdn_key_heads * dim
        channels = [(a * dim, b * dim), (keys + a * dim, keys + b * dim), *((above + i, above + j) for i, j in wide)]
        return replace(
            gdn,
            qkv=self.rows(gdn.qkv, channels),
            gate=self.rows(gdn.gate, wide),
            conv=self.rows(gdn.conv, channels),
            dt_bias=self.columns(gdn.dt_bias, values),
            a=self.columns(gdn.a, values),
            beta=self.rows(gdn.beta, values),
            alpha=self.rows(gdn.alpha, values),
            out=self.columns(gdn.out, wide),
        )

    def attention(self, attention: arch.Attention) -> arch.Attention:
        c, dim = self.config, self.config.head_dim
        a, b = self.half(c.heads)
        key, last = self.half(c.kv_heads)
        return replace(
            attention,
            q=self.rows(attention.q, [(a * 2 * dim, b * 2 * dim)]),
            k=self.rows(attention.k, [(key * dim, last * dim)]),
            v=self.rows(attention.v, [(key * dim, last * dim)]),
            output=self.columns(attention.output, [(a * dim, b * dim)]),
        )

    def experts(self, experts: arch.Experts) -> arch.Experts:
        gate, up, down = self.expert(experts.gate, experts.up, experts.down)
        shared = self.expert(experts.shared_gate, experts.shared_up, experts.shared_down)
        return replace(
            experts, gate=gate, up=up, down=down, shared_gate=shared[0], shared_up=shared[1], shared_down=shared[2]
        )

    def expert(self, gate: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Halves as even as blocks allow; columns that pad go to the second."""
        size, wide, step = gate.shape[-2], down.shape[-1], lcm(down.type.weights, BLOCK)
        middle = -(-size // 2 // step) * step
        if not 0 < middle < size:
            raise MachineError(
                f"{down.name} is {down.type.name}, whose blocks of {step} can't be halved in {size} columns; "
                "split the layers between the cards instead"
            )
        rows = [(middle, size)] if self.card else [(0, middle)]
        columns = [(middle, wide)] if self.card else [(0, middle)]
        return self.rows(gate, rows), self.rows(up, rows), self.columns(down, columns)
