"""The OpenAPI page is true: what it allows works, what it forbids is refused, and answers look as it says."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import positive_data_acceptance
from server_process import Server

OPERATIONS = [
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{model}"),
    ("GET", "/v1/status"),
    ("POST", "/detokenize"),
    ("POST", "/tokenize"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/responses"),
]
_COSTLY = ("/v1/messages", "/v1/messages/count_tokens", "/v1/responses")  # large bodies to make up


@pytest.fixture(scope="module")
def described(server: Server) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def shortened(body: Any) -> Any:
    """The same request for a short answer, where it asks for one at all."""
    if isinstance(body, dict) and ("messages" in body or "prompt" in body or "input" in body):
        for name, most in (("max_tokens", 2), ("max_completion_tokens", 2), ("max_output_tokens", 2), ("n", 2)):
            if type(body.get(name)) in (int, float) and body[name] > most:
                body[name] = most
        body.setdefault("max_output_tokens" if "input" in body else "max_tokens", 2)
    return body


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_page_tells_the_truth(described: Any, method: str, path: str, mode: GenerationMode) -> None:
    operation = described[path][method]
    if mode is GenerationMode.NEGATIVE and method == "GET":
        pytest.skip("there is nothing to get wrong")

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=8 if method == "POST" and path not in _COSTLY else 5,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    def check(case: Any) -> None:
        case.body = shortened(case.body)
        unsure = [positive_data_acceptance] if method == "POST" and path != "/detokenize" else []
        case.call_and_validate(timeout=60, excluded_checks=unsure)  # a schema can't say that a tool must exist

    check()


def test_every_operation_is_tried(described: Any) -> None:
    raw = described.raw_schema["paths"]
    own = {(method.upper(), path) for path, methods in raw.items() for method in methods}
    assert own == set(OPERATIONS)
