"""What all launches share: the interpreter mended, how precise float32 products are, sizes as powers of two."""

from __future__ import annotations

from typing import Any

import torch
import triton
from triton.runtime import interpreter

from .target import TENSOR, target

INTERPRETED = bool(triton.knobs.runtime.interpret)

# Columns that the decode kernels take; what one gets does not depend on how many there are.
COLUMNS = 16


def _mend_interpreter() -> None:
    """Two mends. Kernels may loop to a bound that lies in memory: recent numpy turns no array of one into an int. And
    a helper's call does not patch the language again, which took most of the time; its kernel has done so, and `core`,
    which only Triton's own helpers see, stays patched once it is."""
    patch = interpreter._patch_lang
    patch_tensor = interpreter._patch_lang_tensor
    core = triton.language.core
    done = False

    def mended(tensor: Any, scope: Any) -> None:
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal done
        if not done and any(value is core for value in self.fn.__globals__.values()):
            patch(self.fn)
            done = True
        return self.rewrite()(*args, **kwargs)

    interpreter._patch_lang_tensor = mended
    interpreter.InterpretedFunction.__call__ = called


if INTERPRETED:
    _mend_interpreter()


def has_tf32(device: torch.device) -> bool:
    """Whether tl.dot has the 19-bit products that float32 can be split into."""
    return target(device).form == TENSOR


def exact(device: torch.device) -> str:
    """`input_precision` of a tl.dot that must be float32 to a few units in the last place."""
    return "tf32x3" if has_tf32(device) else "ieee"


def overlapped(device: torch.device) -> dict[str, Any]:
    """Compiler options of a kernel that may start while the one before drains; it must call `wait` in every program."""
    return {"launch_pdl": True} if target(device).overlap else {}


def without_overlap(device: torch.device) -> dict[str, Any]:
    """Compiler options of a kernel that rounds products and sums one by one, and waits for the one before."""
    return {name: value for name, value in target(device).options.items() if name != "launch_pdl"}


def power_of_two(n: int) -> int:
    """The next power of two, as tl.arange wants."""
    return int(triton.next_power_of_2(n))
