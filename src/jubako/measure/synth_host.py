"""Random experts in pinned main memory, real blocks of the network's types: to measure steps whose experts lie there.

A few layers are made and stand for all of them: one layer of the full geometry takes 1.1 GB, far more than any cache,
so a dozen are read as slowly as 48, and are there in seconds.
"""

from __future__ import annotations

import numpy as np
import torch

from ..arch.config import Config
from ..ops.gpu.host import HostExperts, addresses_of
from ..ops.gpu.pinned import room
from ..quant import BlockType
from .random_blocks import generator_for, random_blocks
from .tensor_plan import BlockTypes, PlannedTensor, plan_tensors

POOL_BYTES = 4 << 20  # of different blocks of each type, which are drawn from
DRAWN = 1 << 23  # blocks at a time
PARTS = ("gate", "up", "down")


def synthetic_host(config: Config, device: torch.device, types: BlockTypes, distinct: int) -> HostExperts:
    """Experts of all layers and the draft layer, of which `distinct` have memory of their own."""
    plan = {tensor.name: tensor for tensor in plan_tensors(config, types)}
    maker = _Maker(device)
    kept = []
    for layer in range(min(distinct, config.layers)):
        kept.append([maker.stack(plan[f"blk.{layer}.ffn_{part}_exps.weight"]) for part in PARTS])
    addresses = [addresses_of(kept[layer % len(kept)]) for layer in range(config.layers + config.draft_layers)]
    return HostExperts(np.stack(addresses), kept, fixed=True)


class _Maker:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pools: dict[tuple[str, float], torch.Tensor] = {}
        self.generator = torch.Generator(device)
        self.generator.manual_seed(17)

    def stack(self, planned: PlannedTensor) -> np.ndarray:
        """uint8 [experts, rows, row bytes]."""
        kind, (experts, rows, _) = planned.type, planned.shape
        memory = room(planned.nbytes, self.device)
        blocks = torch.from_numpy(memory).view(-1, kind.bytes)
        pool = self._pool(kind, planned.deviation)
        for first in range(0, len(blocks), DRAWN):
            part = blocks[first : first + DRAWN]
            picks = torch.randint(len(pool), (len(part),), generator=self.generator, device=self.device)
            part.copy_(pool[picks], non_blocking=True)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return memory.reshape(experts, rows, planned.row_bytes)

    def _pool(self, kind: BlockType, deviation: float) -> torch.Tensor:
        key = (kind.name, deviation)
        if key not in self.pools:
            made = random_blocks(kind, POOL_BYTES // kind.bytes, deviation, generator_for(1, kind.name))
            self.pools[key] = torch.from_numpy(np.ascontiguousarray(made)).to(self.device)
        return self.pools[key]
