"""A helper process that is asked again and again over a pipe, and killed when it takes too long.

Protocol, both ways: 4 bytes length (big endian), then JSON. First a setup, answered by anything; then requests.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import time
import weakref
from pathlib import Path
from typing import IO, Any

_START = 30.0  # seconds the process may take to start
_ANSWER = 256 << 20  # bytes an answer may have


class WorkerProcess:
    """A worker process; whatever goes wrong ends it. It also ends by itself when our side of the pipe closes."""

    def __init__(self, script: Path, setup: bytes) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(script)],  # -P: its own folder is no place to import from
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "TZ": os.environ.get("TZ", "")},
        )
        assert self._process.stdin and self._process.stdout
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self._close = weakref.finalize(self, _end, self._process)
        self._setup: bytes | None = setup

    def alive(self) -> bool:
        return self._close.alive and self._process.poll() is None

    def close(self) -> None:
        self._close()

    def ask(self, request: bytes, timeout: float) -> dict[str, Any]:
        """One exchange. Raises TimeoutError, another OSError or ValueError, and then the process is gone."""
        try:
            if self._setup:
                self._exchange(self._setup, time.monotonic() + _START)
                self._setup = None
            return self._exchange(request, time.monotonic() + timeout)
        except BaseException:
            self.close()
            raise

    def _exchange(self, request: bytes, deadline: float) -> dict[str, Any]:
        """Write and read as the pipes allow, in one thread."""
        answer = bytearray()
        expected = 4
        unsent = memoryview(len(request).to_bytes(4, "big") + request)
        with selectors.DefaultSelector() as selector:
            selector.register(self._in, selectors.EVENT_WRITE)
            selector.register(self._out, selectors.EVENT_READ)
            while len(answer) < expected:
                ready = selector.select(max(0.0, deadline - time.monotonic()))
                if not ready:
                    raise TimeoutError
                for key, _ in ready:
                    if key.fileobj is self._in:
                        unsent = unsent[os.write(self._in.fileno(), unsent[:65536]) :]
                        if not unsent:
                            selector.unregister(self._in)
                    else:
                        answer += _read(self._out)
                if len(answer) >= 4:
                    expected = 4 + int.from_bytes(answer[:4], "big")
                    if expected > _ANSWER:
                        raise OSError("its text is too long")
        result: dict[str, Any] = json.loads(answer[4:])
        return result


def _read(stream: IO[bytes]) -> bytes:
    data = os.read(stream.fileno(), 1 << 20)
    if not data:
        raise OSError("it used too much memory or time")
    return data


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream:
            stream.close()
