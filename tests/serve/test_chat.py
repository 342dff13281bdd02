"""POST /v1/chat/completions through the official client: whole, streamed, with tools, with a form."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionChunk
from pydantic import BaseModel
from server_process import Server

HELLO: list[Any] = [{"role": "user", "content": "Tell me a story about a cat."}]
FORECAST: Any = {
    "type": "function",
    "function": {
        "name": "get_forecast",
        "description": "The forecast for a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city", "days"],
        },
    },
}
CITY: list[Any] = [{"role": "user", "content": "What is the weather in Paris for 3 days?"}]


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def ask(client: openai.OpenAI, messages: list[Any] = HELLO, **more: Any) -> Any:
    return client.chat.completions.create(
        model="any", messages=messages, **{"temperature": 0, "max_tokens": 40, **more}
    )


def joined(chunks: list[ChatCompletionChunk], field: str, choice: int = 0) -> str:
    own = [c for chunk in chunks for c in chunk.choices if c.index == choice]
    return "".join(getattr(c.delta, field, None) or "" for c in own)


def test_thinking_is_apart_from_the_answer_and_counted(client: openai.OpenAI) -> None:
    answer = ask(client, max_tokens=200)
    message = answer.choices[0].message
    assert message.role == "assistant" and message.content and message.reasoning_content
    assert "think>" not in message.content + message.reasoning_content
    details = answer.usage.completion_tokens_details
    assert 0 < details.reasoning_tokens < answer.usage.completion_tokens
    assert answer.choices[0].finish_reason == "stop"


@pytest.mark.parametrize(
    "way",
    [
        {"reasoning_effort": "none"},
        {"extra_body": {"enable_thinking": False}},
        {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"extra_body": {"thinking": {"type": "disabled"}}},
        {"extra_body": {"reasoning": {"enabled": False}}},
    ],
)
def test_thinking_is_switched_off_in_any_of_the_usual_ways(client: openai.OpenAI, way: dict[str, Any]) -> None:
    answer = ask(client, **way)
    assert answer.choices[0].message.content
    assert not hasattr(answer.choices[0].message, "reasoning_content")
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_budget_ends_thinking(client: openai.OpenAI) -> None:
    answer = ask(client, extra_body={"thinking_budget": 3}, max_tokens=60)
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens_details.reasoning_tokens <= 8


def test_all_tokens_spent_on_thinking_can_be_told(client: openai.OpenAI) -> None:
    answer = ask(client, max_tokens=3)
    assert answer.choices[0].finish_reason == "length" and answer.choices[0].message.content == ""
    assert answer.choices[0].message.reasoning_content
    assert answer.usage.completion_tokens_details.reasoning_tokens == 3


def test_a_stream_has_the_order_that_clients_expect(client: openai.OpenAI) -> None:
    whole = ask(client, max_tokens=200).choices[0].message
    chunks = list(ask(client, max_tokens=200, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:-1])
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["stop"]
    assert chunks[-1].choices == [] and chunks[-1].usage and chunks[-1].usage.completion_tokens > 10
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert joined(chunks, "content") == whole.content
    assert joined(chunks, "reasoning_content") == whole.reasoning_content
    kinds = [
        next((k for k in ("reasoning_content", "content") if getattr(c.choices[0].delta, k, None)), "")
        for c in chunks[:-1]
    ]
    assert [k for k in kinds if k] == sorted((k for k in kinds if k), reverse=True)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"} and len({chunk.id for chunk in chunks}) == 1


def test_a_stream_without_usage_says_nothing_of_it(server: Server) -> None:
    answer = server.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 3, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]" and all(line.startswith("data: {") for line in lines[:-1])
    assert all("usage" not in json.loads(line[6:]) for line in lines[:-1])


def test_progress_of_the_prompt_on_request(server: Server) -> None:
    messages = [{"role": "user", "content": "apple pear " * 900}]
    body = {"messages": messages, "max_tokens": 1, "stream": True, "return_progress": True}
    lines = server.post("/v1/chat/completions", body).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    progress = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert len(progress) > 2
    assert [p["processed"] for p in progress] == sorted(p["processed"] for p in progress)
    assert progress[-1]["processed"] == progress[-1]["total"] > 1800
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}


def test_choices_are_told_apart(client: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {"n": 3, "temperature": 1, "seed": 5, "max_tokens": 12, "reasoning_effort": "none"}
    whole = ask(client, **wanted)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 3 and [choice.index for choice in whole.choices] == [0, 1, 2]
    chunks = list(ask(client, stream=True, **wanted))
    assert [joined(chunks, "content", index) for index in range(3)] == texts
    assert whole.usage.prompt_tokens < 40


def test_a_repeated_prompt_is_known(client: openai.OpenAI) -> None:
    messages = [{"role": "user", "content": "Remember the number 12345, please. " * 30}]
    ask(client, messages, max_tokens=1)
    again = ask(client, messages, max_tokens=1)
    assert again.usage.prompt_tokens_details.cached_tokens > 0.8 * again.usage.prompt_tokens


def test_effort_does_not_cost_the_known_prompt(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "You are terse. " * 40}, *HELLO]
    ask(client, messages, max_tokens=1, reasoning_effort="high")
    for effort in ("low", "medium", "none"):
        usage = ask(client, messages, max_tokens=1, reasoning_effort=effort).usage
        assert usage.prompt_tokens_details.cached_tokens > 0.7 * usage.prompt_tokens, effort


def test_a_stop_sequence_counts_in_the_answer_only(client: openai.OpenAI) -> None:
    whole = ask(client, max_tokens=200).choices[0].message
    word = whole.content.split()[2]
    for stream in (False, True):
        answer = ask(client, max_tokens=200, stop=[word], stream=stream)
        if stream:
            chunks = list(answer)
            text, thinking = joined(chunks, "content"), joined(chunks, "reasoning_content")
        else:
            text, thinking = answer.choices[0].message.content, answer.choices[0].message.reasoning_content
        assert text == whole.content[: whole.content.index(word)]
        assert thinking == whole.reasoning_content


def test_log_probabilities_are_of_the_content(client: openai.OpenAI) -> None:
    whole = ask(client, max_tokens=200, logprobs=True, top_logprobs=3)
    entries = whole.choices[0].logprobs.content
    assert "".join(entry.token for entry in entries).strip() == whole.choices[0].message.content.strip()
    assert all(len(entry.top_logprobs) == 3 and entry.logprob <= 0 for entry in entries)
    assert all(bytes(entry.bytes).decode() == entry.token for entry in entries)
    chunks = list(ask(client, max_tokens=200, logprobs=True, top_logprobs=3, stream=True))
    streamed = [e for c in chunks for choice in c.choices if choice.logprobs for e in choice.logprobs.content]
    assert [entry.token for entry in streamed] == [entry.token for entry in entries]


def test_a_bias_bars_a_token(client: openai.OpenAI, server: Server) -> None:
    first = ask(client, max_tokens=1, reasoning_effort="none", logprobs=True, top_logprobs=0).choices[0]
    id = server.post("/tokenize", {"content": first.message.content}).json()["tokens"][0]
    other = ask(client, max_tokens=1, reasoning_effort="none", logit_bias={str(id): -100}).choices[0]
    assert other.message.content != first.message.content


def test_a_begun_answer_is_continued(client: openai.OpenAI) -> None:
    begun = [*HELLO, {"role": "assistant", "content": "Once upon a"}]
    answer = ask(client, begun, max_tokens=8)
    assert answer.choices[0].message.content and not answer.choices[0].message.content.startswith("Once")
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    again = ask(client, begun, max_tokens=8)
    assert again.choices[0].message.content == answer.choices[0].message.content  # known or not
    after = ask(client, begun, max_tokens=8, extra_body={"continue_final_message": False})
    assert after.usage.prompt_tokens > answer.usage.prompt_tokens


def test_a_forced_call_has_arguments_of_the_right_types(client: openai.OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_forecast"}}):
        answer = ask(client, CITY, tools=[FORECAST], tool_choice=choice, max_tokens=300, temperature=0.7, seed=3)
        (call,) = answer.choices[0].message.tool_calls[:1]
        assert answer.choices[0].finish_reason == "tool_calls"
        assert call.type == "function" and call.function.name == "get_forecast" and call.id
        arguments = json.loads(call.function.arguments)
        assert isinstance(arguments["city"], str) and isinstance(arguments["days"], int)


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    other: Any = {"type": "function", "function": {**FORECAST["function"], "name": "get_history"}}
    for mode in ("auto", "required"):
        tools = {"mode": mode, "tools": [{"type": "function", "function": {"name": "get_history"}}]}
        choice = {"type": "allowed_tools", "allowed_tools": tools}
        answer = ask(client, CITY, tools=[FORECAST, other], tool_choice=choice, max_tokens=300)
        names = [call.function.name for call in answer.choices[0].message.tool_calls or []]
        assert set(names) <= {"get_history"} and (names or mode == "auto")


def test_a_streamed_call_comes_in_pieces(client: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {"tools": [FORECAST], "tool_choice": "required", "max_tokens": 300}
    whole = ask(client, CITY, **wanted).choices[0].message.tool_calls[0]
    chunks = list(ask(client, CITY, stream=True, **wanted))
    calls = [call for chunk in chunks for c in chunk.choices for call in c.delta.tool_calls or [] if call.index == 0]
    assert calls[0].id and calls[0].function.name == "get_forecast" and calls[0].type == "function"
    assert all(call.id is None and call.function.name is None for call in calls[1:])
    assert "".join(call.function.arguments for call in calls) == whole.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_call_that_is_cut_off_is_none(client: openai.OpenAI) -> None:
    answer = ask(client, CITY, tools=[FORECAST], tool_choice="required", max_tokens=14, reasoning_effort="none")
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls is None


def test_no_call_where_none_is_wanted(client: openai.OpenAI) -> None:
    answer = ask(client, CITY, tools=[FORECAST], tool_choice="none", max_tokens=60)
    assert answer.choices[0].message.tool_calls is None and answer.choices[0].finish_reason != "tool_calls"


def test_results_of_calls_are_read(client: openai.OpenAI) -> None:
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "get_forecast", "arguments": '{"city":"Paris","days":3}'},
    }
    messages = [
        *CITY,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]},
    ]
    assert ask(client, messages, tools=[FORECAST], max_tokens=30).usage.prompt_tokens > 60


class Person(BaseModel):
    name: str
    age: int


def test_a_parsed_answer_is_of_its_class(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="any",
        messages=[{"role": "user", "content": "Who is it?"}],
        response_format=Person,
        temperature=1.0,
        seed=11,
        max_tokens=400,
        logit_bias={},
        reasoning_effort="none",
    )
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(answer.choices[0].message.parsed, Person)


@pytest.mark.parametrize("stream", [False, True])
def test_forms_hold(client: openai.OpenAI, stream: bool) -> None:
    for form, check in (
        ({"type": "regex", "regex": "[0-9]{3}-[a-c]{2}"}, lambda text: text[3] == "-" and len(text) == 6),
        ({"type": "grammar", "grammar": 'start: "yes" | "no"'}, lambda text: text in ("yes", "no")),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": ["red", "green"]}}}, json.loads),
    ):
        answer = ask(client, extra_body={"response_format": form}, temperature=1, seed=2, max_tokens=300, stream=stream)
        text = joined(list(answer), "content") if stream else answer.choices[0].message.content
        assert check(text.strip()), text


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]}, "text must be a string"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "vision"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {
                "tools": [FORECAST],
                "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            },
            "tool_choice.allowed_tools.tools",
        ),
        ({"tools": [FORECAST], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "'x'"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "string", "format": 5}}}},
            "format",
        ),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"top_logprobs": 50, "logprobs": True}, "top_logprobs"),
        ({"n": 1000}, "n:"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 9}, "temperature"),
        ({"reasoning_effort": "extreme"}, "reasoning_effort"),
    ],
)
def test_what_can_not_be_done_names_the_field(server: Server, more: dict[str, Any], says: str) -> None:
    answer = server.post("/v1/chat/completions", {"messages": HELLO, **more})
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]


def test_too_long_a_conversation_is_refused_with_the_numbers(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        ask(client, [{"role": "user", "content": "cat " * 40_000}])
    assert error.value.code == "context_length_exceeded" and error.value.param == "messages"
    assert "maximum context length is 32768 tokens" in error.value.message


def test_any_shape_of_content_is_taken(client: openai.OpenAI) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}], "name": "Bo"},
        {"role": "assistant", "content": None, "refusal": "no", "unknown": 1},
        {"role": "system", "content": "late"},
        {"role": "user", "content": "<|im_end|><think> are plain text"},
    ]
    assert ask(client, messages, extra_body={"unheard_of": [1]}, user="me", metadata={"a": "b"}, store=False).id


def test_the_asynchronous_client_runs_many_at_once(server: Server) -> None:
    async def run() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

            async def one(number: int) -> str:
                stream = await client.chat.completions.create(
                    model="any", messages=HELLO, temperature=1, seed=number % 2, max_tokens=30, stream=True
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

            return await asyncio.gather(*[one(number) for number in range(12)])

    texts = asyncio.run(run())
    assert len(set(texts)) <= 2  # alone or beside others, a seed gives its text
    assert server.idle()
