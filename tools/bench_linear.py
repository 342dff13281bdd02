"""Speed of the quantised products on this machine, for every block type.

Decode: rows from memory (a matrix larger than the caches) times 1 and 4 columns, in GB/s and as a share of the read
bandwidth measured in the same run. Prefill: 512 columns, in billions of multiply-adds a second.

    python tools/bench_linear.py [--isa avx512] [--types Q8_0,IQ3_XXS] [--threads 2] [--mb 400]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

from jubako import _cpu
from jubako.quant.types import BY_NAME, BlockType

COLS = 2560
TYPES = (
    "Q8_0 Q6_K Q5_K Q4_K Q3_K Q2_K Q5_1 Q5_0 Q4_1 Q4_0 IQ4_NL IQ4_XS MXFP4 NVFP4 Q2_0 "
    "IQ3_S IQ3_XXS IQ2_S IQ2_XS IQ2_XXS IQ1_M IQ1_S F32 F16 BF16"
)


def best_seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """The fastest of several runs, after one to warm up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def random_rows(block_type: BlockType, rows: int) -> np.ndarray:
    """Random blocks whose half-precision numbers are all finite."""
    row_bytes = COLS // block_type.weights * block_type.bytes
    data = np.random.default_rng(0).integers(0, 64, (1024, row_bytes), dtype=np.uint8)
    return np.tile(data, ((rows + 1023) // 1024, 1))[:rows]


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="avx2,avx512")
    parser.add_argument("--types", default=TYPES.replace(" ", ","))
    parser.add_argument("--threads", type=int, default=_cpu.default_threads())
    parser.add_argument("--mb", type=int, default=400, help="megabytes of a matrix for decode")
    parser.add_argument("--columns", default="1,4", help="decode widths")
    args = parser.parse_args()
    _cpu.set_threads(args.threads)
    widths = [int(n) for n in args.columns.split(",")]
    buffer = np.ones(args.mb << 20, np.uint8)

    def read_bandwidth() -> float:
        return buffer.nbytes / best_seconds(lambda: _cpu.read_all(buffer)) / 1e9

    print(f"{args.threads} threads, read bandwidth {read_bandwidth():.1f} GB/s")
    print("isa     type     " + "".join(f"  {n:2d} col GB/s  share" for n in widths) + "   512 col GMAC/s")
    rng = np.random.default_rng(1)
    for isa in args.isa.split(","):
        if not _cpu.isa_supported(isa):
            continue
        _cpu.set_isa(isa)
        for name in args.types.split(","):
            block_type = BY_NAME[name]
            row_bytes = COLS // block_type.weights * block_type.bytes
            bandwidth = read_bandwidth()
            weight = _cpu.Weight(random_rows(block_type, (args.mb << 20) // row_bytes), block_type.id)
            line = f"{isa:7s} {name:8s} "
            for n in widths:
                x = rng.standard_normal((n, COLS)).astype(np.float32)
                speed = weight.rows * row_bytes / best_seconds(lambda: _cpu.linear(weight, x)) / 1e9
                line += f"  {speed:11.2f} {speed / bandwidth:6.0%}"
            weight = _cpu.Weight(random_rows(block_type, 2048), block_type.id)
            x = rng.standard_normal((512, COLS)).astype(np.float32)
            seconds = best_seconds(lambda: _cpu.linear(weight, x), repeats=3)
            line += f"  {512 * 2048 * COLS / seconds / 1e9:15.1f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
