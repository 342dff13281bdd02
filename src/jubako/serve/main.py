"""Running the server: the socket and the engine process first, then the application, until a signal ends it."""

from __future__ import annotations

import asyncio
import socket

import uvloop

from ..errors import MachineError
from .config import Config, bind
from .logs import set_up
from .supervisor import Engine


def serve(config: Config) -> None:
    """Serve until SIGINT or SIGTERM, then finish the running answers. Raises JubakoError where it can't begin."""
    set_up(config.log_level)
    with bind(config.host, config.port) as listener, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(config, listener))


async def _serve(config: Config, listener: socket.socket) -> None:
    engine = Engine(config.start, log_level=config.log_level)
    engine.start()
    try:
        await engine.launched()
        from .listen import listen  # takes as long to import as the engine to start; so they do it side by side

        await listen(config, engine, listener)
    finally:
        failed = engine.state == "failed"
        await engine.stop()
    if failed:
        raise MachineError(engine.problem)
