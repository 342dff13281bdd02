"""What a model asks for, counted from its header alone: bytes by part and block type, sizes of experts and of state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property, lru_cache
from math import prod

from ..arch.config import Config
from ..arch.network import Attention, Draft, Experts, Layer
from ..arch.tensor import Tensor
from ..arch.weights import Network
from ..quant import block_type

CARD_COLUMNS = 16  # columns that a GPU's state can take back
CARD_CARRY = 64  # tokens that its draft layer may lag behind
PAGE = 64  # tokens


@dataclass(frozen=True)
class Matrix:
    """A stored matrix (or vector, one row)."""

    kind: str
    rows: int
    columns: int

    @property
    def bytes(self) -> int:
        return self.rows * block_type(self.kind).row_bytes(self.columns)

    @property
    def weights(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True)
class ExpertShape:
    """One routed expert of a layer: gate and up [size, hidden], down [hidden, columns]."""

    gate: Matrix
    up: Matrix
    down: Matrix

    @cached_property
    def record(self) -> int:
        """Bytes in the file's own blocks."""
        return self.gate.bytes + self.up.bytes + self.down.bytes

    @property
    def weights(self) -> int:
        return self.gate.weights + self.up.weights + self.down.weights

    @cached_property
    def by_kind(self) -> dict[str, int]:
        """Bytes by block type."""
        return sizes((self.gate, self.up, self.down))


@dataclass(frozen=True)
class Census:
    """All of a model.

    dense     what every token reads of the trunk, its head included; the embedding is not among it
    draft     what a pass of the draft layer reads, routed experts left out; its head is the trunk's if it has none
    stored    all matrices but routed experts and the n-gram table, each once: what must lie in fast memory
    embed     the embedding; `rows` bytes of it and of the n-gram table are read a token
    table     bytes of the n-gram table
    experts   per layer, the draft layer last
    ratios    per layer its tokens per index block; 0 where attention is dense, None in a GDN layer
    """

    config: Config
    dense: tuple[Matrix, ...]
    draft: tuple[Matrix, ...]
    stored: tuple[Matrix, ...]
    embed: Matrix
    rows: int
    table: int
    experts: tuple[ExpertShape, ...]
    ratios: tuple[int | None, ...]

    @property
    def kinds(self) -> list[str]:
        """The block types that are computed with, those with most bytes first."""
        counts = Counter(sizes(self.stored))
        for shape in self.experts:
            counts.update({kind: size * self.config.experts for kind, size in shape.by_kind.items()})
        return [kind for kind, _ in counts.most_common()]

    @property
    def expert_bytes(self) -> int:
        """All routed experts in the file's own blocks."""
        return sum(shape.record for shape in self.experts) * self.config.experts

    @property
    def stored_bytes(self) -> int:
        """Everything else but the n-gram table."""
        return sum(matrix.bytes for matrix in self.stored)

    @property
    def total(self) -> int:
        return self.expert_bytes + self.stored_bytes + self.table

    @property
    def tied(self) -> bool:
        """Whether the embedding is the head as well; else it is only read by row."""
        return sum(matrix.rows == self.embed.rows for matrix in self.stored) == 1

    @property
    def trunk_experts(self) -> tuple[ExpertShape, ...]:
        return self.experts[: self.config.layers]

    @property
    def attention_layers(self) -> int:
        """Of the trunk."""
        return sum(ratio is not None for ratio in self.ratios[: self.config.layers])

    @property
    def state_bytes(self) -> int:
        """float32 state of the GDN layers of one sequence, read and written by every step."""
        config = self.config
        memory = config.gdn_inner * config.gdn_dim + config.gdn_channels * (config.conv_kernel - 1)
        return 2 * 4 * memory * sum(config.recurrent)

    def kv_token_bytes(self, kv_bits: int, card: bool) -> int:
        """Keys, values and pooled index keys of one token in all attention layers; on a card or in main memory."""
        return sum(_record(self.config, ratio, kv_bits, card) for ratio in self.ratios if ratio is not None)

    def cell_bytes(self, kv_bits: int, card: bool) -> int:
        """Of these, keys and values alone."""
        return sum(_record(self.config, 0, kv_bits, card) for ratio in self.ratios if ratio is not None)

    def cache_bytes(self, depth: int, kv_bits: int, card: bool, columns: int = 1) -> int:
        """What a step reads of them after `depth` tokens: index keys once, of the rest what each column chose."""
        config, total = self.config, columns * self.chosen_bytes(depth, kv_bits, card)
        for ratio in self.ratios[: config.layers]:
            if ratio is not None and depth > config.index_budget:
                total += depth * (_record(config, ratio, kv_bits, card) - _record(config, 0, kv_bits, card))
        return total

    def chosen_bytes(self, depth: int, kv_bits: int, card: bool) -> int:
        """Keys and values that a column chooses after `depth` tokens."""
        config = self.config
        chosen = (
            min(depth, config.index_budget + ratio - 1) if ratio else depth
            for ratio in self.ratios[: config.layers]
            if ratio is not None
        )
        return sum(chosen) * _record(config, 0, kv_bits, card)

    def fixed_bytes(self, sequences: int, context: int) -> int:
        """State of the sequences on a card that has one size however much they read: `ops.gpu.state.StatePool`."""
        config = self.config
        wide = config.streams * config.hidden
        ring = config.conv_kernel - 1 + CARD_COLUMNS
        steps = 2 * CARD_COLUMNS * (config.gdn_key_heads * config.gdn_dim + config.gdn_inner + config.gdn_value_heads)
        each = sum(config.recurrent) * (config.gdn_inner * config.gdn_dim + ring * config.gdn_channels + steps)
        each += sum((max(ratio - 1, 0) + CARD_COLUMNS) * config.index_dim for ratio in self.ratios if ratio)
        each += (config.ngram.conv_past + CARD_COLUMNS) * wide if config.ngram else 0
        each += CARD_CARRY * wide if self.draft else 0
        return (sequences + 1) * 4 * (each + context + -(-context // PAGE))


def sizes(matrices: tuple[Matrix, ...]) -> dict[str, int]:
    """Bytes by block type."""
    found: Counter[str] = Counter()
    for matrix in matrices:
        found[matrix.kind] += matrix.bytes
    return dict(found)


def take_census(network: Network) -> Census:
    """Count a network. Nothing but shapes and types is looked at, so its bytes need not be there."""
    config, draft = network.config, network.draft
    head = () if network.output is network.embed else (network.output,)
    trunk = [*_matrices(network.head_mix), *(m for layer in network.layers for m in _matrices(layer))]
    dense = (*trunk, _matrix(network.output))
    own = _draft(draft) if draft else ()
    own_head = tuple(_matrix(t) for t in (draft.embed, draft.output) if t is not None) if draft else ()
    reads = (*own, _matrix(draft.output or network.output)) if draft else ()
    layers = [*network.layers, *([draft.layer] if draft else [])]
    tables = [layer.ngram.table for layer in network.layers if layer.ngram is not None]
    ngram_rows = sum(t.nbytes // t.shape[0] for t in tables) * (config.ngram.heads if config.ngram else 0)
    return Census(
        config=config,
        dense=dense,
        draft=reads,
        stored=(*trunk, *(_matrix(t) for t in head), _matrix(network.embed), *own, *own_head),
        embed=_matrix(network.embed),
        rows=network.embed.nbytes // config.vocabulary + ngram_rows,
        table=sum(table.nbytes for table in tables),
        experts=tuple(_shape(layer.experts, config.experts) for layer in layers),
        ratios=tuple(layer.mixer.ratio if isinstance(layer.mixer, Attention) else None for layer in layers),
    )


@lru_cache(maxsize=1024)
def slot_bytes(shape: ExpertShape) -> int:
    """Bytes of an expert's slot in video memory, in planar layout."""
    return sum(card_bytes(matrix) for matrix in (shape.gate, shape.up, shape.down))


@lru_cache(maxsize=4096)
def card_bytes(matrix: Matrix) -> int:
    """Bytes of a matrix in video memory."""
    from ..ops.gpu.planar import LAYOUTS

    return LAYOUTS[matrix.kind].matrix_bytes(matrix.rows, matrix.columns)


def _record(config: Config, ratio: int | None, kv_bits: int, card: bool) -> int:
    values = 2 * config.kv_heads * config.head_dim
    cell = values + values // 32 * 4 if kv_bits == 8 else 2 * values + 2 * config.kv_heads * 4
    number = 2 if card and kv_bits == 8 else 4
    return cell + (config.index_dim * number // ratio if ratio else 0)


def _shape(experts: Experts, count: int) -> ExpertShape:
    def one(tensor: Tensor) -> Matrix:
        return Matrix(tensor.type.name, prod(tensor.shape[:-1]) // count, tensor.shape[-1])

    return ExpertShape(one(experts.gate), one(experts.up), one(experts.down))


def _matrix(tensor: Tensor) -> Matrix:
    return Matrix(tensor.type.name, prod(tensor.shape[:-1]), tensor.shape[-1])


def _draft(draft: Draft) -> tuple[Matrix, ...]:
    parts = (draft.fc_embedding, draft.fc_hidden, draft.norm_embedding, draft.norm_hidden, draft.layer, draft.head_mix)
    return tuple(matrix for part in parts for matrix in _matrices(part))


def _matrices(part: object) -> Iterator[Matrix]:
    """All matrices of a part of the network but routed experts and the n-gram table."""
    if isinstance(part, Tensor):
        yield _matrix(part)
    elif is_dataclass(part):
        for field in fields(part):
            routed = isinstance(part, Experts) and field.name in ("gate", "up", "down")
            table = field.name == "table" and not isinstance(part, Layer)
            if not routed and not table:
                yield from _matrices(getattr(part, field.name))
