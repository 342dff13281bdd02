"""Messages between the processes: what goes in comes out, anything else is refused."""

import json
import socket

import pytest

from jubako.core import (
    Constraint,
    Failed,
    Finished,
    GenerationStats,
    Reading,
    Request,
    SamplingParams,
    ThinkingBudget,
    TokenChoice,
    Tokens,
)
from jubako.serve.codec import dumps, loads
from jubako.serve.protocol import Cancel, Channel, Command, Happened, Report, Start, Submit, frame

REQUEST = Request(
    "a",
    (1, 2, 3),
    SamplingParams(0.5, 20, 0.9, seed=2**63),
    max_tokens=7,
    stop_ids=frozenset({4, 5}),
    keep=(2,),
    logit_bias=((3, -100.0), (4, 1.5)),
    top_logprobs=2,
    constraint=Constraint("regex", "a+", (9,), b"\xff\x00{"),
    thinking=ThinkingBudget(10, (1,), (2, 3)),
)
EVENTS = Happened(
    (
        ("a", Reading(1, 2, 0)),
        ("b", Tokens((TokenChoice(5), TokenChoice(6, -0.5, ((6, -0.5), (7, float("-inf"))))))),
        ("a", Finished(GenerationStats(3, 1, 2, 0.1, 0.2, "stop", 9, 2, 0.01, [3, 2], [2, 1]))),
        ("b", Failed("engine", "no")),
    )
)


def test_messages_come_out_as_they_went_in() -> None:
    assert loads(dumps(Submit(REQUEST)), Command) == Submit(REQUEST)
    assert loads(dumps(EVENTS), Report) == EVENTS


@pytest.mark.parametrize(
    "data",
    [
        ["Submit", "request"],
        ["Cancel", 5],
        ["Cancel"],
        ["Cancel", "a", "b"],
        ["Shutdown"],
        "Cancel",
        {},
        None,
        [],
        ["Happened", [["a", ["Tokens", [["TokenChoice", "5", None, []]]]]]],
        ["Happened", [["a", ["Tokens", [["TokenChoice", True, None, []]]]]]],
        ["Happened", [["a", ["Reading", 1, 2]]]],
    ],
)
def test_a_message_of_another_form_is_refused(data: object) -> None:
    with pytest.raises(ValueError):
        loads(json.dumps(data).encode(), Command | Report)


def test_values_that_the_dataclass_refuses_are_refused() -> None:
    wrong = dumps(Submit(REQUEST)).replace(b'["SamplingParams",0.5', b'["SamplingParams",-0.5')
    with pytest.raises(Exception, match="temperature is"):
        loads(wrong, Command)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ValueError):
        loads(b"[" * 100_000, Command)


def test_a_channel_puts_messages_together_however_they_are_cut() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel: Channel[Command] = Channel(theirs, Command)
        assert channel.receive(wait=False) == []
        data = frame(Submit(REQUEST)) + frame(Cancel("a"))
        ours.sendall(data[:10])
        assert channel.receive(wait=False) == []
        ours.sendall(data[10:-1])
        assert channel.receive(wait=True) == [Submit(REQUEST)]
        ours.sendall(data[-1:])
        assert channel.receive(wait=True) == [Cancel("a")]
        ours.close()
        with pytest.raises(EOFError):
            channel.receive(wait=False)


def test_a_length_beyond_the_limit_ends_the_conversation() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"\xff\xff\xff\xff")
        with pytest.raises(ValueError, match="4294967295 bytes"):
            Channel(theirs, Command).receive(wait=True)


def test_start_has_defaults_that_travel() -> None:
    assert loads(dumps(Start(("a.gguf",))), Command) == Start(("a.gguf",))
