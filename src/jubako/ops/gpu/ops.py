"""`GpuOps`: the instruction set of `jubako.ops` on torch tensors of one GPU.

Two things differ from the CPU's. Where tokens stand is in device memory (`Columns`), not in a number: a captured graph
must serve every position. And a block's last product adds its result to the streams itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol

import torch

from ...arch import weights as arch
from . import attention, embed, experts, gdn, gdn_chunk, head, hyper, linear, ngram, prepare, route, weights
from .activation import Quantised
from .boxes import Boxes
from .columns import Columns
from .combine import Pending
from .draft_keys import store_keys
from .far_table import FarTable
from .foresight import Foresight
from .launch import COLUMNS
from .matrix import Source
from .prompt import WIDE, Halves
from .select import Selector
from .state import AttentionMemory, GdnMemory, StatePool

Mixed = tuple[Any, torch.Tensor | None]
Attended = torch.Tensor | Quantised | Halves  # [T, heads*D]
Choose = Callable[[torch.Tensor, AttentionMemory, Columns], tuple[torch.Tensor, torch.Tensor]]


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Inside, this thread launches on that GPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _awake(asked: Sequence[Before | Boxes | FarTable]) -> Iterator[None]:
    with ExitStack() as stack:
        for other in asked:
            stack.enter_context(other.awake())
        yield


class Before(Protocol):
    """The cards that hold the layers before another card's (`engine.gpu.cards`), or all layers (`cards_tensor`)."""

    @property
    def logits(self) -> Callable[[Columns, torch.Tensor], torch.Tensor] | None:
        """Writes logits of a step to [T, vocabulary], gives its streams; None where the other card has all the head."""

    def streams(self, columns: Columns) -> torch.Tensor: ...

    def awake(self) -> AbstractContextManager[Any]: ...

    def send(self, streams: torch.Tensor) -> torch.Tensor: ...

    def ordered(self) -> AbstractContextManager[Any]: ...

    def capturing(self) -> AbstractContextManager[Any]: ...


def index_ratios(network: arch.Network) -> list[int | None]:
    """Tokens per index block of each layer, the draft layer last; 0 where attention is dense, None in a GDN layer."""
    layers = [*network.layers, *([network.draft.layer] if network.draft else [])]
    return [None if isinstance(layer.mixer, arch.Gdn) else layer.mixer.ratio for layer in layers]


class GpuOps:
    """The operations on one network. Owns the prepared weights, all sequences' memory and the kernels' work space."""

    def __init__(
        self,
        network: arch.Network,
        device: torch.device,
        *,
        slots: int,
        tokens: int,
        context: int,
        kv_bits: int = 8,
        source: Source | None = None,
        host_table: weights.TablePlace = False,
        layers: range | None = None,
        boxes: Boxes | None = None,
        near: int | None = None,
    ) -> None:
        """slots: sequences at once; tokens: cached by all of them together; context: of one, at most; near: of the
        cached tokens, those whose keys and values lie in video memory, None for all.

        source: gives the raw blocks of a tensor on the device; None uploads those of the file. host_table: leave the
        n-gram table in main memory. layers: only these, where other cards have the others. boxes: has the routed
        experts, where not all are to lie on the device.
        """
        config = network.config
        self.config, self.device = config, device
        self.before: Before | None = None
        self.boxes = boxes
        run = range(config.layers) if layers is None else layers
        self.weights = weights.prepare(network, device, source, host_table, run, boxes)
        ratios = index_ratios(network)[run.start : None if run.stop == config.layers else run.stop]
        self.foresight = Foresight(self.weights.layers, device) if boxes is not None else None
        self.pool = StatePool(
            config, ratios, slots, tokens, context, kv_bits, device,
            drafts=self.weights.draft is not None,
            ngram=next((place for place, layer in enumerate(self.weights.layers) if layer.ngram), None), near=near,
        )  # fmt: skip
        self.rope = prepare.Rope(config.rope_frequencies().to(device), config.rope_magnitude)
        self.hash = ngram.Hash.of(config, device)
        tables = [layer.ngram.table for layer in self.weights.layers if layer.ngram is not None]
        self._far = next((table for table in tables if isinstance(table, FarTable)), None)
        self._asked: torch.Tensor | None = None
        self._selectors = {
            ratio: Selector(config.index_blocks(ratio), -(-context // ratio // 64) * 64, COLUMNS, device)
            for ratio in set(ratios)
            if ratio
        }

    def start(self, columns: Columns) -> torch.Tensor:
        """Streams [T, S, H] before this card's first layer: the embedding's, or what the card before gives."""
        self._ask(columns)
        if self.before is not None:
            return self.before.streams(columns)
        assert self.weights.embed is not None
        return embed.spread(self.weights.embed, columns.ids, self.config.streams)

    def on_card(self) -> AbstractContextManager[Any]:
        """Inside, this thread launches on this card."""
        return on_device(self.device)

    def awake(self) -> AbstractContextManager[Any]:
        """Inside, what steps ask the CPU for is answered; steps are waited for before its end."""
        asked = self._whom()
        if len(asked) == 1:  # of most machines; a stack takes the host time between two steps
            return asked[0].awake()
        return _awake(asked) if asked else nullcontext()

    @property
    def alone(self) -> bool:
        """Whether steps ask nothing of other cards and of the CPU."""
        return not self._whom()

    def _whom(self) -> list[Before | Boxes | FarTable]:
        """Who is asked for what steps need."""
        return [other for other in (self.before, self.boxes, self._far) if other is not None]

    def ordered(self) -> AbstractContextManager[Any]:
        """Inside, work launched here comes after what was launched on the cards before, and before what will be."""
        return self.before.ordered() if self.before is not None else nullcontext()

    def capturing(self) -> AbstractContextManager[Any]:
        """Inside, memory on the cards before is taken for a graph that is being captured."""
        return self.before.capturing() if self.before is not None else nullcontext()

    def ngram_inject(self, layer: Any, streams: torch.Tensor, columns: Columns) -> None:
        """Hash the tokens, read their rows, add the embedding to streams [T, S, H] in place."""
        assert self.hash is not None
        if isinstance(layer.table, FarTable):
            ids = self._asked if self._asked is not None else self._ask(columns)
            self._asked = None
            assert ids is not None
            rows = layer.table.take(len(ids)) if columns.parts is not None else layer.table.of_prompt(ids)
        else:
            rows = embed.embed(layer.table, ngram.ngram_rows(self.hash, columns, self.pool.tokens))
        key, value = linear.linear_many(layer.projections, rows.view(columns.tokens, -1))
        del rows  # a prompt's are large
        ngram.ngram_inject(layer, streams, key, value, self.pool.ngram, columns, self.hash.config.size, self.config.eps)

    def _ask(self, columns: Columns) -> torch.Tensor | None:
        """Ask for a step's rows of a table on the disk, so that they come while the first layer is computed."""
        if self._far is None or self.hash is None:
            return None
        self._asked = ngram.ngram_rows(self.hash, columns, self.pool.tokens)
        if columns.parts is not None:
            self._far.ask(self._asked)
        return self._asked

    def hyper_mix(self, streams: torch.Tensor, mix: Any, pending: Pending | None = None) -> Mixed:
        """What a block reads of streams [T, S, H]: mixed [T, H], quantised, and inject [T, S], None for the head.

        pending: is first added to the streams, in place.
        """
        return hyper.hyper_mix(streams, mix, pending=pending)

    def gdn(self, layer: Any, mixed: Any, memory: GdnMemory, columns: Columns) -> torch.Tensor | Quantised | Halves:
        """A gated delta net from its input to [T, heads*D], which `layer.out` still has to project."""
        if isinstance(mixed, Halves):
            narrow = linear.linear_many_narrow(layer.projections, mixed)
            return gdn_chunk.gdn_prompt(layer, narrow, memory, columns, self.config.eps, WIDE)
        projected = linear.linear_many(layer.projections, mixed)
        if columns.parts is None:
            return gdn_chunk.gdn_prompt(layer, projected, memory, columns, self.config.eps)
        return gdn.gdn_columns(layer, projected, memory, columns, self.config.eps)

    def attention(self, layer: Any, mixed: Any, memory: AttentionMemory, columns: Columns) -> Attended:
        """An attention layer from its input to [T, heads*D], which `layer.output` still has to project."""
        return self.attend(self.attention_prepare(layer, mixed, memory, columns), memory, columns)

    def attention_prepare(self, layer: Any, mixed: Any, memory: AttentionMemory, columns: Columns) -> prepare.Prepared:
        """What attention needs of new tokens, whose keys and values are in the cache then."""
        config = self.config
        return prepare.attention_prepare(
            layer, linear.linear_many(layer.projections, mixed), memory, columns, self.rope, config.heads,
            config.kv_heads, config.index_heads, config.eps,
        )  # fmt: skip

    def attend(
        self, ready: prepare.Prepared, memory: AttentionMemory, columns: Columns, choose: Choose | None = None
    ) -> Attended:
        """Attention of what was prepared: [T, heads*D]. choose: gives the queries' blocks in place of `select`."""
        blocks = chosen = None
        if ready.index is not None and not self._selectors[memory.ratio].takes_all(memory.ratio, columns):
            blocks, chosen = (choose or self.select)(ready.index, memory, columns)
        return attention.sparse_attention(ready.queries, ready.gate, memory, columns, blocks, chosen)

    def remember(self, layer: Any, mixed: Any, memory: AttentionMemory, columns: Columns) -> None:
        """Keys and values of an attention layer alone."""
        store_keys(layer, mixed, memory, columns, self.rope, self.config.kv_heads, self.config.eps)

    def select(self, q: torch.Tensor, memory: AttentionMemory, columns: Columns) -> tuple[torch.Tensor, torch.Tensor]:
        """Blocks int32 [T, budget] that the index queries q [T, heads, D] choose, and how many: int32 [T]."""
        return self._selectors[memory.ratio](q, memory, columns)

    def linear(self, weight: Any, x: Any, out: torch.Tensor | None = None) -> torch.Tensor:
        """x [T, K] times weight [N, K] transposed: [T, N], into `out` if given."""
        return linear.linear(weight, x, out)

    def linear_mix(self, weight: Any, y: Any, streams: torch.Tensor, inject: torch.Tensor | None, mix: Any) -> Mixed:
        """Add y times weight, weighted by inject [T, S], to streams in place; what the experts read of them."""
        assert inject is not None
        return hyper.linear_mix(weight, y, streams, inject, mix, fine=False)

    def experts_mix(self, layer: Any, x: Any, streams: torch.Tensor, inject: torch.Tensor | None, mix: Any) -> Mixed:
        """Route the tokens, add the experts' weighted sum to streams in place; what the next block reads of them."""
        assert inject is not None
        routed = route.route_experts(layer, x, self.config.experts_used)
        return hyper.experts_mix(layer, x, routed, streams, inject, mix, beside=self._beside(layer, streams))

    def experts_combine(self, layer: Any, x: Any, streams: torch.Tensor, inject: torch.Tensor | None) -> None:
        """Route the tokens; add the chosen and the shared experts' weighted sum to streams, in place."""
        assert inject is not None
        routed = route.route_experts(layer, x, self.config.experts_used)
        experts.experts_combine(layer, x, routed, streams, inject, self._beside(layer, streams))

    def _beside(self, layer: Any, streams: torch.Tensor) -> experts.Beside | None:
        return None if self.foresight is None else self.foresight.beside(layer, streams, self.config.experts_used)

    def head(self, mix: Any, output: Any, streams: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Logits [T, vocabulary] of streams [T, S, H], into `out` if given."""
        return head.head(mix, output, streams, out)

    def argmax(self, logits: torch.Tensor) -> torch.Tensor:
        """The likeliest token of each row: int64 [T]; the lowest id on ties."""
        return route.argmax(logits)
