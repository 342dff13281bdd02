"""A server process on a port of its own, with an engine process behind it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

import jubako

SMALL = Path(jubako.__file__).parent / "models" / "jubako-small.gguf"
TINY = Path(__file__).parents[1] / "data" / "tiny" / "tiny-bf16.gguf"


@dataclass
class Server:
    """A server process; `url` ends without a slash, `headers` go with every request."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=self.headers, timeout=30)

    def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers={**self.headers, **headers}, timeout=60)

    def children(self) -> list[int]:
        """Process ids of the engine, which is the server's only child that was started with a socket."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                    words = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if int(parent) == self.process.pid and b"jubako.serve.engine" in words:
                    found.append(int(entry.name))
        return found

    def idle(self, seconds: float = 10.0) -> bool:
        """Whether the engine comes to rest in this time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            status = self.get("/v1/status").json()
            if not status["requests"]["running"] and not status["sequences"]["running"]:
                return True
            time.sleep(0.05)
        return False

    def wait_ready(self, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if self.get("/health").status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        raise AssertionError(self.log.read_text())

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


def start_server(folder: Path, *options: str, model: Path | None = None, wait: bool = True) -> Server:
    """A server for `model`, or the one that ships; `folder` gets its log and its sessions."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / f"server-{port}.log"
    given = [str(model)] if model else []
    given += ["--port", str(port), "--threads", "1", "--sessions", str(folder / "sessions"), *options]
    words = [sys.executable, "-m", "jubako.cli", "serve", *given]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
    server = Server(process, port, log)
    if wait:
        try:
            server.wait_ready()
        except BaseException:
            process.kill()
            raise
    return server
