"""Speed of the quantised products on this machine, for every block type.

Decode: rows from memory (a matrix larger than the caches) times 1 and 4 tokens, in GB/s and as a share of the read
bandwidth measured in the same run. Prefill: 512 tokens, in billions of multiply-adds a second, each counted once
although a token of a dense product is read as two columns.

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
    """Random blocks; their scales and floats are of ordinary size, since subnormal numbers are slow."""
    rng = np.random.default_rng(0)
    row_bytes = COLS // block_type.weights * block_type.bytes
    low, high = (100, 130) if block_type.name == "MXFP4" else (0, 64)
    data = rng.integers(low, high, (1024, row_bytes), dtype=np.uint8)
    if block_type.weights == 1:
        data[:, block_type.bytes - 1 :: block_type.bytes] = 0x3C
    return np.tile(data, ((rows + 1023) // 1024, 1))[:rows]


def product_seconds(block_type: BlockType, rows: int, columns: int) -> float:
    """Time of one product of a matrix of random blocks."""
    weight = _cpu.Weight(random_rows(block_type, rows), block_type.id)
    x = np.random.default_rng(1).standard_normal((columns, COLS)).astype(np.float32)
    return best_seconds(lambda: _cpu.linear(weight, x))


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
    for isa in args.isa.split(","):
        if not _cpu.isa_supported(isa):
            continue
        _cpu.set_isa(isa)
        for name in args.types.split(","):
            block_type = BY_NAME[name]
            row_bytes = COLS // block_type.weights * block_type.bytes
            bandwidth = read_bandwidth()
            line = f"{isa:7s} {name:8s} "
            for n in widths:
                rows = (args.mb << 20) // row_bytes
                speed = rows * row_bytes / product_seconds(block_type, rows, n) / 1e9
                line += f"  {speed:11.2f} {speed / bandwidth:6.0%}"
            line += f"  {512 * 2048 * COLS / product_seconds(block_type, 2048, 512) / 1e9:15.1f}"
            print(line, flush=True)


if __name__ == "__main__":
    main()
