"""The states and pages of the sequences that run together."""

from __future__ import annotations

from collections.abc import Iterable

from ..core import Request
from .executor import STEP_COLUMNS
from .plan import SPARE_PAGES, SharingExecutor, pages_for
from .running import Running
from .saved.file import Layout


class Room:
    """Owns the states of up to `sequences` sequences and the pool of their pages, as the executor lays them out.

    context  tokens that a sequence may have: what was asked for, or less where the pool is small
    idle     states that nobody uses
    key      32 bytes, of the model

    Raises MachineError if it does not fit in memory.
    """

    def __init__(
        self, executor: SharingExecutor, sequences: int, context: int, prefix_bytes: int | None, key: bytes
    ) -> None:
        memory = executor.share_memory(sequences, context, prefix_bytes)
        self.pool, self.idle = memory.pool, memory.states
        self.prefix_bytes, self.planned_bytes = memory.prefix_bytes, memory.total
        page = self.pool.page_tokens
        self._pages = self.pool.pages.free
        self.context = min(context, (self._pages - SPARE_PAGES) * page - STEP_COLUMNS)
        self.layout = Layout(key, context, page, self.pool.page_bytes, self.idle[0].fixed_bytes)

    def fits(self, request: Request, running: Iterable[Running]) -> bool:
        """Whether there are pages for all that those running and this one may come to need."""
        taken: set[int] = set()
        growth = self._most_pages(request)
        for run in running:
            taken.update(run.state.pages.ids)
            growth += self._most_pages(run.request) - len(run.state.pages.ids)
        return len(taken) + growth <= self._pages

    def figures(self) -> dict[str, int]:
        """Tokens and bytes of the pages in use, of sequences and checkpoints; far: what a card left to main memory."""
        pages = self.pool.pages
        used = pages.count - pages.free
        return {
            "tokens": used * self.pool.page_tokens,
            "bytes": used * self.pool.page_bytes,
            "far": self.pool.bytes_in_ram(used),
            "budget": pages.count * self.pool.page_bytes,
        }

    def _most_pages(self, request: Request) -> int:
        return pages_for(min(len(request.prompt) + request.max_tokens, self.context), self.pool.page_tokens)
