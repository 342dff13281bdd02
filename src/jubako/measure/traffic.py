"""What one token reads: the bytes a decode step moves at the least, from the network's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

from ..arch.config import Config
from ..arch.tensor import Tensor
from ..arch.weights import Experts, Layer, Network


@dataclass(frozen=True)
class Traffic:
    """Bytes per decoded token.

    dense    weights that every token reads: all but routed experts and tables read by row
    experts  the routed experts of one token
    rows     its rows of the embedding and of the n-gram table
    state    recurrent state, read and written
    cache    keys and values attended to, and index keys scored, at the depth asked for
    """

    dense: int
    experts: int
    rows: int
    state: int
    cache: int

    @property
    def weights(self) -> int:
        """What is read of the file."""
        return self.dense + self.experts + self.rows

    @property
    def total(self) -> int:
        return self.weights + self.state + self.cache


def traffic(network: Network, depth: int = 0, kv_bits: int = 8) -> Traffic:
    """The bytes of one trunk step after `depth` tokens; the draft layer is not part of it."""
    config = network.config
    dense = _nbytes(network.head_mix) + network.output.nbytes
    experts = 0
    for layer in network.layers:
        routed = expert_bytes(layer.experts)
        dense += _nbytes(layer) - routed * config.experts
        experts += routed * config.experts_used
        if layer.ngram is not None:
            dense -= layer.ngram.table.nbytes
    rows = network.embed.nbytes // config.vocabulary + _ngram_rows(network)
    cache = sum(_cache_bytes(config, layer, depth, kv_bits) for layer in range(config.layers))
    return Traffic(dense, experts, rows, _state_bytes(config), cache)


def expert_bytes(experts: Experts) -> int:
    """Bytes of one routed expert of a layer."""
    return sum(tensor.nbytes // tensor.shape[0] for tensor in (experts.gate, experts.up, experts.down))


def _nbytes(part: object) -> int:
    return sum(tensor.nbytes for tensor in _tensors(part))


def _tensors(part: object) -> Iterator[Tensor]:
    if isinstance(part, Tensor):
        yield part
    elif is_dataclass(part):
        for field in fields(part):
            yield from _tensors(getattr(part, field.name))


def _ngram_rows(network: Network) -> int:
    config, layers = network.config, [layer for layer in network.layers if layer.ngram is not None]
    if config.ngram is None or not layers:
        return 0
    table = _table(layers[0])
    return table.nbytes // table.shape[0] * config.ngram.heads


def _table(layer: Layer) -> Tensor:
    assert layer.ngram is not None
    return layer.ngram.table


def _state_bytes(config: Config) -> int:
    """float32 state of the GDN layers, once read and once written."""
    memory = config.gdn_value_heads * config.gdn_dim * config.gdn_dim
    past = config.gdn_channels * (config.conv_kernel - 1)
    return 2 * 4 * (memory + past) * sum(config.recurrent)


def _cache_bytes(config: Config, layer: int, depth: int, kv_bits: int) -> int:
    """Key/value records of the tokens attended to, and float32 index keys of all blocks."""
    if config.recurrent[layer]:
        return 0
    values = 2 * config.kv_heads * config.head_dim
    record = values + values // 32 * 4 if kv_bits == 8 else 2 * values + 2 * config.kv_heads * 4
    ratio = config.compress_ratios[layer]
    if not ratio:
        return depth * record
    scored = depth // ratio * config.index_dim * 4 if depth > config.index_budget else 0
    return min(depth, config.index_budget + ratio - 1) * record + scored
