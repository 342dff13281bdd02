"""What a GPU's memory and its link to main memory give, alone and beside working CPU kernels."""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from ...quant import block_type
from ..machine import CardRates, Together
from ..memory import usable_memory
from .cpu import REFERENCE, Experts
from .touch import BLOCK, touch, touch_once

SIZE = 1 << 30  # bytes of a large copy
SMALL = 4096
NODES = 256  # launches in the graph whose time per launch is taken
BUDGET = 0.15  # seconds of repeating one measurement
PIN_PIECE = 1 << 30
PIN_SECONDS = 2.0


def driver() -> str:
    """Version of the driver, as it says itself; "" where it can't be read."""
    from pathlib import Path

    for path, place in (("/proc/driver/nvidia/version", 7), ("/sys/module/amdgpu/version", 0)):
        try:
            words = Path(path).read_text().split()
        except OSError:
            continue
        numbers = [word for word in words if word[:1].isdigit() and "." in word]
        if numbers:
            return numbers[0]
        return words[place] if place < len(words) else ""
    return ""


def best_seconds(work: Callable[[], object], budget: float = BUDGET) -> float:
    """Seconds that the device takes for `work`: the best of the tries that fit in the budget, four at least. A card
    that was idle needs some of it to come up to speed."""
    work()
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < 4 or time.perf_counter() - began < budget:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1000)
    return float(min(times))


def measure(device: torch.device, size: int = SIZE) -> CardRates:
    """All rates of one card."""
    torch.cuda.set_device(device)
    free, total = torch.cuda.mem_get_info(device)
    size = min(size, free // 8)
    a = torch.empty(size, dtype=torch.uint8, device=device)
    b = torch.empty(size, dtype=torch.uint8, device=device)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    host.fill_(1)
    copy = 2 * size / best_seconds(lambda: b.copy_(a))
    read = size / best_seconds(lambda: touch(a))
    to_card = size / best_seconds(lambda: a.copy_(host, non_blocking=True))
    to_host = size / best_seconds(lambda: host.copy_(a, non_blocking=True))
    mapped = size / best_seconds(lambda: touch(host))
    return CardRates(
        name=torch.cuda.get_device_name(device),
        total=total,
        free=free,
        read=read,
        copy=copy,
        to_card=to_card,
        to_host=to_host,
        latency=_latency(a, host),
        mapped=mapped,
        node=_node_seconds(a),
        matmul=_multiply_adds(device),
    )


def _latency(card: torch.Tensor, host: torch.Tensor, count: int = 200) -> float:
    """Seconds of a small copy to the card that the host waits for."""
    stream = torch.cuda.current_stream()
    for timed in (False, True):
        started = time.perf_counter()
        for _ in range(count):
            card[:SMALL].copy_(host[:SMALL], non_blocking=True)
            stream.synchronize()
        if timed:
            return (time.perf_counter() - started) / count
    raise AssertionError


def _node_seconds(card: torch.Tensor) -> float:
    """Seconds of a small launch in a captured graph."""
    small = card[:BLOCK]
    touch_once(small)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            touch_once(small)
    return best_seconds(graph.replay) / NODES


def _multiply_adds(device: torch.device, width: int = 4096) -> float:
    """Multiply-adds/s of a product of two square matrices in half precision."""
    a = torch.randn(width, width, dtype=torch.float16, device=device)
    return width**3 / best_seconds(lambda: a @ a)


def together(device: torch.device, pool: NDArray[np.uint8], seconds: float = 1.0, size: int = SIZE) -> Together:
    """The card reads pinned memory in place while the CPU's kernels work through experts: the rate of each."""
    torch.cuda.set_device(device)
    host = torch.empty(min(size, torch.cuda.mem_get_info(device)[0] // 8), dtype=torch.uint8, pin_memory=True)
    host.fill_(1)
    touch(host)
    torch.cuda.synchronize()
    experts = Experts(block_type(REFERENCE), pool)
    end = time.perf_counter() + seconds
    moved = [0.0]

    def read() -> None:
        started = time.perf_counter()
        done = 0
        while time.perf_counter() < end:
            touch(host)
            torch.cuda.current_stream().synchronize()
            done += host.nbytes
        moved[0] = done / (time.perf_counter() - started)

    reader = threading.Thread(target=read)
    reader.start()
    started, done = time.perf_counter(), 0
    while time.perf_counter() < end:
        done += experts.step()
    rate = done / (time.perf_counter() - started)
    reader.join()
    return Together(link=moved[0], experts=rate, kind=REFERENCE)


def pinnable(seconds: float = PIN_SECONDS) -> tuple[int, float]:
    """Bytes that can be pinned at most, as far as that shows in a short time, and bytes/s of pinning.

    Memory is pinned piece by piece and given back; where all pieces went well, what a plan may take counts.
    """
    most = usable_memory()
    runtime = torch.cuda.cudart()
    pieces: list[tuple[mmap.mmap, int]] = []
    started = time.perf_counter()
    refused = False
    while len(pieces) * PIN_PIECE + PIN_PIECE <= most and time.perf_counter() - started < seconds:
        piece = mmap.mmap(-1, PIN_PIECE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(piece))
        if int(runtime.cudaHostRegister(address, PIN_PIECE, 0)):
            refused = True
            break
        pieces.append((piece, address))
    spent = time.perf_counter() - started
    for _, address in pieces:
        runtime.cudaHostUnregister(address)
    done = len(pieces) * PIN_PIECE
    return (done if refused else most), done / spent if spent and done else 0.0
