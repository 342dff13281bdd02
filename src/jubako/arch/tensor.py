"""The leaves of a network: stored tensors, cut and decoded on demand, never copied whole without need."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from ..files.tensors import StoredTensor
from ..quant import decode

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Tensor(StoredTensor):
    """A stored tensor, and the float32 factor its products are multiplied by: [1], [experts] or None.

    The factor is the `.scale` side tensor of NVFP4 files.
    """

    scale: np.ndarray | None = None

    @classmethod
    def of(cls, stored: StoredTensor, scale: np.ndarray | None = None) -> Tensor:
        """The same bytes as a network's leaf."""
        return cls(**{field.name: getattr(stored, field.name) for field in fields(StoredTensor)}, scale=scale)

    def decoded(self) -> np.ndarray:
        """All weights, decoded and scaled, shape `shape`."""
        return self._decoded(self.data, self.scale)

    def rows(self, ids: np.ndarray) -> torch.Tensor:
        """Rows `ids` [n] of a matrix, decoded and scaled: [n, columns]. Reads nothing else."""
        import torch

        return torch.from_numpy(self._decoded(self.data[ids], self.scale))

    def expert(self, index: int) -> torch.Tensor:
        """One expert of [experts, rows, columns], decoded and scaled: [rows, columns]."""
        scale = self.scale
        if scale is not None and len(scale) > 1:
            scale = scale[index : index + 1]
        import torch

        return torch.from_numpy(self._decoded(self.data[index], scale))

    def reshaped(self, shape: tuple[int, ...]) -> Tensor:
        """Same weights in the same order under another shape; rows must stay whole blocks."""
        row_bytes = shape[-1] // self.type.weights * self.type.bytes
        return replace(self, shape=shape, data=self.data.reshape(*shape[:-1], row_bytes))

    def row_range(self, start: int, stop: int) -> Tensor:
        """Rows start … stop-1 of the next-to-last dimension, as a view."""
        shape = (*self.shape[:-2], stop - start, self.shape[-1])
        return replace(self, shape=shape, data=self.data[..., start:stop, :])

    def column_range(self, start: int, stop: int) -> Tensor:
        """Columns start … stop-1, as a view; both must lie on block borders."""
        weights, size = self.type.weights, self.type.bytes
        assert start % weights == 0 and stop % weights == 0, f"{self.name}: columns {start}:{stop} split a block"
        shape = (*self.shape[:-1], stop - start)
        return replace(self, shape=shape, data=self.data[..., start // weights * size : stop // weights * size])

    def _decoded(self, data: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
        values = decode(self.type, np.ascontiguousarray(data))
        return values if scale is None else values * scale.reshape(-1, *[1] * (values.ndim - 1))
