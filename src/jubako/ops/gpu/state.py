"""What the GPU remembers of all its sequences. Everything is found by slot and position, so one graph serves them all.

    table    int32 [slots, pages of a context]   which page of the pool holds tokens 64i … 64i+63 of a slot
    tokens   int32 [slots, context]              every id that was read, for the n-gram hash
    ngram    [slots, ring, S*H]                  normed columns of the n-gram convolution, token p at p mod ring
    GDN layer                                    ring: columns, 16 open ones included
      memory [slots, heads, D, D]                state without the columns of the last step
      conv   [slots, ring, channels]             raw columns
      k, u, decay [slots, 2, 16, heads(, D)]     the last step's columns as small factors: what is kept of them enters
                                                 `memory` at the next step, which writes its own into the other half
    attention layer
      codes  int8|half [pages, kv_heads, 2, 64, D]        keys, values
      scales [pages, kv_heads, 2, 64, D/32 or 1]          8 bit: one per 32 codes; 16 bit: a power of two per row
      raw    [slots, ring, index dim]                     raw index keys, token p at p mod ring
      pooled [pages, 64/ratio, index dim]                 keys of complete index blocks, half (float32 with 16-bit KV)

Codes and scales that outgrow their share of video memory lie in main memory: `homes.py`. To take tokens back is to say
a smaller position: later columns overwrite what was refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from ...arch.config import Config
from ...errors import MachineError
from ..pages import Pages
from .carry import CARRY
from .columns import Columns
from .homes import FarCells, HomedPages, Homes, Paged, Reach
from .launch import COLUMNS
from .mover import Mover

PAGE = 64  # tokens
KV_GROUP = 32  # values under one scale in the 8-bit cache


@dataclass(frozen=True)
class GdnMemory:
    """One GDN layer, all slots."""

    memory: torch.Tensor
    conv: torch.Tensor
    k: torch.Tensor
    u: torch.Tensor
    decay: torch.Tensor

    @classmethod
    def empty(cls, config: Config, slots: int, device: torch.device) -> GdnMemory:
        heads, dim = config.gdn_value_heads, config.gdn_dim
        ring = config.conv_kernel - 1 + COLUMNS

        def floats(*shape: int) -> torch.Tensor:
            return torch.zeros(slots, *shape, dtype=torch.float32, device=device)

        return cls(
            memory=floats(heads, dim, dim),
            conv=floats(ring, config.gdn_channels),
            k=floats(2, COLUMNS, config.gdn_key_heads, dim),
            u=floats(2, COLUMNS, heads, dim),
            decay=floats(2, COLUMNS, heads),
        )


@dataclass(frozen=True)
class AttentionMemory:
    """One attention layer, all slots. ratio 0: no indexer, raw and pooled are empty. far: the codes and scales that lie
    in main memory, if any do."""

    pages: torch.Tensor  # the pool's page table
    codes: torch.Tensor
    scales: torch.Tensor
    raw: torch.Tensor
    pooled: torch.Tensor
    ratio: int
    far: FarCells | None = None

    @property
    def cells(self) -> torch.Tensor:
        """The table that finds codes and scales."""
        return self.pages if self.far is None else self.far.homes.table

    @property
    def in_place(self) -> Reach:
        """How kernels reach codes and scales in main memory, to write them too."""
        return Reach() if self.far is None else self.far.in_place

    def reach(self, columns: Columns, cells: int) -> Reach:
        """The same to read them, if columns read so many cells each: see `FarCells.reach`."""
        return Reach() if self.far is None else self.far.reach(columns, cells)

    def paged(self) -> tuple[Paged, Paged, Paged]:
        """Codes, scales and pooled keys of pages."""
        if self.far is None:
            return Paged(self.codes), Paged(self.scales), Paged(self.pooled)
        homes = self.far.homes.pages
        return Paged(self.codes, self.far.codes, homes), Paged(self.scales, self.far.scales, homes), Paged(self.pooled)

    @classmethod
    def empty(
        cls, config: Config, ratio: int, kv_bits: int, table: torch.Tensor, pages: int, homes: Homes | None = None
    ) -> AttentionMemory:
        if ratio and PAGE % ratio:
            raise MachineError(f"index blocks of {ratio} tokens do not fill the GPU cache's pages of {PAGE}")
        if kv_bits == 8 and config.head_dim % KV_GROUP:
            raise MachineError(f"heads of {config.head_dim} do not fit the 8-bit cache; ask for kv_bits 16")
        device, dim = table.device, config.head_dim
        groups = dim // KV_GROUP if kv_bits == 8 else 1
        shape = (pages if homes is None else homes.pages.near, config.kv_heads, 2, PAGE)
        index = config.index_dim if ratio else 0
        codes = torch.zeros(*shape, dim, dtype=torch.int8 if kv_bits == 8 else torch.float16, device=device)
        scales = torch.zeros(*shape, groups, dtype=torch.float32, device=device)
        return cls(
            pages=table,
            codes=codes,
            scales=scales,
            raw=torch.zeros(len(table), max(ratio - 1, 0) + COLUMNS, index, dtype=torch.float32, device=device),
            pooled=torch.zeros(
                pages,
                PAGE // ratio if ratio else 0,
                index,
                dtype=torch.float16 if kv_bits == 8 else torch.float32,
                device=device,
            ),
            ratio=ratio,
            far=None if homes is None else homes.far(codes, scales),
        )


class StatePool:
    """The memory of up to `slots` sequences with `tokens` cached tokens together, each of at most `context`.

    layers is in the network's order; the draft layer's memory comes last where there is one. One slot more, and page
    0, belong to nobody: columns of no sequence write there. A page's bytes, in main memory, are those of the attention
    layers one after the other: codes, scales, pooled keys.
    """

    page_tokens = PAGE

    def __init__(
        self, config: Config, ratios: list[int | None], slots: int, tokens: int, context: int, kv_bits: int,
        device: torch.device, drafts: bool | None = None, ngram: int | None = 0, near: int | None = None,
    ) -> None:  # fmt: skip
        """ratios: per layer its index ratio, None for a GDN layer; near: tokens whose keys and values lie in video
        memory, all by default.

        drafts: the last one is the draft layer (by default, where there is one more than the trunk has); ngram: which
        of them injects n-grams, None where none does.
        """
        self.slots, self.context = slots, context
        self.idle_slot = slots
        self.page_count = -(-tokens // PAGE)
        table_width = -(-context // PAGE)
        near_pages = self.page_count if near is None else max(-(-near // PAGE), 1)
        self.table = torch.zeros(slots + 1, table_width, dtype=torch.int32, device=device)
        self.tokens = torch.zeros(slots + 1, context, dtype=torch.int32, device=device)
        self.homes: Homes | None = None
        self.pages = Pages(self.page_count + 1)
        if near_pages < self.page_count:
            self.pages = HomedPages(self.page_count + 1, near_pages + 1)
            self.homes = Homes(self.pages, self.table)
        self.pages.take()  # page 0
        self._injects = ngram
        past = config.ngram.conv_past + COLUMNS if config.ngram and ngram is not None else 0
        self.ngram = torch.zeros(slots + 1, past, config.streams * config.hidden, dtype=torch.float32, device=device)
        self.layers: list[GdnMemory | AttentionMemory] = [
            GdnMemory.empty(config, slots + 1, device)
            if ratio is None
            else AttentionMemory.empty(config, ratio, kv_bits, self.table, self.page_count + 1, self.homes)
            for ratio in ratios
        ]
        # see carry.py; only where there is a draft layer
        self.drafts = len(ratios) > config.layers if drafts is None else drafts
        rows = slots + 1 if self.drafts else 0
        self.carry = torch.zeros(rows, CARRY, config.streams * config.hidden, dtype=torch.float32, device=device)
        self._free_slots = list(range(slots))[::-1]
        paged = [layer for layer in self.layers if isinstance(layer, AttentionMemory)]
        self._paged = [part for layer in paged for part in layer.paged()]
        self.page_bytes = sum(part.near[0].nbytes for part in self._paged)
        self._mover = Mover(device)

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        """Page tables, one for each card."""
        return (self.table,)

    def nbytes(self) -> int:
        """Bytes of device memory."""
        parts = [self.table, self.tokens, self.ngram, self.carry]
        if self.homes is not None:
            parts += self.homes.on_device()
        for layer in self.layers:
            parts += [t for t in vars(layer).values() if isinstance(t, torch.Tensor) and t is not self.table]
        return sum(part.nbytes for part in parts)

    def bytes_in_ram(self, pages: int) -> int:
        """Of so many pages in use, what lies in main memory."""
        if self.homes is None:
            return 0
        each = self.homes.host_bytes // (self.homes.pages.count - self.homes.pages.near)
        return max(pages - self.homes.pages.near, 0) * each

    def fixed_parts(self, slot: int) -> Iterator[torch.Tensor]:
        """A slot's memory that has the same size however long the sequence is: contiguous views, by layers."""
        for place, layer in enumerate(self.layers):
            if place == self._injects:
                yield self.ngram[slot]
            if isinstance(layer, GdnMemory):
                yield from (layer.memory[slot], layer.conv[slot])
            else:
                yield layer.raw[slot]
        if self.drafts:
            yield self.carry[slot]

    def fixed_bytes(self, slot: int) -> int:
        """Bytes of `fixed_parts`."""
        return sum(part.nbytes for part in self.fixed_parts(slot))

    def read_fixed(self, slot: int, out: np.ndarray) -> Callable[[], None]:
        """Take `fixed_parts` of a slot as they are now, for `out` uint8 [fixed_bytes].

        They get there, one after the other, by calling what this gives, one such call at a time, in any thread.
        """
        taken = torch.cat([part.reshape(-1).view(torch.uint8) for part in self.fixed_parts(slot)])
        return partial(self._mover.bring, taken, self._mover.mark(), out)

    def write_fixed(self, slot: int, data: np.ndarray) -> None:
        """The inverse of `read_fixed`."""
        rows, start = torch.from_numpy(data).to(self.table.device), 0
        for part in self.fixed_parts(slot):
            part.view(-1).view(torch.uint8).copy_(rows[start : start + part.nbytes])
            start += part.nbytes

    def write_tokens(self, slot: int, ids: torch.Tensor) -> None:
        """Take int32 ids [n] as read from the start."""
        self.tokens[slot, : len(ids)].copy_(ids)

    def has_slot(self) -> bool:
        """Whether a sequence more has room."""
        return bool(self._free_slots)

    def take_slot(self) -> int:
        """A free slot, its recurrent memory at zero. Raises MachineError when all are taken."""
        if not self._free_slots:
            raise MachineError(f"all {self.slots} sequences that the GPU has room for are in use")
        slot = self._free_slots.pop()
        self.clear_slot(slot)
        return slot

    def clear_slot(self, slot: int) -> None:
        """Put a slot's recurrent memory at zero."""
        for layer in self.layers:
            if isinstance(layer, GdnMemory):
                layer.memory[slot].zero_()

    def give_slot(self, slot: int) -> None:
        self._free_slots.append(slot)

    def read(self, pages: Sequence[int]) -> np.ndarray:
        """What these pages hold: uint8 [pages, page_bytes]."""
        if not self._paged:
            return np.empty((len(pages), 0), np.uint8)
        with self.homes.pages.lock if self.homes is not None else nullcontext():
            self.move_out()
            parts = [part.read(pages).reshape(len(pages), -1).view(torch.uint8) for part in self._paged]
        return torch.cat(parts, dim=1).cpu().numpy()

    def write(self, pages: Sequence[int], data: np.ndarray) -> None:
        """The inverse of `read`."""
        self.move_out()
        rows, start = torch.from_numpy(data).to(self.table.device), 0
        for part in self._paged:
            size = part.near[0].nbytes
            own = rows[:, start : start + size].contiguous().view(part.near.dtype)
            part.write(pages, own.reshape(len(pages), *part.near.shape[1:]))
            start += size

    def copy(self, page: int, to: int) -> None:
        """Let page `to` hold what `page` holds."""
        self.move_out()
        for part in self._paged:
            part.copy(page, to)

    def move_out(self) -> None:
        """Pages were taken: those that have to make room for them go to main memory."""
        if self.homes is not None:
            self.homes.move_out()
