"""The line before the engine: fair, bounded, and whole after cancelling."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from jubako.serve.line import Line
from jubako.serve.problems import QueueFull


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


async def enter_all(line: Line, clients: str) -> tuple[list[str], list[asyncio.Task[None]]]:
    order: list[str] = []

    async def come(client: str) -> None:
        await line.enter(client)
        order.append(client)

    tasks = [asyncio.create_task(come(client)) for client in clients]
    await asyncio.sleep(0)
    return order, tasks


@in_loop
async def test_a_client_with_many_requests_does_not_starve_another() -> None:
    line = Line(1, 100)
    order, tasks = await enter_all(line, "aaaaab")
    for _ in range(5):
        line.leave()
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert "".join(order) == "aabaaa"


@in_loop
async def test_within_a_client_first_come_first_served() -> None:
    line = Line(2, 10)
    order, tasks = await enter_all(line, "abcd")
    assert order == ["a", "b"] and (line.taken, line.waiting) == (2, 2)
    line.leave()
    await asyncio.sleep(0)
    line.leave()
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c", "d"]


@in_loop
async def test_more_than_may_wait_are_refused() -> None:
    line = Line(1, 2)
    _, tasks = await enter_all(line, "abc")
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        await line.enter("d")
    with pytest.raises(QueueFull):
        line.check()
    line.leave()
    line.check()
    for task in tasks:
        task.cancel()


@in_loop
async def test_cancelling_in_the_line_leaves_no_trace() -> None:
    line = Line(1, 10)
    order, tasks = await enter_all(line, "abc")
    tasks[1].cancel()
    await asyncio.sleep(0)
    assert line.waiting == 1
    line.leave()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a", "c"]
    line.leave()
    assert (line.taken, line.waiting) == (0, 0)


@in_loop
async def test_a_place_that_comes_while_its_owner_is_cancelled_goes_to_the_next() -> None:
    line = Line(1, 10)
    order, tasks = await enter_all(line, "abc")
    line.leave()  # gives the place to b, whose task has not run yet
    tasks[1].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert order == ["a", "c"] and line.taken == 1
