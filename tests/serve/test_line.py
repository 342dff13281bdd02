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
        await line.let_in()[0].enter(client)
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
        line.let_in()
    with pytest.raises(QueueFull):
        line.check()
    line.leave()
    line.check()
    for task in tasks:
        task.cancel()


@in_loop
async def test_what_was_let_in_is_counted_before_it_comes_and_not_refused_then() -> None:
    line = Line(1, 2)
    places = line.let_in(2)
    await places[0].enter("a")
    assert (line.taken, line.waiting) == (1, 1)
    _, tasks = await enter_all(line, "b")
    with pytest.raises(QueueFull, match="2 requests are waiting"):
        line.let_in()
    late = asyncio.create_task(places[1].enter("a"))
    await asyncio.sleep(0)
    assert (line.taken, line.waiting) == (1, 2)
    places[0].leave()
    places[0].leave()
    await asyncio.gather(*tasks)
    assert (line.taken, line.waiting, late.done()) == (1, 1, False)
    line.leave()
    await late
    places[1].leave()
    assert (line.taken, line.waiting) == (0, 0)


@in_loop
async def test_all_of_a_request_come_or_none_and_who_stays_away_leaves_room() -> None:
    line = Line(1, 1)
    with pytest.raises(QueueFull):
        line.let_in(3)
    assert line.waiting == 0
    for place in line.let_in(2):
        place.leave()
    assert (line.taken, line.waiting) == (0, 0) and len(line.let_in(2)) == 2


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
