"""What was used last time: experts' heat, kept in the user's cache so that a start gives slots to the right ones."""

from __future__ import annotations

import atexit
import hashlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ...arch.network import Network
from ...place.folders import cache_folder
from ...place.heat import Heat
from ...place.resident import expert_layers
from .swaps import Swaps

log = logging.getLogger(__name__)


def use_file(network: Network) -> Path:
    """Where the heat of this model's experts is kept: by its name, sizes and file name."""
    config = network.config
    named = f"{config.name}\n{len(expert_layers(network))} {config.experts}\n{network.embed.file.name}"
    return cache_folder("use") / f"{hashlib.sha256(named.encode()).hexdigest()[:24]}.npy"


def last_order(network: Network) -> np.ndarray | None:
    """All experts [n, 2] (layer, expert), those used most first; None if nothing is known."""
    heat = Heat(len(expert_layers(network)), network.config.experts, network.config.experts_used)
    return heat.order() if heat.load(use_file(network)) else None


def remember(swaps: Sequence[Swaps], network: Network) -> None:
    """Go on from what is known, and keep it now and then and at the end. swaps: of the cards, in the layers' order."""
    file = use_file(network)
    whole = Heat(len(expert_layers(network)), network.config.experts, network.config.experts_used)
    if whole.load(file):
        ends = np.cumsum([len(own.heat.values) for own in swaps])
        for own, values in zip(swaps, np.split(whole.values, ends[:-1]), strict=True):
            own.heat.values[:] = values

    def save() -> None:
        np.concatenate([own.heat.values for own in swaps], out=whole.values)
        try:
            whole.save(file)
        except OSError as error:
            log.warning("which experts are used could not be kept for the next start: %s", error)

    for own in swaps:
        own.keep = save
    atexit.register(save)
