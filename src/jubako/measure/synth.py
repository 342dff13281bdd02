"""Random networks of real widths, streamed to a GGUF file: speed and memory can be measured without the real weights.

`network_config` gives the sizes, `plan_tensors` the tensors, `fill` the blocks of one tensor; `synth` writes them all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..arch.config import Config
from ..errors import MachineError, RequestError
from ..files import GgufWriter
from ..quant import encode
from .geometry import metadata
from .random_blocks import generator_for, random_blocks
from .tensor_plan import BlockTypes, PlannedTensor, Routing, plan_tensors
from .vocabulary import vocabulary

CHUNK = 8 << 20  # bytes made at a time; part of the random sequence, so a change changes every file
SKEW = 0.24  # a skewed router's row norms fall with rank^-SKEW
_AHEAD = 4  # chunks in flight


def synth(
    path: Path | str,
    config: Config,
    types: BlockTypes | None = None,
    routing: Routing = "flat",
    seed: int = 1,
    progress: Callable[[int], None] | None = None,
    threads: int = 2,
) -> list[PlannedTensor]:
    """Write the file; the same arguments give the same bytes, whatever the threads. Returns its tensors.

    progress: called with the bytes just written. Raises MachineError when the disk lacks the room, RequestError for
    types that do not fit.
    """
    plan = plan_tensors(config, types or BlockTypes())
    path = Path(path)
    if not path.parent.is_dir():
        raise RequestError(f"{path.parent} is not a folder; make it first, or name another place for {path.name}")
    if path.exists() and not path.is_file():
        raise RequestError(f"{path} is there and is no file; name another")
    if seed < 0:
        raise RequestError(f"seed is {seed}; it must be at least 0")
    needed, free = sum(tensor.nbytes for tensor in plan), shutil.disk_usage(path.parent).free
    if needed > free:
        raise MachineError(f"{path}: {needed / 1e9:.1f} GB are needed, {free / 1e9:.1f} GB are free on that disk")
    with GgufWriter(path) as writer, ThreadPoolExecutor(threads) as pool:
        for key, value in (metadata(config) | vocabulary(config.vocabulary)).items():
            writer.add(key, value)
        for tensor in plan:
            writer.declare(tensor.name, tensor.type, tensor.shape)
        for tensor in plan:
            writer.write(tensor.name, _watched(_chunks(tensor, routing, seed, pool), progress))
    return plan


def fill(tensor: PlannedTensor, routing: Routing = "flat", seed: int = 1) -> NDArray[np.uint8]:
    """The blocks of one tensor, uint8 [*shape[:-1], bytes of a row]: what `synth` writes for it."""
    parts = [_part(tensor, routing, seed, part, rows) for part, rows in _parts(tensor)]
    return np.concatenate(parts).reshape(*tensor.shape[:-1], tensor.row_bytes)


def _parts(tensor: PlannedTensor) -> Iterator[tuple[int, int]]:
    """(number, rows) of the parts a tensor is made in. Special draws are one part."""
    rows = max(1, CHUNK // tensor.row_bytes) if tensor.draw == "normal" else tensor.rows
    for part, start in enumerate(range(0, tensor.rows, rows)):
        yield part, min(rows, tensor.rows - start)


def _chunks(
    tensor: PlannedTensor, routing: Routing, seed: int, pool: ThreadPoolExecutor
) -> Iterator[NDArray[np.uint8]]:
    """The parts in order, a few made ahead."""
    waiting: list[Future[NDArray[np.uint8]]] = []
    for part, rows in _parts(tensor):
        waiting.append(pool.submit(_part, tensor, routing, seed, part, rows))
        if len(waiting) == _AHEAD:
            yield waiting.pop(0).result()
    for chunk in waiting:
        yield chunk.result()


def _watched(
    chunks: Iterator[NDArray[np.uint8]], progress: Callable[[int], None] | None
) -> Iterator[NDArray[np.uint8]]:
    for chunk in chunks:
        yield chunk
        if progress:
            progress(chunk.nbytes)


def _part(tensor: PlannedTensor, routing: Routing, seed: int, part: int, rows: int) -> NDArray[np.uint8]:
    """uint8 [rows, bytes of a row] of one part."""
    generator = generator_for(seed, tensor.name, part)
    if tensor.draw == "normal":
        blocks = rows * (tensor.shape[-1] // tensor.type.weights)
        return random_blocks(tensor.type, blocks, tensor.deviation, generator).reshape(rows, tensor.row_bytes)
    return encode(tensor.type, _values(tensor, routing, generator).reshape(rows, -1))


def _values(tensor: PlannedTensor, routing: Routing, generator: np.random.Generator) -> NDArray[np.float32]:
    """float32 values of the tensors that are not plain normal matrices."""
    shape = tensor.shape
    if tensor.draw == "router":
        rows = generator.standard_normal(shape, np.float32) * np.float32(tensor.deviation)
        if routing == "skewed":
            norms = np.arange(1, shape[0] + 1, dtype=np.float32) ** np.float32(-SKEW)
            norms /= np.sqrt(np.mean(norms**2))
            rows *= generator.permutation(norms)[:, None]
        return rows
    if tensor.draw == "norm":
        return 1 + np.float32(tensor.deviation) * generator.standard_normal(shape, np.float32)
    if tensor.draw == "decay":  # -exp(A_log), as Mamba 2 starts: A uniform
        return -generator.uniform(1.0, 16.0, shape).astype(np.float32)
    assert tensor.draw == "time_step"  # softplus of it is log-uniform from 0.001 to 0.1
    step = np.exp(generator.uniform(np.log(1e-3), np.log(0.1), shape))
    return np.log(np.expm1(step)).astype(np.float32)
