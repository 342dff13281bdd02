"""The Responses dialect, with the official client over a real port."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from files_agent import SCHEMAS, Files, turn
from pydantic import BaseModel
from server_process import Server

SUM = "What is 12 plus 30?"
QUIET: Any = {"effort": "none"}
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0)


def create(client: openai.OpenAI, input: Any = SUM, **options: Any) -> Any:
    return client.responses.create(**{"model": "any", "input": input, "temperature": 0, "reasoning": QUIET, **options})


def test_a_response(client: openai.OpenAI) -> None:
    response = create(client, instructions="Be brief.", metadata={"a": "b"}, max_output_tokens=50)
    assert (response.output_text, response.status, response.object) == ("42", "completed", "response")
    assert (response.instructions, response.metadata, response.max_output_tokens) == ("Be brief.", {"a": "b"}, 50)
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens
    assert usage.output_tokens_details.reasoning_tokens == 0


@pytest.mark.parametrize("summary", [None, "auto"])
def test_streaming_has_the_events_in_their_order(client: openai.OpenAI, summary: Any) -> None:
    reasoning: Any = {"effort": "low", "summary": summary}
    with client.responses.stream(model="any", input=SUM, temperature=0, reasoning=reasoning) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    folded = [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    part, text = ("reasoning_summary_part", "reasoning_summary_text") if summary else ("content_part", "reasoning_text")
    thought = [f"{part}.added", f"{text}.delta", f"{text}.done", f"{part}.done"]
    said = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    item = lambda inner: ["output_item.added", *inner, "output_item.done"]  # noqa: E731
    assert folded == ["created", "in_progress", *item(thought), *item(said), "completed"]
    thinking, message = final.output
    assert thinking.type == "reasoning"
    parts: Any = thinking.summary if summary else thinking.content
    assert "12 + 30 = 42" in parts[0].text
    assert final.output_text == "42"
    assert message.type == "message"
    assert final.usage
    assert 0 < final.usage.output_tokens_details.reasoning_tokens < final.usage.output_tokens


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "name": "get_weather"}])
@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: openai.OpenAI, choice: Any, stream: bool) -> None:
    options: dict[str, Any] = {"tools": [WEATHER, {"type": "web_search"}], "tool_choice": choice, "reasoning": QUIET}
    ask = "What's the weather in Paris?"
    if stream:
        with client.responses.stream(model="any", input=ask, temperature=0, **options) as events:
            response: Any = events.get_final_response()
    else:
        response = create(client, ask, **options)
    [call] = response.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
    assert (call.status, response.status) == ("completed", "completed")
    assert call.call_id.startswith("call_")


def test_only_allowed_tools_are_called(client: openai.OpenAI) -> None:
    tools = [WEATHER, {**WEATHER, "name": "get_news"}]
    for name in ("get_weather", "get_news"):
        choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": name}]}
        response = create(client, "What's the weather in Paris?", tools=tools, tool_choice=choice)
        assert {item.name for item in response.output} == {name}
        assert response.tool_choice.model_dump() == choice


def test_tools_that_may_not_be_called(client: openai.OpenAI) -> None:
    response = create(client, "What's the weather?", tools=[WEATHER], tool_choice="none", max_output_tokens=20)
    assert {item.type for item in response.output} == {"message"}


def test_a_call_that_is_cut_off_is_none(client: openai.OpenAI) -> None:
    for stream in (False, True):
        options: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "max_output_tokens": 9}
        if stream:
            events = list(create(client, "What's the weather in Paris?", stream=True, **options))
            response = events[-1].response
            assert "response.output_item.done" not in {event.type for event in events}
        else:
            response = create(client, "What's the weather in Paris?", **options)
        assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        assert response.output == []


def test_an_answer_sent_back_whole_is_known_to_the_cache(client: openai.OpenAI) -> None:
    for include in ([], ["reasoning.encrypted_content"]):
        ask = [{"role": "user", "content": f"What's the weather in Paris? {len(include)}"}]
        first = create(client, ask, tools=[WEATHER], reasoning={"effort": "low"}, include=include)
        back = [item.model_dump(exclude_none=True) for item in first.output]
        if include:
            back[0].pop("content")  # as clients do that hide the thinking
        result = {"type": "function_call_output", "call_id": back[-1]["call_id"], "output": "mild"}
        second = create(
            client, [*ask, *back, result], tools=[WEATHER], reasoning={"effort": "low"}, max_output_tokens=9
        )
        cached = second.usage.input_tokens_details.cached_tokens
        assert cached >= first.usage.input_tokens + first.usage.output_tokens - 2


def test_items_in_their_forms(client: openai.OpenAI) -> None:
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": SUM}]}
    developer = {"role": "developer", "content": "Be brief."}
    same = [
        create(client, [developer, item]).usage.input_tokens for item in (message, {"role": "user", "content": SUM})
    ]
    same.append(create(client, SUM, instructions="Be brief.").usage.input_tokens)
    assert len(set(same)) == 1
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "mild"}]}
    call = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city": "Paris"}'}
    late = {"role": "system", "content": "late rule"}
    assert create(client, [message, call, output, late], tools=[WEATHER], max_output_tokens=5).output


def test_a_call_with_arguments_that_are_no_object_can_be_sent_back(server: Server, client: openai.OpenAI) -> None:
    def tokens(arguments: str) -> int:
        call = {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": arguments}
        output = {"type": "function_call_output", "call_id": "c", "output": "wrong"}
        items = [{"role": "user", "content": SUM}, call, output]
        told = create(client, items, max_output_tokens=1).usage.input_tokens
        function = {"name": "get_weather", "arguments": arguments}
        messages = [
            {"role": "user", "content": SUM},
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c", "content": "wrong"},
        ]
        body = {"messages": messages, "max_tokens": 1, "reasoning_effort": "none"}
        chat = server.post("/v1/chat/completions", body).json()
        assert chat["usage"]["prompt_tokens"] == told
        return told

    assert tokens("") == tokens("{}")
    assert tokens("{bad") == tokens(json.dumps({"arguments": "{bad"})) > tokens("")


def test_a_beginning_is_continued(client: openai.OpenAI) -> None:
    class Answer(BaseModel):
        total: int

    begun = [{"role": "user", "content": SUM}, {"role": "assistant", "content": '{"total": 4'}]
    response = create(client, begun, text={"format": {"type": "json_object"}})
    assert Answer.model_validate_json('{"total": 4' + response.output_text)


def test_parsed_output(client: openai.OpenAI) -> None:
    class Person(BaseModel):
        name: str
        age: int

    for stream in (False, True):
        options: dict[str, Any] = {"input": "Anna is 30 years old.", "text_format": Person, "temperature": 1}
        options |= {"model": "any", "max_output_tokens": 200, "extra_body": {"seed": 3}, "reasoning": QUIET}
        if stream:
            with client.responses.stream(**options) as events:
                parsed = events.get_final_response().output_parsed
        else:
            parsed = client.responses.parse(**options).output_parsed
        assert isinstance(parsed, Person)


def test_forms_hold_for_answers_written_together(server: Server) -> None:
    async def ask() -> list[tuple[str, bool]]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:

            async def one(number: int) -> tuple[str, bool]:
                properties = {"name": {"type": "string", "maxLength": 10}, "n": {"enum": [number]}}
                schema = {"type": "object", "properties": properties, "required": ["name", "n"]}
                form: Any = {"type": "json_schema", "name": "x", "schema": {**schema, "additionalProperties": False}}
                options: Any = {"reasoning": QUIET if number % 2 else {"effort": "low"}, "text": {"format": form}}
                response = await client.responses.create(
                    model="any", input=f"Anna has {number} apples.", temperature=1, max_output_tokens=400, **options
                )
                return response.output_text, json.loads(response.output_text)["n"] == number

            return await asyncio.gather(*(one(number) for number in range(10)))

    answers = asyncio.run(ask())
    assert all(right for _, right in answers), answers


def test_log_probabilities(client: openai.OpenAI) -> None:
    response = create(client, include=["message.output_text.logprobs"], top_logprobs=2)
    part = response.output[0].content[0]
    assert "".join(entry.token for entry in part.logprobs) == part.text == "42"
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) == 2 for entry in part.logprobs)


def test_the_asynchronous_client(server: Server) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="any", max_retries=0) as client:

            async def one(number: int) -> str:
                options: Any = {"model": "any", "input": f"What is {number} plus 30?", "reasoning": QUIET}
                async with client.responses.stream(temperature=0, **options) as stream:
                    return (await stream.get_final_response()).output_text

            return await asyncio.gather(*(one(number) for number in (12, 20, 31, 45)))

    assert asyncio.run(ask()) == ["42", "50", "61", "75"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id: this server stores nothing"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, r"input\[0\] is of type 'item_reference'"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "no vision part"),
        ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}}}, '"not" at #'),
        ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "none"}}, "none of the tools"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "x"}]},
            },
            "allows 'x', which is none of the tools",
        ),
        ({"input": "hello " * 40_000}, "maximum context length is 32768 tokens"),
        ({"reasoning": {"effort": "heroic"}}, "reasoning.effort"),
    ],
)
def test_what_cant_be_done_is_explained(client: openai.OpenAI, options: Any, said: str) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        create(client, **{"input": SUM, **options})


def test_an_agent_works_with_files_over_ten_turns(client: openai.OpenAI) -> None:
    tools = [
        {"type": "function", "name": name, "parameters": schema, "strict": True} for name, schema in SCHEMAS.items()
    ]
    files = Files()
    items: list[Any] = [{"role": "user", "content": "Keep notes in the files."}]
    for number in range(10):
        choice = {"type": "function", "name": turn(number)}
        response = create(client, items, tools=tools, tool_choice=choice, temperature=1)
        [call] = response.output
        result = files.run(call.name, json.loads(call.arguments))
        items += [call.model_dump(exclude_none=True)]
        items += [{"type": "function_call_output", "call_id": call.call_id, "output": result}]
        assert number < 2 or response.usage.input_tokens - response.usage.input_tokens_details.cached_tokens < 120
    assert [name for name, _, _ in files.log] == [turn(number) for number in range(10)]
