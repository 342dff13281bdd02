"""A random network made straight in video memory: real widths and block types, no file and no copy of it in RAM.

Blocks are drawn from a pool of some megabytes that `random_blocks` makes for each type and deviation, so that every
type is valid and activations stay sane, as in a synthetic file. Small special tensors are those of `synth`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from zlib import crc32

import numpy as np
import torch

from ..arch.config import Config
from ..arch.tensor import Tensor
from ..arch.weights import Network
from ..quant import block_type
from .hollow import hollow_network
from .random_blocks import generator_for, random_blocks
from .synth import fill
from .tensor_plan import BlockTypes, PlannedTensor, Routing, plan_tensors

POOL_BYTES = 4 << 20


def synthetic_network(
    config: Config,
    device: torch.device,
    types: BlockTypes | None = None,
    routing: Routing = "flat",
    seed: int = 1,
    draft_head: str | None = None,
) -> tuple[Network, Callable[[Tensor], torch.Tensor]]:
    """A network without bytes, and the source that makes a tensor's raw blocks on the device when it is asked.

    draft_head: block type of an output matrix of the draft layer's own.
    """
    plan = {tensor.name: tensor for tensor in plan_tensors(config, types or BlockTypes())}
    if draft_head is not None and config.draft_layers:
        name = f"blk.{config.layers}.nextn.shared_head_head.weight"
        plan[name] = replace(plan["output.weight"], name=name, type=block_type(draft_head))
    return hollow_network(config, plan.values()), _Source(plan, device, routing, seed)


class _Source:
    """Makes raw blocks, of each tensor the same in whichever order they are asked for."""

    def __init__(self, plan: dict[str, PlannedTensor], device: torch.device, routing: Routing, seed: int) -> None:
        self.plan, self.device, self.routing, self.seed = plan, device, routing, seed
        self.pools: dict[tuple[str, float], torch.Tensor] = {}
        self.generator = torch.Generator(device)

    def __call__(self, tensor: Tensor) -> torch.Tensor:
        """uint8 [*shape[:-1], bytes of a row] on the device."""
        planned = self.plan[tensor.name]
        if planned.draw != "normal":
            made = torch.from_numpy(fill(planned, self.routing, self.seed)).to(self.device)
            return made.reshape(tensor.data.shape)
        pool = self._pool(planned)
        self.generator.manual_seed(self.seed * 1_000_003 + crc32(tensor.name.encode()))
        count = tensor.data.size // planned.type.bytes
        out = torch.empty(count, planned.type.bytes, dtype=torch.uint8, device=self.device)
        step = 1 << 24
        for start in range(0, count, step):
            n = min(step, count - start)
            picks = torch.randint(len(pool), (n,), generator=self.generator, device=self.device, dtype=torch.int32)
            torch.index_select(pool, 0, picks, out=out[start : start + n])
        return out.view(tensor.data.shape)

    def _pool(self, planned: PlannedTensor) -> torch.Tensor:
        """Blocks [n, bytes] to draw from."""
        key = (planned.type.name, planned.deviation)
        if key not in self.pools:
            blocks = random_blocks(
                planned.type,
                POOL_BYTES // planned.type.bytes,
                planned.deviation,
                generator_for(self.seed, f"{planned.type.name} {planned.deviation}"),
            )
            self.pools[key] = torch.from_numpy(np.ascontiguousarray(blocks)).to(self.device)
        return self.pools[key]
