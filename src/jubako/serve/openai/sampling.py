"""Sampling fields of a request to the engine's parameters."""

from __future__ import annotations

from dataclasses import replace

from ...core import SamplingParams
from ..answer import Service
from ..problems import Refused
from .fields import Sampling


def sampling_params(body: Sampling, defaults: SamplingParams) -> SamplingParams:
    """The defaults with what the request says."""
    names = ("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
    said = {name: getattr(body, name) for name in (*names, "seed") if getattr(body, name) is not None}
    if said.get("top_k") == -1:
        said["top_k"] = 0
    return replace(defaults, **said)


def logit_bias(body: Sampling, service: Service) -> tuple[tuple[int, float], ...]:
    """Pairs of token id and what is added to its logit. Raises Refused for what is no token id."""
    assert service.engine.ready
    pairs = []
    for key, value in (body.logit_bias or {}).items():
        if not (key.isdecimal() and key.isascii() and int(key) < service.engine.ready.vocabulary):
            raise Refused("invalid", f"logit_bias: {key!r:.40} is no token id of this model", "logit_bias")
        pairs.append((int(key), float(value)))
    return tuple(pairs)


def stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Stop sequences as a tuple, empty ones left out."""
    return tuple(text for text in ([stop] if isinstance(stop, str) else stop or []) if text)
