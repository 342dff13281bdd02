"""The executor of device="cuda": everything in video memory, prompts in chunks, steps as captured graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, TypeVar, cast

import numpy as np
import psutil
import torch

from ...arch.network import Network
from ...errors import MachineError
from ...ops.gpu.boxes import Boxes
from ...ops.gpu.carry import CARRY, keep_streams
from ...ops.gpu.columns import Columns, Part, step_table
from ...ops.gpu.matrix import Source
from ...ops.gpu.quick import quick_launches
from ...ops.gpu.saved import resume, save, settle_state
from ...ops.gpu.sequence import GpuState
from ...ops.gpu.weights import TablePlace
from ...ops.pages import Saved
from ...place.heat import Heat
from ..draft import LAYER_MOST
from ..executor import STEP_COLUMNS, DraftWish, Speculated, draft_then_step
from ..logits import Logits
from ..plan import SharedMemory, prefix_budget
from .cards import read_pieces
from .cards_layout import lay_out
from .compile import compiling
from .device import what_fits
from .draft import Drafts
from .graph import Desk, Graphs
from .greedy import GreedySteps
from .memory import allocated, grow_at_the_end, tell_lost, too_little, video_bytes
from .step import Steps
from .swaps import Swaps

READY = range(1, 9)  # widths of steps and of drafts' catching up that are captured at the start
SHORT = 3 * STEP_COLUMNS  # tokens of a prompt that steps read sooner than all of the absent experts come to the card
LEAST_CHUNK = 512  # tokens of a prompt's chunk after memory ran out
PIECES = 8  # of a chunk on several cards: the first is read by one card alone, and so is the last

Verb = TypeVar("Verb", bound=Callable[..., Any])


def on_card(verb: Verb) -> Verb:
    """A method of the executor during which this thread launches on its (last) card, and waits for it.

    Raises MachineError where video memory runs out, CardLostError where a card does not answer any more.
    """

    @wraps(verb)
    def guarded(self: GpuExecutor, *args: Any, **options: Any) -> Any:
        try:
            with self.ops.on_card(), self.ops.awake():
                return verb(self, *args, **options)
        except torch.cuda.OutOfMemoryError as error:
            raise too_little(self.devices, "what a step works with", error) from error
        except RuntimeError as error:
            tell_lost(self.devices, error)
            raise

    return cast(Verb, guarded)


class GpuExecutor:
    """Runs a network on one GPU, or on several of which each has a run of its layers.

    Chunks of `chunk` prompt tokens read fastest: of 512 experts each has 110 uses then, which one tile of 128 holds. On
    several cards they pass through in pieces of `piece` tokens: one card's chunks, so that the bits are the same.
    """

    chunk = piece = 5632
    experts_in: Mapping[str, int] | None = None  # see `SharingExecutor`

    def __init__(
        self,
        network: Network,
        device: torch.device | Sequence[torch.device],
        *,
        kv_bits: int = 8,
        context: int | None = None,
        tokens: int | None = None,
        near: int | None = None,
        sequences: int = 2,
        source: Source | Sequence[Source] | None = None,
        host_table: TablePlace = False,
        runs: Sequence[range] | None = None,
        boxes: Boxes | Sequence[Boxes] | None = None,
    ) -> None:
        """context: of one sequence, at most (the network's by default); tokens: cached by all together (`context` by
        default); near: of these, those whose keys and values lie in video memory (all by default); sequences: at once,
        one of them a spare for a session that starts anew; runs: the layers of each device where there are several,
        None for every layer on two of them; boxes: of each device, has the routed experts of its layers where not all
        are to lie there.

        Raises MachineError when it does not fit.
        """
        self.config = network.config
        self.context = context = context or self.config.context_length
        self.devices = devices = [device] if isinstance(device, torch.device) else list(device)
        self.boxes = boxes = [boxes] if isinstance(boxes, Boxes) else list(boxes or ())
        grow_at_the_end(devices)
        before = allocated(devices)
        try:
            self.cards, self.pool = lay_out(
                network, devices, runs, source, slots=sequences, tokens=tokens or context, context=context,
                kv_bits=kv_bits, host_table=host_table, boxes=boxes, near=near,
            )  # fmt: skip
        except torch.cuda.OutOfMemoryError as error:
            fits = partial(what_fits, network, kv_bits, sequences) if len(devices) == 1 and not boxes else None
            raise too_little(devices, f"the model with {tokens or context} tokens of context", error, fits) from error
        self.ops = self.cards[-1]
        if len(self.cards) > 1:
            self.chunk = PIECES * self.piece
        self.weight_bytes = max(allocated(devices) - before - self.pool.nbytes(), 0)
        self.drafts = network.draft is not None
        # states are saved by layers, so it does not matter which card had which; halves of layers do
        self.layout = f"gpu, by layers, {kv_bits} bit" + (", halved" if len(devices) > len(self.cards) else "")
        self.video_bytes = video_bytes(devices)
        self.desk = Desk(self.ops.device, self.config.vocabulary)
        graphs = Graphs(self.ops, self.desk)
        self.steps = Steps(self.ops, graphs)
        self._drafts = Drafts(self.ops, graphs) if self.drafts else None
        self._greedy = GreedySteps(self.ops, self.steps, self._drafts) if self._drafts is not None else None
        self.swaps: list[Swaps] = []
        if boxes:
            for card, own in zip(self.cards, boxes, strict=True):
                with card.on_card():  # it is timed how experts come
                    self.swaps.append(Swaps(own, Heat(len(own.layers), self.config.experts, self.config.experts_used)))
            self.desk.meanwhile = self._swap
            self.desk.wait_gently()

    @torch.inference_mode()
    @on_card
    def prepare(self, widths: Sequence[int] = READY, prompts: Sequence[int] = ()) -> None:
        """Compile what a first answer takes, many kernels at a time, and capture steps of these widths.

        prompts: lengths to read once, for the kernels of prompts.
        """
        if self.ops.device.type != "cuda":
            return
        with compiling():
            for width in sorted({1, 2, STEP_COLUMNS, *widths} if widths else ()):
                list(self.steps.read(width))
        for width in widths:
            self.steps.capture(width)
        if self._drafts is not None and self._greedy is not None:
            for width in widths:
                for depth in range(1, 1 + LAYER_MOST):
                    self._drafts.capture(width, 1, depth)
                self._greedy.capture(width)
        for tokens in prompts:
            state = self.new_state(min(tokens, self.context))
            self.forward([0] * min(tokens, self.context), state, last_only=True)
            state.close()
        torch.cuda.empty_cache()

    def new_state(self, context: int) -> GpuState:
        """See `Executor.new_state`."""
        if context > self.ops.pool.context:
            raise MachineError(
                f"a context of {context} tokens was asked for; memory is laid out for {self.ops.pool.context}"
            )
        if not self.pool.has_slot():
            gc.collect()  # states that nobody holds any more give their slots back
        return GpuState(self.pool, context)

    @torch.inference_mode()
    @on_card
    def forward(self, ids: Sequence[int], state: GpuState, *, last_only: bool) -> np.ndarray:
        """See `Executor.forward`."""
        if len(ids) <= STEP_COLUMNS:
            [logits] = self.step([(ids, state)])
            return np.array(logits)[-1 if last_only else 0 :]
        rest = len(ids) % self.piece
        if len(self.cards) > 1 and rest and len(ids) > self.piece and rest <= STEP_COLUMNS:
            read = [self.forward(part, state, last_only=last_only) for part in (ids[:-rest], ids[-rest:])]
            return read[1] if last_only else np.concatenate(read)
        length = STEP_COLUMNS if self.boxes and len(ids) <= SHORT else self.chunk
        if len(ids) > length:
            parts = [ids[start : start + length] for start in range(0, len(ids), length)]
            read = [self.forward(part, state, last_only=last_only) for part in parts]
            return read[-1] if last_only else np.concatenate(read)
        state.reserve(state.position + len(ids))
        settle_state(state)
        try:
            with quick_launches():
                result = self._read_prompt(ids, state, last_only)
        except torch.cuda.OutOfMemoryError as error:
            less = self._read_less()
            raise too_little(self.devices, f"reading {len(ids)} tokens at once", error, less) from error
        state.read(len(ids))
        return result

    def _read_less(self) -> Callable[[int], str] | None:
        """Read prompts in shorter chunks from now on; says so, unless they are as short as can be."""
        before = self.chunk
        if len(self.cards) > 1:
            self.piece = max(LEAST_CHUNK, self.piece // 2)
            self.chunk = PIECES * self.piece
        else:
            self.chunk = max(LEAST_CHUNK, self.chunk // 2)
        return None if self.chunk == before else lambda free: f"the next prompt is read {self.chunk} tokens at a time"

    def _read_prompt(self, ids: Sequence[int], state: GpuState, last_only: bool) -> np.ndarray:
        ops, length = self.ops, self.piece if len(self.cards) > 1 else len(ids)
        for card in self.cards:
            if card.boxes is not None:
                with card.on_card():
                    card.boxes.stream.begin()
        host = torch.tensor(list(ids), dtype=torch.int32)
        uploaded = [host.to(card.device) for card in self.cards]
        pieces = [
            [Columns.of_prompt(there[start : start + length], state.slot, state.position + start) for there in uploaded]
            for start in range(0, len(ids), length)
        ]
        results, start = [], 0
        for columns, streams in zip(pieces, read_pieces(self.cards, pieces), strict=True):
            mine, stop = columns[-1], start + columns[-1].tokens
            if self._drafts is not None:
                self._drafts.read_prompt(state, ids[start:stop], mine.ids, streams)
                keep_streams(streams[-1:], ops.pool.carry, mine.last())
            if not last_only or stop == len(ids):
                read = streams[-1:] if last_only else streams
                results.append(ops.head(ops.weights.head_mix, ops.weights.output, read))
            start = stop
        logits: np.ndarray = torch.cat(results).cpu().numpy()
        return logits

    @torch.inference_mode()
    @on_card
    def step(self, parts: Sequence[tuple[Sequence[int], GpuState]]) -> list[Logits]:
        """See `Executor.step`."""
        columns = self._columns(parts)
        self.desk.write(step=step_table(columns))
        self.steps.run(sum(len(part.ids) for part in columns))
        likeliest = self.desk.fetch()[0].tolist()
        return self._opened([list(ids) for ids, _ in parts], [state for _, state in parts], likeliest)

    @torch.inference_mode()
    @on_card
    def draft(self, wishes: Sequence[DraftWish]) -> list[list[int]]:
        """See `Executor.draft`."""
        assert self._drafts is not None
        return self._drafts.propose(wishes)

    @torch.inference_mode()
    @on_card
    def speculate(self, wishes: Sequence[DraftWish]) -> Speculated:
        """See `Executor.speculate`. The likeliest tokens are drafted and verified without the host in between."""
        if self._greedy is None or any(wish.pick is not None for wish in wishes):
            return draft_then_step(self, wishes)
        for wish in wishes:
            wish.state.reserve(wish.state.position + 1 + wish.depth)
        read, likeliest, seconds = self._greedy.run(wishes)
        logits = self._opened(read, [wish.state for wish in wishes], likeliest)
        return Speculated([ids[1:] for ids in read], logits, seconds)

    def launch_behind(self, width: int, parts: int, depth: int) -> None:
        """Drafts by the table that a step of `width` columns left for them; nothing is waited for."""
        assert self._drafts is not None
        self._drafts.behind(width, parts, depth)

    def _swap(self) -> None:
        for card, swaps in zip(self.cards, self.swaps, strict=True):
            with card.on_card():
                swaps.between()

    def _columns(self, parts: Sequence[tuple[Sequence[int], GpuState]]) -> list[Part]:
        """Make room for a step's tokens; where they stand."""
        assert 0 < sum(len(ids) for ids, _ in parts) <= STEP_COLUMNS
        for ids, state in parts:
            state.reserve(state.position + len(ids))
            if self._drafts is not None and len(state.carried) + len(ids) > CARRY:
                self._drafts.read(state)
        return [Part(ids, s.slot, s.position, s.pending, s.parity) for ids, s in parts]

    def _opened(self, read: Sequence[list[int]], states: Sequence[GpuState], likeliest: list[int]) -> list[Logits]:
        """The states have read so many ids in a step that is over; the logits stay on the device for now."""
        results, first = [], 0
        for ids, state in zip(read, states, strict=True):
            state.opened(ids)
            last = first + len(ids)
            results.append(self.desk.logits_of(first, likeliest[first:last]))
            first = last
        return results

    def share_memory(self, sequences: int, context: int, prefix_bytes: int | None) -> SharedMemory:
        """See `SharingExecutor.share_memory`: the slots and pages that were laid out at the start."""
        free, pool = psutil.virtual_memory().available, self.pool
        states = [self.new_state(min(context, pool.context)) for _ in range(sequences)]
        return SharedMemory(pool, states, prefix_budget(free, prefix_bytes), pool.nbytes())

    @torch.inference_mode()
    @on_card
    def save(self, state: GpuState) -> Saved:
        """See `SharingExecutor.save`."""
        return save(state)

    @torch.inference_mode()
    @on_card
    def resume(self, state: GpuState, saved: Saved, ids: Sequence[int] | np.ndarray) -> None:
        """See `SharingExecutor.resume`."""
        resume(state, saved, ids)
