"""An executor for a card that does not hold all experts: slots as planned, pinned memory, and the disk for the rest."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch

from ... import _cpu
from ...arch.network import Network
from ...arch.tensor import Tensor
from ...errors import MachineError
from ...ops.gpu.boxes import Boxes
from ...ops.gpu.far_table import FarTable
from ...ops.gpu.host import HostExperts
from ...ops.gpu.pinned import Pinned
from ...ops.gpu.table import HostTable
from ...place.memory import usable_memory
from ...place.plan import Plan
from ...place.resident import expert_layers, tensors_of
from ...place.store import ExpertStore
from ...place.where import Files
from .executor import GpuExecutor
from .load import FileSource
from .warm import last_order, remember

log = logging.getLogger(__name__)
SMALL_TABLE = 1 << 30  # bytes up to which the n-gram table lies in memory
Progress = Callable[[int, int], None]


def boxed_executor(
    network: Network,
    device: torch.device,
    plan: Plan,
    *,
    order: np.ndarray | None = None,
    progress: Progress | None = None,
) -> GpuExecutor:
    """Laid out as `plan` says; with as much context as the card keeps.

    order [n, 2]: (layer, expert), the first of whom get the slots; those used most last time by default. progress: told
    bytes of experts read and to be read. Raises MachineError where memory or a file fails.
    """
    files = Files(tensors_of(network))
    store = ExpertStore(network, files, plan.expert_ram)
    host = pinned_experts(store, progress)
    layers = expert_layers(network)
    order = last_order(network) if order is None else order
    boxes = Boxes(layers, host, sum(plan.slots), network.config.experts_used, device, order)
    if not store.whole:
        boxes.threads.set_source(_cpu.StoreSource(store.native))
    source = FileSource(device)
    try:
        executor = GpuExecutor(
            network, device, kv_bits=plan.kv_bits, context=plan.context, tokens=plan.kv_tokens,
            near=plan.kv_tokens_vram, sequences=plan.sequences, source=source,
            host_table=partial(_table, network, files, device), boxes=boxes,
        )  # fmt: skip
    finally:
        source.close()
    executor.chunk = executor.piece = plan.chunk
    _cpu.set_threads(max(plan.threads - 1, 1))  # the host's own thread wants one: 15 of 16 were 5 to 10 % faster
    executor.swaps.balance.set(plan.link_share)
    remember(executor.swaps, network)
    return executor


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
    return HostExperts(store.native.addresses, keep, store.whole, None if store.whole else partial(_bring, store))


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


def _table(network: Network, files: Files, device: torch.device, tensor: Tensor) -> HostTable | FarTable:
    ngram = network.config.ngram
    assert ngram is not None
    if tensor.nbytes <= SMALL_TABLE:
        return HostTable.of(tensor, device)
    return FarTable(tensor, files.table(tensor), ngram.heads, device)
