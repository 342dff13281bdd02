"""The instruction set on a CPU: thin bindings over the kernels of csrc, on numpy arrays and the file's own blocks."""

from .kv import KvPool
from .ops import CpuOps
from .state import CpuState

__all__ = ["CpuOps", "CpuState", "KvPool"]
