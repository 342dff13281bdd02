"""Jubako: an inference engine for Qwen3.8-Flash-Next on hardware you own.

    import jubako

    model = jubako.load("model.gguf")
    answer = model.generate("Once upon a time", max_tokens=64)
    for token in answer:
        print(token.text, end="", flush=True)
    print(answer.stats.tokens_per_second)

The public names are those of `__all__`; see `engine.model.Model` for what a model can do.
"""

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
