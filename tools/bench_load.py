"""How fast a model of full size gets from the page cache onto a GPU: every tensor read, sent and repacked.

    python tools/bench_load.py [--layers 48] [--threads 1,4,8,16] [--gigabytes 4] [--folder /tmp]

The tensors' bytes come from one file of some gigabytes, over and over, which is written first and so is in the page
cache. Their values mean nothing.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

from jubako.arch.tensor import Tensor
from jubako.engine.gpu.device import open_gpu
from jubako.engine.gpu.load import FileSource
from jubako.measure.geometry import network_config
from jubako.measure.synth_gpu import synthetic_network
from jubako.ops.gpu.weights import prepare


class Mapped:
    """Gives every tensor the next bytes of a file, through a FileSource; counts them."""

    def __init__(self, file: np.ndarray, source: FileSource) -> None:
        self.file, self.source, self.at, self.bytes = file, source, 0, 0

    def __call__(self, tensor: Tensor) -> torch.Tensor:
        size = tensor.data.size
        if self.at + size > len(self.file):
            self.at = 0
        data = self.file[self.at : self.at + size].reshape(tensor.data.shape)
        self.at, self.bytes = self.at + size, self.bytes + size
        return self.source(replace(tensor, data=data))


def written(folder: Path, size: int) -> np.ndarray:
    """A file of random bytes, mapped."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        generator = np.random.default_rng(0)
        piece = generator.integers(0, 256, 64 << 20, np.uint8)
        for start in range(0, size, len(piece)):
            file.write((piece ^ np.uint8(start >> 26 & 255)).tobytes())
        file.flush()
        return np.memmap(file.name, np.uint8, "r")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=48)
    parser.add_argument("--threads", default="8")
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    device = open_gpu()
    network, _ = synthetic_network(network_config(layers=arguments.layers, ngram_rows=2_000_000), device)
    file = written(arguments.folder, int(arguments.gigabytes * 1e9))
    print(f"{len(file) / 1e9:.1f} GB written, {arguments.layers} layers", flush=True)
    for threads in [int(part) for part in arguments.threads.split(",")]:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
        started = time.perf_counter()
        source = FileSource(device, threads)
        mapped = Mapped(file, source)
        weights = prepare(network, device, mapped)
        source.close()
        torch.cuda.synchronize()
        seconds = time.perf_counter() - started
        held, peak = torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
        kept = torch.cuda.memory_reserved()
        del weights
        print(
            f"{threads:2} threads: {mapped.bytes / 1e9:.1f} GB in {seconds:.1f} s, "
            f"{mapped.bytes / seconds / 1e9:.2f} GB/s; "
            f"on the card {held / 1e9:.1f} GB, at most {peak / 1e9:.1f}, held by torch {kept / 1e9:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
