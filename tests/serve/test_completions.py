"""POST /v1/completions and the routes around it, through the official client."""

import openai
import pytest
from server_process import Server


@pytest.fixture(scope="module")
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_a_completion_has_text_usage_and_reason(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="any", prompt="Once upon a time", max_tokens=9, temperature=0)
    assert answer.object == "text_completion" and answer.model == "jubako-small"
    assert answer.choices[0].text and answer.choices[0].finish_reason == "length"
    assert answer.usage
    assert (answer.usage.completion_tokens, answer.usage.total_tokens) == (9, 9 + answer.usage.prompt_tokens)
    assert answer.model_extra and answer.model_extra["timings"]["predicted_n"] == 9


def test_a_stream_gives_the_same_text_and_its_usage_last(client: openai.OpenAI) -> None:
    wanted = {"model": "any", "prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
    whole = client.completions.create(**wanted)  # type: ignore[call-overload]
    chunks = list(
        client.completions.create(**wanted, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    )
    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == whole.choices[0].text
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ["length"]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 20
    assert len({chunk.id for chunk in chunks}) == 1 and len(chunks) > 10


def test_a_seed_gives_the_same_text_again(client: openai.OpenAI) -> None:
    texts = [
        client.completions.create(model="any", prompt="The cat", max_tokens=16, temperature=1, seed=seed)
        .choices[0]
        .text
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_a_stop_sequence_ends_the_text_before_it(client: openai.OpenAI) -> None:
    wanted = {"model": "any", "prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
    text = client.completions.create(**wanted).choices[0].text  # type: ignore[call-overload]
    stop = text[11:17]
    for stream in (False, True):
        answer = client.completions.create(**wanted, stop=[stop], stream=stream)  # type: ignore[call-overload]
        parts = list(answer) if stream else [answer]
        assert "".join(part.choices[0].text for part in parts) == text[: text.index(stop)]
        assert parts[-1].choices[0].finish_reason == "stop"


def test_several_prompts_and_choices_come_in_order(client: openai.OpenAI) -> None:
    prompts = ["Once upon a time", "The cat"]
    alone = [
        client.completions.create(model="a", prompt=p, max_tokens=5, temperature=0).choices[0].text for p in prompts
    ]
    answer = client.completions.create(model="a", prompt=prompts, n=2, max_tokens=5, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in answer.choices] == [alone[0], alone[0], alone[1], alone[1]]
    assert answer.usage and answer.usage.completion_tokens == 20
    chunks = list(client.completions.create(model="a", prompt=prompts, n=2, max_tokens=5, temperature=0, stream=True))
    for index in range(4):
        own = [chunk.choices[0] for chunk in chunks if chunk.choices and chunk.choices[0].index == index]
        assert "".join(choice.text for choice in own) == alone[index // 2]
        assert own[-1].finish_reason == "length"


def test_token_ids_are_a_prompt(client: openai.OpenAI, server: Server) -> None:
    ids = server.post("/tokenize", {"content": "Once upon a time"}).json()["tokens"]
    text = [
        client.completions.create(model="a", prompt=prompt, max_tokens=6, temperature=0).choices[0].text
        for prompt in (ids, [ids], "Once upon a time")
    ]
    assert text[0] == text[1] == text[2]


def test_echo_begins_with_the_prompt(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="a", prompt="The cat", max_tokens=4, temperature=0, echo=True)
    assert answer.choices[0].text.startswith("The cat")
    chunks = client.completions.create(model="a", prompt="The cat", max_tokens=4, temperature=0, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text


def test_log_probabilities_have_a_token_each(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="a", prompt="The cat", max_tokens=5, temperature=0, logprobs=2)
    found = answer.choices[0].logprobs
    assert found and found.tokens and found.token_logprobs and found.top_logprobs and found.text_offset
    assert "".join(found.tokens) == answer.choices[0].text
    assert all(value is not None and value <= 0 for value in found.token_logprobs)
    assert [len(top) for top in found.top_logprobs] == [2] * 5
    assert [answer.choices[0].text[at:].startswith(t) for at, t in zip(found.text_offset, found.tokens, strict=True)]


@pytest.mark.parametrize(
    ("body", "status", "param", "says"),
    [
        ({"prompt": "a", "suffix": "b"}, 400, "suffix", "fill in"),
        ({"prompt": "a", "best_of": 3}, 400, "best_of", "best_of is 3"),
        ({"prompt": [[1, -1]]}, 400, "prompt.0.1", "greater than or equal to 0"),
        ({"prompt": [1, -1]}, 400, "prompt.1", "greater than or equal to 0"),
        ({"prompt": "a", "stop": ["b"] * 100}, 400, "stop", "at most"),
        ({"prompt": 5}, 400, "prompt", "prompt"),
        ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "greater than or equal to 1"),
        ({"prompt": "a", "temperature": "hot"}, 400, "temperature", "valid number"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, 400, "logit_bias", "'x' is no token id"),
        ({"max_tokens": 5}, 400, "prompt", "Field required"),
        ({"prompt": "word " * 40_000}, 400, "messages", "maximum context length is 32768 tokens"),
        (
            {"prompt": "a", "response_format": {"type": "json_schema"}},
            400,
            "response_format.json_schema.schema",
            "missing",
        ),
    ],
)
def test_what_can_not_be_done_is_said(server: Server, body: object, status: int, param: str, says: str) -> None:
    answer = server.post("/v1/completions", body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert says in error["message"] and error["type"] == "invalid_request_error"


def test_too_long_a_prompt_has_the_code_that_agents_know(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        client.completions.create(model="a", prompt=[5] * 32768, max_tokens=1)
    assert error.value.code == "context_length_exceeded"
    assert "resulted in 32768 tokens" in error.value.message


def test_unknown_fields_nulls_and_queries_are_no_errors(server: Server) -> None:
    body = {"prompt": "a", "max_tokens": 1, "unheard_of": {"x": [1]}, "stop": None, "temperature": None, "n": 1.0}
    assert server.post("/v1/completions?beta=true&api-version=1", body).status_code == 200


def test_models_tokens_and_back(server: Server, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["jubako-small"]
    assert client.models.retrieve("jubako-small").id == "jubako-small"
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("gpt-4")
    assert error.value.code == "model_not_found"
    text = "Hi <|im_end|> ünïcödé 🍱"
    plain = server.post("/tokenize", {"content": text}).json()
    special = server.post("/tokenize", {"content": text, "parse_special": True}).json()
    assert plain["count"] == len(plain["tokens"]) > special["count"]
    for tokens in (plain["tokens"], special["tokens"]):
        assert server.post("/detokenize", {"tokens": tokens}).json()["content"] == text
    pieces = server.post("/tokenize", {"prompt": text, "with_pieces": True}).json()["tokens"]
    raw = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert raw.decode() == text
    assert server.post("/tokenize", {}).json()["count"] == 0
    assert server.post("/detokenize", {"tokens": [10**9]}).status_code == 400


def test_health_status_and_metrics_tell_what_is_going_on(server: Server) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    before = server.get("/v1/status").json()
    server.post("/v1/completions", {"prompt": "a", "max_tokens": 3})
    after = server.get("/v1/status").json()
    assert after["state"] == "ready" and after["model"] == {"id": "jubako-small", "context": 32768}
    assert after["requests"]["served"] == before["requests"]["served"] + 1
    text = server.get("/metrics").text
    assert 'jubako_requests_total{path="/v1/completions",status="200"}' in text
    assert "jubako_engine_up 1.0" in text and 'jubako_tokens_total{kind="completion"}' in text
