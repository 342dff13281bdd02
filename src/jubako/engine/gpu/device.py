"""Which GPU there is, what stands in its way, and an executor on it."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...arch.network import Network
from ...errors import MachineError
from ...place.folders import kernel_folder
from ...place.memory import usable_memory
from ...place.plan import Wish
from ...place.resident import tensors_of

if TYPE_CHECKING:
    import torch

    from ...ops.gpu.state import StatePool
    from .executor import GpuExecutor

log = logging.getLogger(__name__)
RESERVE = 2 << 30  # bytes of the card left for activations of a prompt's chunk, graphs and kernels
CONTEXT = 3 << 28  # of these, what the driver takes before anything is allocated
OTHER_CUTS = (512, 1024, 2048, 4096)  # tokens of prompts that between them compile what shorter chunks take
_NODES = ("/dev/nvidia0", "/dev/kfd", "/dev/dxg")  # a driver's device files: NVIDIA's, AMD's, and those of WSL


def may_have_gpu() -> bool:
    """Whether looking closer pays: importing torch takes seconds."""
    return any(Path(node).exists() for node in _NODES)


def open_gpu() -> torch.device:
    """The first GPU that can be used. Raises MachineError with the one thing that is missing."""
    return open_gpus()[0]


def open_gpus(gpus: Sequence[int] | None = None) -> list[torch.device]:
    """The GPUs named, or all, that can be used. Raises MachineError with the one thing that is missing.

    Kernels compiled here are kept in the user's cache for the next start.
    """
    if "TRITON_CACHE_DIR" not in os.environ:
        os.environ["TRITON_CACHE_DIR"] = str(kernel_folder())
    import torch

    advice = "use device cpu, or"
    if torch.version.cuda is None and torch.version.hip is None:
        raise MachineError(
            f"this torch ({torch.__version__}) was built for CPUs only; {advice} install one for your GPU"
        )
    if find_spec("triton") is None:
        raise MachineError(f"Triton is not installed and the GPU kernels need it; {advice} run: pip install triton")
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0].split(". ")[0].rstrip(".")
        raise MachineError(f"no GPU can be used: {reason}; {advice} mend the driver") from error
    if torch.cuda.device_count() == 0:
        raise MachineError(f"there is no GPU that torch can see; {advice} check the driver and CUDA_VISIBLE_DEVICES")
    from .several import cards_of

    return cards_of(gpus)


@contextmanager
def explained() -> Iterator[None]:
    """Inside, what torch, Triton or the driver say when a card can't run what it is given becomes a MachineError."""
    try:
        yield
    except RuntimeError as error:
        said = str(error).splitlines()[0]
        if not any(mark in said for mark in ("CUDA error", "HIP error", "Triton Error")):
            raise
        raise MachineError(
            f"the GPU can't be used: {said}; use device cpu, or see that its driver is new and memory is free"
        ) from error


@explained()
def gpu_executor(
    network: Network,
    kv_bits: int,
    context: int | None,
    sequences: int = 2,
    gpus: Sequence[int] | None = None,
    vram: int | None = None,
    ram: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    split: str = "layers",
) -> GpuExecutor:
    """An executor on this machine's GPUs: those named, or all that help. context None: as much as fits.

    vram: bytes of each that may be used; ram: of main memory; progress: told bytes of experts read into main memory and
    to be read; split: see `several.cards_executor`.

    Raises MachineError when there is no GPU, or when the model does not fit and what would.
    """
    devices = open_gpus(gpus)
    if len(devices) > 1:
        from .several import cards_executor

        rooms = [free_bytes(device, vram) for device in devices]
        try:
            return cards_executor(network, devices, rooms, kv_bits, context, sequences, gpus is not None, split)
        except MachineError as error:
            if split == "halves":
                raise
            most = rooms.index(max(rooms))
            if tokens_that_fit(network, kv_bits, sequences, rooms[most] - card_bytes(network)) < 64:
                log.warning("%s: main memory is used, too", error)
                wish = Wish(context, vram, ram, None, sequences, _numbers(devices), kv_bits)
                return _planned(network, devices, wish, progress)
            log.warning("%s: GPU %d is used alone", error, devices[most].index)
            devices = [devices[most]]
    device = devices[0]
    import torch

    from .executor import GpuExecutor
    from .load import FileSource
    from .ngram_table import SMALL, TablePlace, share_of_memory

    free, weights = free_bytes(device, vram), card_bytes(network)
    room = tokens_that_fit(network, kv_bits, sequences, free - weights)
    name = torch.cuda.get_device_name(device)
    if room < 64:
        wish = Wish(context, vram, ram, None, sequences, _numbers(devices), kv_bits)
        return _planned(network, devices, wish, progress)
    wanted = context or network.config.context_length
    near = None
    if wanted > room and context is not None:
        near = near_that_fit(network, kv_bits, sequences, wanted, free - weights)
        if near <= 0:
            raise MachineError(
                f"{name} and main memory have room for {room} tokens beside the weights; {context} were asked for"
            )
        log.info("keys and values of %d of %d tokens of context lie in main memory", wanted - near, wanted)
    elif wanted > room:
        log.warning("%s has room for %d of the model's %d tokens of context", name, room, wanted)
        wanted = room
    started = time.perf_counter()
    source, table = FileSource(device), SMALL if near is not None else share_of_memory()
    try:
        executor = GpuExecutor(
            network, device, kv_bits=kv_bits, context=wanted, tokens=max(wanted, min(room, sequences * wanted)),
            near=near, sequences=sequences, source=source, host_table=TablePlace(network, table),
        )  # fmt: skip
    finally:
        source.close()
    loaded = time.perf_counter()
    log.info("%.1f GB on %s in %.1f s; making its kernels ready", weights / 1e9, name, loaded - started)
    make_ready(executor)
    log.info("kernels ready in %.1f s", time.perf_counter() - loaded)
    return executor


def _numbers(devices: Sequence[torch.device]) -> tuple[int, ...]:
    return tuple(device.index for device in devices)


def _planned(
    network: Network, devices: Sequence[torch.device], wish: Wish, progress: Callable[[int, int], None] | None
) -> GpuExecutor:
    """An executor with experts in slots, main memory and on the disk. Raises MachineError with what is missing.

    devices: what the plan may use.
    """
    from ...place.here import plan_here
    from .boxed import boxed_executor

    plan = plan_here(network, network.embed.file, wish)
    if plan.short or not plan.cards:
        raise MachineError(f"{plan.short or 'the plan has no place for the model on the card'}; or use device cpu")
    for note in plan.notes:
        log.warning("%s", note)
    numbered = {device.index: device for device in devices}
    used = [numbered[card.index] for card in plan.cards]
    executor = boxed_executor(network, used, plan, progress=progress)
    make_ready(executor)
    return executor


def make_ready(executor: GpuExecutor, more: int = 0, **options: Any) -> None:
    """Capture steps and read a first chunk or piece of a prompt and so many tokens more; shorter ones where memory
    lacks for what was planned. Then, unless each would bring all absent experts to the card, prompts of some shorter
    lengths, for which kernels are cut otherwise.

    options: of `GpuExecutor.prepare`. Raises MachineError where it lacks for the shortest.
    """
    while True:
        chunk = executor.chunk
        try:
            longest = min(executor.piece, chunk) + more
            others = () if executor.boxes else (n for n in OTHER_CUTS if n < min(longest, executor.context))
            return executor.prepare(prompts=(longest, *others), **options)
        except MachineError as error:
            if executor.chunk == chunk:
                raise
            log.warning("%s", error)


def free_bytes(device: torch.device, vram: int | None) -> int:
    """Bytes for weights and state on a card of which `vram` may be used at most, and from now on can be."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    if vram is not None and vram < free:
        torch.cuda.set_per_process_memory_fraction(max(vram - CONTEXT, 0) / total, device)
        free = vram
    return free - RESERVE


def tokens_that_fit(network: Network, kv_bits: int, sequences: int, room: int) -> int:
    """Tokens of one sequence whose state `room` bytes hold, a multiple of 64; `sequences` share them."""
    few, many = (state_bytes(network, kv_bits, sequences, tokens) for tokens in (64, 64 * 1025))
    each = (many - few) / (64 * 1024)
    return max(0, int((room - few) / each) // 64 * 64 + 64)


def near_that_fit(network: Network, kv_bits: int, sequences: int, tokens: int, room: int) -> int:
    """Of so many tokens those whose keys and values `room` bytes hold, a multiple of 64, if main memory holds those of
    the others; 0 where it does not."""
    few, many = (laid_out(network, kv_bits, sequences, tokens, near).nbytes() for near in (64, 128))
    if few == many:  # one attention layer: prompts want all of it on the card
        return 0
    near = 64 * (1 + (room - few) // (many - few))
    homes = laid_out(network, kv_bits, sequences, tokens, near).homes if near > 0 else None
    return near if homes is not None and homes.host_bytes < usable_memory() else 0


def what_fits(network: Network, kv_bits: int, sequences: int, free: int) -> str:
    """What to ask for on a card with so many free bytes."""
    held = card_bytes(network)
    room = tokens_that_fit(network, kv_bits, sequences, free - RESERVE - held)
    if room < 64:
        return f"the weights alone take {held / 1e9:.1f} GB; ask for a smaller file, or the CPU"
    return f"a context of {room} tokens would fit"


def state_bytes(network: Network, kv_bits: int, sequences: int, tokens: int) -> int:
    """Bytes of all sequences' memory on the card."""
    return laid_out(network, kv_bits, sequences, tokens).nbytes()


def laid_out(network: Network, kv_bits: int, sequences: int, tokens: int, near: int | None = None) -> StatePool:
    """The memory of all sequences, without any bytes."""
    import torch

    from ...ops.gpu.ops import index_ratios
    from ...ops.gpu.state import StatePool

    ratios = index_ratios(network)
    return StatePool(network.config, ratios, sequences, tokens, tokens, kv_bits, torch.device("meta"), near=near)


def card_bytes(network: Network) -> int:
    """Bytes that the weights take on a card, where some block types are written out. The n-gram table stays in RAM."""
    from ...ops.gpu.planar import LAYOUTS

    tables = {id(layer.ngram.table) for layer in network.layers if layer.ngram is not None}
    held = {id(tensor): tensor for tensor in tensors_of(network) if id(tensor) not in tables}
    return sum(
        math.prod(tensor.shape[:-1]) * LAYOUTS[tensor.type.name].row_bytes(tensor.shape[-1]) for tensor in held.values()
    )


def weight_bytes(network: Network) -> int:
    """Bytes that the weights take on a card. The n-gram table is not among them: it stays in RAM."""
    total = sum(tensor.nbytes for tensor in tensors_of(network))
    return total - sum(layer.ngram.table.nbytes for layer in network.layers if layer.ngram is not None)
