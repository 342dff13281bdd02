"""A sequence: the tokens read so far and the network's state after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

import numpy as np

from ..errors import RequestError
from .executor import Executor


class Session:
    """One sequence of tokens on one executor. Owns the state; `ids` are exactly the tokens the state has read.

    One caller at a time: a second thread gets a RequestError. `changes` counts reads and resets, so that a generation
    notices when its session went on without it.
    """

    def __init__(self, executor: Executor, context: int, chunk: int) -> None:
        self.executor = executor
        self.context = context
        self.chunk = chunk
        self.ids: list[int] = []
        self.changes = 0
        self.state = executor.new_state(context)
        self._open = 0  # tokens of the last step, if nothing was read since
        self._busy = Lock()

    @property
    def length(self) -> int:
        return len(self.ids)

    def reset(self) -> None:
        """Forget everything."""
        with self._alone():
            self._forget()

    def _forget(self) -> None:
        self.changes += 1
        self.ids = []
        self._open = 0
        self.state = self.executor.new_state(self.context)

    def keep_prefix_of(self, ids: Sequence[int]) -> int:
        """Make the session a proper prefix of `ids`; how many tokens it keeps.

        Recurrent state can't be taken back, so it is all or nothing: everything read so far, or a fresh start.
        """
        if self.length >= len(ids) or self.ids != list(ids[: self.length]):
            self.reset()
        return self.length

    def prefill(self, ids: Sequence[int], progress: Callable[[int], None] | None = None) -> np.ndarray:
        """Read `ids` in chunks; float32 logits [vocabulary] after the last. `progress` gets the tokens read so far.

        Raises RequestError if they do not fit. Interrupted between chunks, the session holds those that were read;
        interrupted within one it is empty, as some layers have read its tokens and others have not.
        """
        last: np.ndarray = self._read(ids, last_only=True, progress=progress)[-1][-1]
        return last

    def logits(self, ids: Sequence[int]) -> np.ndarray:
        """Read `ids` in chunks; float32 logits [len(ids), vocabulary]."""
        return np.concatenate(self._read(ids, last_only=False))

    def decode(self, id: int) -> np.ndarray:
        """Read one token; float32 logits [vocabulary] after it."""
        return self.prefill([id])

    def step(self, ids: Sequence[int]) -> np.ndarray:
        """Read a few ids in one pass; float32 logits [len(ids), vocabulary]. `keep` may take the last of them back."""
        self.check_fits(ids, self.length)
        with self.stepping(ids):
            [logits] = self.executor.step([(ids, self.state)])
            return np.array(logits)

    @contextmanager
    def stepping(self, ids: Sequence[int]) -> Iterator[None]:
        """Inside, the executor reads a step at the end of the state; `ids` then are what it read, which must fit."""
        with self._alone():
            self.changes += 1
            try:
                yield
            except BaseException:
                self._forget()
                raise
            self.ids.extend(ids)
            self._open = len(ids)

    def keep(self, count: int) -> None:
        """Accept the first `count` of the tokens that the last step read, forget the others."""
        with self._alone():
            self.state.keep(count)
            del self.ids[len(self.ids) - self._open + count :]
            self._open = count

    def _read(
        self, ids: Sequence[int], *, last_only: bool, progress: Callable[[int], None] | None = None
    ) -> list[np.ndarray]:
        self.check_fits(ids, self.length)
        logits: list[np.ndarray] = []
        for start in range(0, len(ids), self.chunk):
            part = list(ids[start : start + self.chunk])
            with self._alone():
                self.changes += 1
                try:
                    result = self.executor.forward(part, self.state, last_only=last_only)
                    self.ids.extend(part)
                    self._open = 0
                except BaseException:
                    self._forget()
                    raise
            logits = [result] if last_only else [*logits, result]
            if progress:
                progress(start + len(part))
        return logits

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads out."""
        if not self._busy.acquire(blocking=False):
            raise RequestError("another thread is using this session; give each its own")
        try:
            yield
        finally:
            self._busy.release()

    def check_fits(self, ids: Sequence[int], start: int = 0) -> None:
        """Raise RequestError unless `ids` are valid tokens and fit in the context from position `start` on."""
        if len(ids) == 0:
            raise RequestError("the prompt is empty; give at least one token")
        if start + len(ids) > self.context:
            raise RequestError(
                f"{start + len(ids)} tokens do not fit in the context of {self.context}; "
                "shorten the prompt or ask for a larger context"
            )
        vocabulary = self.executor.config.vocabulary
        for id in ids:
            if not 0 <= id < vocabulary:
                raise RequestError(f"token id {id} is outside the vocabulary of {vocabulary}")
