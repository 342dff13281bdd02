"""Which GPUs are used, and an executor on several of them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...arch.network import Network
from ...errors import MachineError
from .cards_choice import halves_fit, seconds_gained
from .cards_plan import layer_runs
from .device import RESERVE, make_ready
from .load import FileSource

if TYPE_CHECKING:
    from .executor import GpuExecutor

log = logging.getLogger(__name__)
OLDEST = (7, 0)  # compute capability: Volta
LEAST = 2 << 30  # free bytes without which a card is no help
TIGHT = 1250 << 20  # bytes of a card left, in place of `device.RESERVE`, where prompts are read in the shortest pieces
SECOND = 64  # tokens of a second piece that is read to make the cards ready
SLOW = 0.5  # a card slower than that, beside the fastest, is used only for its memory


def cards_of(gpus: Sequence[int] | None) -> list[torch.device]:
    """The GPUs named, or all there are, without those that can't be used, of which the log tells.

    Raises MachineError where none is left.
    """
    there = range(torch.cuda.device_count())
    found, faults = [], []
    for index in dict.fromkeys(there if gpus is None else gpus):
        fault = _fault(index) if index in there else f"GPU {index} is not there; this machine has {_listed(there)}"
        if fault:
            faults.append(fault)
        else:
            found.append(torch.device("cuda", index))
    if not found:
        raise MachineError(f"{'; '.join(faults)}; use device cpu, or name another card with --gpus")
    taken = {device: fault for device in found if (fault := _taken(device))}
    if len(taken) < len(found):
        found = [device for device in found if device not in taken]
        faults += taken.values()
    for fault in faults:
        log.warning("%s: going on with %s", fault, _listed([device.index for device in found]))
    return found


def _fault(index: int) -> str:
    """Why a card can't be used, "" if it can."""
    try:
        capability = torch.cuda.get_device_capability(index)
        if torch.version.hip is None and capability < OLDEST:
            found = f"{capability[0]}.{capability[1]}"
            return f"{_name(index)} has compute capability {found}; 7.0 is the oldest that can be used"
        torch.cuda.mem_get_info(index)
    except RuntimeError as error:  # fallen off the bus, or in exclusive use by another process
        return f"GPU {index} does not answer: {str(error).splitlines()[0]}"
    return ""


def _taken(device: torch.device) -> str:
    """What to say of a card whose memory others hold, "" if there is some."""
    free, total = torch.cuda.mem_get_info(device)
    if free >= min(LEAST, total // 2):
        return ""
    return f"{_name(device.index)} is taken: {free / 1e9:.1f} of its {total / 1e9:.1f} GB are free"


def _name(index: int) -> str:
    return f"GPU {index} ({torch.cuda.get_device_name(index)})"


def _listed(indices: Sequence[int]) -> str:
    names = [str(index) for index in indices]
    return f"GPU {names[0]}" if len(names) == 1 else f"GPUs {', '.join(names[:-1])} and {names[-1]}"


def speed(device: torch.device) -> float:
    """Bytes/s that a card's memory gives, on paper: what its share of the layers goes by."""
    card = torch.cuda.get_device_properties(device)
    return float(card.memory_clock_rate * 1000 * card.memory_bus_width / 8 * 2)


def runs_of(network: Network, devices: Sequence[torch.device], rooms: Sequence[int], **wanted: int) -> list[range]:
    """The layers of each card, which has so many bytes of room. wanted: see `layer_runs`."""
    speeds = [speed(device) for device in devices] if len(devices) > 1 else [1.0]
    return layer_runs(network, rooms, speeds, **wanted)


def cards_executor(
    network: Network,
    devices: Sequence[torch.device],
    rooms: Sequence[int],
    kv_bits: int,
    context: int | None,
    sequences: int,
    every: bool,
    way: str = "layers",
) -> GpuExecutor:
    """An executor whose layers lie on several GPUs with so many bytes of room. context None: as much as fits.

    every: on all of them; else slow ones are left out where the model fits without. way: "layers", "halves" of each on
    two cards, or "auto": what decodes faster. If a context that was asked for fits only beside the shortest pieces of
    prompts, they are read in these. Raises MachineError where it does not fit.
    """
    from .executor import LEAST_CHUNK, PIECES, GpuExecutor
    from .ngram_table import TablePlace, share_of_memory

    speeds = [speed(device) for device in devices]
    fast = [place for place, own in enumerate(speeds) if own >= SLOW * max(speeds)]
    if not every and len(fast) < len(devices):
        some, theirs = [devices[place] for place in fast], [rooms[place] for place in fast]
        try:
            return cards_executor(network, some, theirs, kv_bits, context, sequences, True, way)
        except MachineError as error:
            log.info("all cards are used: %s", error)
    halves = way != "layers" and _halves(network, devices, min(speeds), way)
    wanted = context or network.config.context_length
    tokens, runs, piece = sequences * wanted, None, None
    while True:
        held = {"kv_bits": kv_bits, "sequences": sequences, "tokens": tokens, "context": min(wanted, tokens)}
        try:
            if halves:
                halves_fit(network, rooms, **held)
            else:
                runs = runs_of(network, devices, rooms, **held)
            break
        except MachineError:
            if tokens <= (wanted if context is not None else 4096):
                if halves or context is None:
                    raise
                runs, piece = runs_of(network, devices, tight(rooms), **held), LEAST_CHUNK
                log.warning("little memory is left beside the model: prompts are read in pieces of %d tokens", piece)
                break
            tokens = max(tokens - wanted, wanted) if tokens > wanted else tokens // 2
    if tokens < wanted:
        log.warning("%s have room for %d of the model's %d tokens of context", _names(devices), tokens, wanted)
    if runs is not None:
        shares = (f"{run.start} to {run.stop - 1} on GPU {d.index}" for run, d in zip(runs, devices, strict=True))
        log.info("layers %s", ", ".join(shares))
    sources = [FileSource(device) for device in devices]
    try:
        executor = GpuExecutor(
            network, devices, runs=runs, kv_bits=kv_bits, context=min(wanted, tokens), tokens=tokens,
            sequences=sequences, source=sources, host_table=TablePlace(network, share_of_memory()),
        )  # fmt: skip
    finally:
        for source in sources:
            source.close()
    if piece is not None:
        executor.piece, executor.chunk = piece, PIECES * piece
    make_ready(executor, SECOND)
    return executor


def tight(rooms: Sequence[int]) -> list[int]:
    """Rooms of cards that keep no more than the shortest pieces of prompts work in."""
    return [room + RESERVE - TIGHT for room in rooms]


def _halves(network: Network, devices: Sequence[torch.device], bandwidth: float, way: str) -> bool:
    """Whether two cards are to have half of every layer each."""
    if len(devices) != 2:
        if way == "halves":
            raise MachineError(f"every layer can be shared by two cards, not by {len(devices)}; name two with --gpus")
        return False
    if way == "halves":
        return True
    gained = seconds_gained(network, devices, bandwidth)
    log.info("half of every layer on each card would save %.2f ms a token", 1000 * gained)
    return gained > 0


def _names(devices: Sequence[torch.device]) -> str:
    return " and ".join(torch.cuda.get_device_name(device) for device in devices)
