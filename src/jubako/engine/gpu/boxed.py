"""An executor for cards that do not hold all experts: slots as planned, pinned memory, and the disk for the rest.

Of several cards each has the slots of its own layers, and what these lack comes over its own link.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from ... import _cpu
from ...arch.network import Network
from ...errors import MachineError
from ...files.mapping import let_go
from ...ops.gpu.boxes import Boxes
from ...ops.gpu.host import HostExperts
from ...ops.gpu.ops import on_device
from ...ops.gpu.pinned import Pinned
from ...ops.gpu.stream import TURNS
from ...place.memory import usable_memory
from ...place.plan import Plan
from ...place.resident import expert_layers, tensors_of
from ...place.store import ExpertStore
from ...place.where import Files
from ...quant import BY_NAME, encode
from .executor import PIECES, GpuExecutor
from .load import FileSource
from .memory import too_little
from .ngram_table import SMALL, TablePlace
from .warm import last_order, remember

log = logging.getLogger(__name__)
Progress = Callable[[int, int], None]


def boxed_executor(
    network: Network,
    device: torch.device | Sequence[torch.device],
    plan: Plan,
    *,
    order: np.ndarray | None = None,
    progress: Progress | None = None,
) -> GpuExecutor:
    """Laid out on the plan's cards as it says; with as much context as they keep.

    order [n, 2]: (layer, expert), the first of whom get the slots; those used most last time by default. progress: told
    bytes of experts read and to be read. Raises MachineError where memory or a file fails.
    """
    devices = [device] if isinstance(device, torch.device) else list(device)
    files = Files(tensors_of(network))
    store = ExpertStore(network, files, plan.expert_ram)
    host = pinned_experts(store, progress)
    runs = [range(card.first, card.last) for card in plan.cards]
    try:
        boxes = boxes_of(network, devices, runs, plan, host, last_order(network) if order is None else order)
    except torch.cuda.OutOfMemoryError as error:
        raise too_little(devices, f"what is planned, {sum(plan.slots)} slots for experts,", error, _less) from error
    if not store.whole:
        assert len(boxes) == 1  # who reads the file for the threads counts all layers
        where = boxes[0].residents.where
        source = _cpu.StoreSource(store.native, routers_of(network), network.config.experts_used, where)
        boxes[0].threads.set_source(source)
    several, count = len(devices) > 1, len(network.layers)
    sources = [FileSource(device) for device in devices]
    try:
        executor = GpuExecutor(
            network, devices, kv_bits=plan.kv_bits, context=plan.context, tokens=plan.kv_tokens,
            near=None if several else plan.kv_tokens_vram, sequences=plan.sequences, source=sources,
            runs=[range(run.start, min(run.stop, count)) for run in runs] if several else None,
            host_table=TablePlace(network, SMALL, files), boxes=boxes,
        )  # fmt: skip
    finally:
        for each in sources:
            each.close()
    executor.piece = plan.chunk
    executor.chunk = PIECES * plan.chunk if several else plan.chunk
    # the host's own threads want one a card: 15 of 16 were 5 to 10 % faster
    _cpu.set_threads(max(plan.threads - len(devices), 1))
    for swaps in executor.swaps:
        swaps.balance.set(plan.link_share)
    remember(executor.swaps, network)
    slots = sum(pool.data.nbytes for own in boxes for pool in own.residents.pools.values())
    executor.experts_in = {"VRAM": slots, **store.lie_in}
    return executor


def _less(free: int) -> str:
    """What to do on a card that has less than it had when the plan was made."""
    return "others may have taken some since it was planned with: start again, or allow less with --vram"


def boxes_of(
    network: Network,
    devices: Sequence[torch.device],
    runs: Sequence[range],
    plan: Plan,
    host: HostExperts,
    order: np.ndarray | None,
) -> list[Boxes]:
    """Of each card those of its run of layers, with as many slots as the plan gives them."""
    layers, made = expert_layers(network), []
    for device, run in zip(devices, runs, strict=True):
        mine = None
        if order is not None:
            mine = order[(order[:, 0] >= run.start) & (order[:, 0] < run.stop)] - np.array([run.start, 0], order.dtype)
        slots = sum(plan.slots[run.start : run.stop])
        with on_device(device):
            own = Boxes(
                layers[run.start : run.stop], host.part(run), slots, network.config.experts_used, device, mine,
                max(plan.ring // TURNS, 1),
            )  # fmt: skip
        made.append(own)
    return made


def routers_of(network: Network) -> list[_cpu.Weight]:
    """Each layer's router, for guessing which experts to read ahead: a quarter of the file's bytes, in RAM."""
    routers = []
    for experts in expert_layers(network):
        router, kind = experts.router, BY_NAME["Q8_0"]
        if router.shape[-1] % kind.weights:
            kind = BY_NAME["F32"]
        routers.append(_cpu.Weight(encode(kind, router.decoded()), kind.id))
        let_go(router.data)
    return routers


def pinned_experts(store: ExpertStore, progress: Progress | None = None) -> HostExperts:
    """A store's experts, read and pinned: a layer is pinned while the next is read. Raises MachineError."""
    regions, on_gpu = store.native.regions(), torch.cuda.is_available()
    with ThreadPoolExecutor(1, "pin") as pinning:
        jobs = []
        if store.whole:
            for layer, done in store.load_layers():
                if progress is not None:
                    progress(done, store.bytes_of_all)
                _check_memory(store.bytes_of_all - done)
                if on_gpu:
                    jobs += [
                        pinning.submit(Pinned, *region, store.native) for region in regions[3 * layer : 3 * layer + 3]
                    ]
        elif on_gpu:
            for region in regions:  # each as one: a copy may not cross from one pinned stretch to another
                _check_memory(region[1])
                jobs.append(pinning.submit(Pinned, *region, store.native))
        keep = store, [job.result() for job in jobs]
    if store.whole:
        return HostExperts(store.native.addresses, keep, fixed=True)
    return HostExperts(store.native.addresses, keep, False, partial(_bring, store), partial(_expect, store))


def _expect(store: ExpertStore, layer: int, experts: np.ndarray) -> None:
    """Experts that will be asked for next: those that are not there are read when the disk has nothing else to do."""
    store.native.expect(layer, np.ascontiguousarray(experts, np.int32), True)


def _bring(store: ExpertStore, layer: int, experts: np.ndarray) -> Iterator[slice]:
    """Experts in parts that stay in memory until the next part is asked for."""
    ids, first = np.ascontiguousarray(experts, np.int32), 0
    while first < len(ids):
        try:
            count = store.native.hold(layer, ids[first:])
        except _cpu.ReadError as error:
            raise MachineError(str(error)) from error
        try:
            yield slice(first, first + count)
        finally:
            store.native.release(layer, ids[first : first + count])
        first += count


def _check_memory(needed: int) -> None:
    """The last part of a machine's memory stays free, whoever else took some since the plan was made."""
    usable = usable_memory()
    if usable < needed:
        raise MachineError(
            f"{needed / 1e9:.1f} GB of memory are still needed for experts and {usable / 1e9:.1f} GB are free, without "
            "the tenth that is left to the system; allow less with --ram"
        )
