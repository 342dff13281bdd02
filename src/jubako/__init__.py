"""Jubako: an inference engine for Qwen3.8-Flash-Next on hardware you own.

    import jubako

    model = jubako.load("model.gguf")
    answer = model.generate("Once upon a time", max_tokens=64)
    for token in answer:
        print(token.text, end="", flush=True)
    print(answer.stats.tokens_per_second)

The public names are those of `__all__`; see `engine.model.Model` for what a model can do.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import quant
    from .core import GenerationStats, SamplingParams, Token
    from .engine.generate import Generation
    from .engine.model import Model, load
    from .engine.session import Session
    from .errors import (
        FileFormatError,
        JubakoError,
        MachineError,
        MissingTensorError,
        RequestError,
        TemplateError,
    )

__version__ = "0.1.0"

__all__ = [
    "FileFormatError",
    "Generation",
    "GenerationStats",
    "JubakoError",
    "MachineError",
    "MissingTensorError",
    "Model",
    "RequestError",
    "SamplingParams",
    "Session",
    "TemplateError",
    "Token",
    "load",
    "quant",
]

_HOME = {
    **dict.fromkeys(("GenerationStats", "SamplingParams", "Token"), "core"),
    **dict.fromkeys(("Model", "load"), "engine.model"),
    "Generation": "engine.generate",
    "Session": "engine.session",
    **dict.fromkeys((name for name in __all__ if name.endswith("Error")), "errors"),
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: importing torch takes seconds, and a help text needs none of it."""
    if name == "quant":
        return import_module(".quant", __name__)
    if name in _HOME:
        return getattr(import_module("." + _HOME[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
