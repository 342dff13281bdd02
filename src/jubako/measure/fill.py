"""A long context without reading one: caches filled with random rows, so that decoding at depth can be measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from ..engine.executor import State
from ..engine.session import Session


@runtime_checkable
class Fillable(Protocol):
    """An executor that can pretend to have read tokens."""

    def pretend(self, ids: Sequence[int], state: State) -> None:
        """Advance `state` past `ids` with random keys, values and index keys in its caches; recurrent state stays."""


def fill_caches(session: Session, ids: Sequence[int]) -> bool:
    """Take `ids` as read; whether the executor can do that. What follows runs at full cost, on meaningless caches."""
    session.check_fits(ids, session.length)
    if not isinstance(session.executor, Fillable):
        return False
    session.executor.pretend(ids, session.state)
    session.ids.extend(ids)
    return True
