"""Keys, origins, logs and the page over a real port."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
from server_process import Server, start_server

PAGE = Path(__file__).parents[2] / "src" / "jubako" / "serve" / "page"
ASK = {"prompt": "The secret word is xyzzy", "max_tokens": 1}
SITE = "https://chat.example"


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with keys; one site's pages may ask it."""
    folder = tmp_path_factory.mktemp("locked")
    (folder / "keys").write_text("from-file\n")
    options = ("--api-key", "given", "--api-key-file", str(folder / "keys"), "--cors-origin", SITE, "--log-prompts")
    running = start_server(folder, *options)
    running.headers["authorization"] = "Bearer given"
    yield running
    running.stop()


def bare(server: Server, method: str, path: str, **headers: str) -> httpx.Response:
    return httpx.request(method, server.url + path, headers=headers, timeout=30)


@pytest.mark.parametrize("path", ["/v1/models", "/v1/status", "/metrics", "/openapi.json", "/docs", "/v1/nothing"])
def test_nothing_is_told_without_a_key(locked: Server, path: str) -> None:
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "wrong"}):
        answer = bare(locked, "GET", path, **headers)
        assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"
        assert answer.json()["error"]["code"] == "invalid_api_key"


def test_each_dialect_is_told_in_its_own_shape(locked: Server) -> None:
    assert bare(locked, "POST", "/v1/messages").json() == {
        "type": "error",
        "error": {"type": "authentication_error", "message": bare(locked, "POST", "/v1/x").json()["error"]["message"]},
    }


def test_clients_with_a_key_are_answered(locked: Server) -> None:
    for key in ("given", "from-file"):
        client = openai.OpenAI(base_url=f"{locked.url}/v1", api_key=key, max_retries=0)
        assert client.models.list().data
        assert bare(locked, "GET", "/v1/models", **{"x-api-key": key}).status_code == 200
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{locked.url}/v1", api_key="wrong", max_retries=0).models.list()


def test_health_and_page_need_no_key(locked: Server) -> None:
    for path in ("/health", "/", "/icon.svg"):
        assert bare(locked, "GET", path).status_code == 200


def test_the_page_is_held_to_its_own_files(locked: Server) -> None:
    answer = bare(locked, "GET", "/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert answer.headers["cache-control"] == "no-cache" and answer.headers["x-content-type-options"] == "nosniff"
    assert answer.content == (PAGE / "index.html").read_bytes()
    assert bare(locked, "GET", "/", **{"if-none-match": answer.headers["etag"]}).status_code == 304
    for file in (PAGE / "assets").iterdir():
        asset = bare(locked, "GET", f"/assets/{file.name}")
        assert asset.content == file.read_bytes() and "immutable" in asset.headers["cache-control"]


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/metrics", "/v1/nothing", "/v1/completions"])
def test_head_is_answered_like_get_without_a_body(server: Server, locked: Server, path: str) -> None:
    for running in (server, locked):
        whole, head = (bare(running, method, path) for method in ("GET", "HEAD"))
        assert (head.status_code, head.content) == (whole.status_code, b"") and whole.content
        assert head.headers["content-type"] == whole.headers["content-type"]
        if path != "/metrics":  # which changes with every request
            assert head.headers["content-length"] == str(len(whole.content))


def test_the_interfaces_can_be_read_about(server: Server) -> None:
    page = bare(server, "GET", "/docs")
    assert page.status_code == 200 and "script" not in page.text and "http" not in page.text.replace(" HTTP", "")
    for path in server.get("/openapi.json").json()["paths"]:
        assert path in page.text
    assert "reasoning_effort" in page.text and "default-src 'none'" in page.headers["content-security-policy"]


def test_pages_of_other_sites_are_kept_out_unless_named(locked: Server) -> None:
    key = {"authorization": "Bearer given"}
    assert bare(locked, "GET", "/v1/models", origin="https://evil.example", **key).status_code == 403
    assert bare(locked, "GET", "/v1/models", origin="null", **key).status_code == 403
    own = bare(locked, "GET", "/v1/models", origin=locked.url, **key)
    assert own.status_code == 200 and "access-control-allow-origin" not in own.headers
    asked = bare(locked, "OPTIONS", "/v1/chat/completions", origin=SITE, **{"access-control-request-method": "POST"})
    assert asked.status_code == 204 and asked.headers["access-control-allow-origin"] == SITE
    assert "authorization" in asked.headers["access-control-allow-headers"]
    answer = bare(locked, "GET", "/v1/models", origin=SITE, **key)
    assert answer.headers["access-control-allow-origin"] == SITE and answer.headers["vary"] == "Origin"
    refused = bare(locked, "GET", "/v1/models", origin=SITE)
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == SITE


def test_names_that_others_may_own_are_not_answered(server: Server) -> None:
    for path in ("/", "/health", "/v1/models"):
        answer = bare(server, "GET", path, host="rebound.example")
        assert answer.status_code == 421 and "--allow-host rebound.example" in answer.text


def entries(server: Server, id: str, count: int) -> list[dict[str, object]]:
    """The entries of a request; the last is written once the answer is out."""
    found: list[dict[str, object]] = []
    end = time.monotonic() + 5
    while len(found) < count and time.monotonic() < end:
        lines = [line for line in server.log.read_text().splitlines() if line.startswith("{") and line.endswith("}")]
        found = [entry for line in lines if (entry := json.loads(line)).get("id") == id]
    return found


def test_the_log_has_an_entry_for_each_request_and_prompts_only_when_asked(server: Server, locked: Server) -> None:
    for running, shown in ((server, False), (locked, True)):
        id = running.post("/v1/completions", ASK, **{"x-request-id": "my-request.1"}).headers["x-request-id"]
        assert id == "my-request.1"
        mine = entries(running, id, 2)
        assert [entry["event"] for entry in mine] == ["answer", "request"]
        assert mine[1]["status"] == 200 and mine[1]["path"] == "/v1/completions"
        assert mine[0]["completion_tokens"] == 1
        assert ("xyzzy" in running.log.read_text()) is shown
        assert "Bearer" not in running.log.read_text() and "from-file" not in running.log.read_text()


def test_ids_that_would_spoil_the_log_are_replaced(server: Server) -> None:
    for id in ("a b", "x" * 65, "é", '"}{'):
        answer = httpx.get(server.url + "/health", headers={b"x-request-id": id.encode()})
        assert answer.headers["x-request-id"].startswith("req_")


def test_half_a_surrogate_in_a_field_name_is_only_a_wrong_name(server: Server) -> None:
    body = b'{"prompt": "a", "logit_bias": {"\\ud800": "x"}}'
    answer = httpx.post(server.url + "/v1/completions", content=body, timeout=30)
    assert answer.status_code == 400 and "logit_bias" in answer.json()["error"]["message"]
