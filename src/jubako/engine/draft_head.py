"""A coarser output matrix for the draft layer: it guesses from fewer bytes, and guesses can't change the text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..arch.weights import Network
from ..errors import RequestError
from ..quant import encode
from ..quant.types import BY_NAME

PIECE = 1 << 24  # weights decoded at a time


def with_draft_head(network: Network, kind: str) -> Network:
    """The network with the draft layer's output matrix, its own or the trunk's, encoded anew as block type `kind`."""
    if network.draft is None:
        raise RequestError("draft_head: these files hold no draft layer")
    source = network.draft.output or network.output
    rows, columns = source.shape
    if kind not in BY_NAME or columns % BY_NAME[kind].weights:
        raise RequestError(f"draft_head is {kind!r}; it must be a block type that fits rows of {columns}, such as Q4_0")
    step = max(1, PIECE // columns)
    pieces = (source.row_range(start, min(start + step, rows)).decoded() for start in range(0, rows, step))
    data = np.concatenate([encode(kind, piece) for piece in pieces])
    head = replace(source, name=f"{source.name} as {kind}", type=BY_NAME[kind], data=data, scale=None)
    return replace(network, draft=replace(network.draft, output=head))
