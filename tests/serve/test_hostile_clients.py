"""Clients that are slow, huge, wrong or gone: each gets an answer it can read, and nobody else notices."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from server_process import Server

PATH = "/v1/completions"


@contextmanager
def connected(server: Server, seconds: float = 30.0) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        yield connection


def head(length: int | str | None, *more: str, method: str = "POST", path: str = PATH) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", "content-type: application/json", *more]
    if length is not None:
        lines.append(f"content-length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def read_answer(connection: socket.socket) -> tuple[int, bytes]:
    """Status and everything that follows, up to the end of the connection or of the declared body."""
    data = b""
    while True:
        try:
            part = connection.recv(65536)
        except TimeoutError:
            break
        data += part
        top, _, body = data.partition(b"\r\n\r\n")
        length = next(
            (int(line[15:]) for line in top.lower().split(b"\r\n") if line.startswith(b"content-length:")), None
        )
        if not part or (length is not None and len(body) >= length):
            break
    return int(data.split(b" ", 2)[1]) if data else 0, data.partition(b"\r\n\r\n")[2]


def works(server: Server) -> bool:
    return server.post(PATH, {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_huge_body_is_refused_and_its_sender_sees_why(server: Server) -> None:
    size = 48 << 20
    with connected(server) as connection:
        connection.sendall(head(size))
        piece = b" " * (1 << 20)
        for _ in range(size >> 20):  # a reset would break this
            connection.sendall(piece)
        status, body = read_answer(connection)
    assert status == 413
    assert "larger than the limit" in json.loads(body)["error"]["message"]
    assert works(server)


def test_a_huge_body_in_chunks_is_refused_too(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(head(None, "transfer-encoding: chunked"))
        piece = b"%x\r\n%s\r\n" % (1 << 20, b" " * (1 << 20))
        for _ in range(40):
            connection.sendall(piece)
        connection.sendall(b"0\r\n\r\n")
        assert read_answer(connection)[0] == 413


def test_a_client_that_asks_before_it_sends_a_huge_body_is_told_not_to(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(head(48 << 20, "expect: 100-continue"))
        began = time.monotonic()
        status, _ = read_answer(connection)
        assert status == 413 and time.monotonic() - began < 3


def test_slow_bodies_and_slow_headers_end_with_a_timeout(server: Server) -> None:
    began = time.monotonic()
    with connected(server) as silent, connected(server) as slow, connected(server) as body:
        slow.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: loc")
        body.sendall(head(1000) + b'{"prompt"')
        assert read_answer(slow)[0] == read_answer(silent)[0] == 408
        status, text = read_answer(body)
    assert status == 408 and 8 < time.monotonic() - began < 15
    assert "did not arrive in time" in json.loads(text)["error"]["message"]


@pytest.mark.parametrize("length", ["-1", "1e3", "0x10", "99999999999999999999", "5, 6", ""])
def test_a_length_that_is_none_is_an_error(server: Server, length: str) -> None:
    with connected(server) as connection:
        connection.sendall(head(length))
        assert read_answer(connection)[0] in (400, 413)
    assert works(server)


def test_a_body_shorter_than_said_leaves_no_trace(server: Server) -> None:
    for end in (socket.SHUT_WR, socket.SHUT_RDWR):
        with connected(server) as connection:
            connection.sendall(head(1000) + b'{"prompt": "a"}')
            connection.shutdown(end)
    assert works(server)


def test_what_follows_the_last_body_is_not_looked_at(server: Server) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    with connected(server) as connection:
        connection.sendall(head(len(body), "connection: close") + body + b"xx" + head(0, path="/v1/nothing"))
        status, answer = read_answer(connection)
        assert status == 200 and json.loads(answer)["usage"]["completion_tokens"] == 1


def test_two_ways_to_tell_the_length_are_one_too_many(server: Server) -> None:
    with connected(server) as connection:
        connection.sendall(head(5, "content-length: 6") + b"123456")
        assert read_answer(connection)[0] == 400


def test_headers_without_end_are_cut_off(server: Server) -> None:
    with connected(server) as connection:
        try:
            connection.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x-a: " + b"y" * (1 << 20))
            assert read_answer(connection)[0] in (400, 431)
        except OSError:
            pass  # the server may close while we still send
    assert works(server)


@pytest.mark.parametrize(
    "garbage", [b"\x16\x03\x01\x02\x00\x01\x00", b"\x00" * 100, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
def test_what_is_no_http_is_told_so(server: Server, garbage: bytes) -> None:
    with connected(server) as connection:
        connection.sendall(garbage + b"\r\n\r\n")
        assert read_answer(connection)[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"prompt":' * 101 + b"1" + b"}" * 101,
        b'{"prompt": "a"',
        b'{"prompt": "\xff"}',
        b"\xff\xfe{\x00}\x00",
        b'{"prompt": NaN}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "seed": 1' + b"0" * 5000 + b"}",
        b"null",
        b'"text"',
        b"[]",
        b"",
        b'{"prompt": ["a", 5]}',
        b'{"prompt": []}',
        b'{"prompt": [[]]}',
        b'{"prompt": "a", "stop": ' + json.dumps(["x"] * 65).encode() + b"}",
    ],
)
def test_bodies_that_make_no_sense_are_400(server: Server, body: bytes) -> None:
    answer = httpx.post(server.url + PATH, content=body, timeout=30)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]
    assert "Traceback" not in answer.text and ".py" not in answer.text


def test_half_a_surrogate_and_zero_bytes_are_text(server: Server) -> None:
    for prompt in ('"\\ud800"', '"\\u0000"', '"\\ud83d\\ude00"', '"\\uffff"'):
        body = b'{"max_tokens": 1, "prompt": ' + prompt.encode() + b"}"
        answer = httpx.post(server.url + PATH, content=body, timeout=30)
        assert answer.status_code in (200, 400), answer.text


def test_what_is_repeated_in_an_answer_may_be_no_text(server: Server) -> None:
    for field in ('"metadata": {"a": "\\ud800"}', '"instructions": "\\ud800"', '"user": "\\udfff"'):
        body = b'{"input": "Hi", "max_output_tokens": 1, %s}' % field.encode()
        answer = httpx.post(server.url + "/v1/responses", content=body, timeout=30)
        assert answer.status_code in (200, 400), (field, answer.text)
        assert answer.json()


def test_two_hundred_connections_at_once_are_all_answered(server: Server) -> None:
    body = json.dumps({"prompt": "Once", "max_tokens": 2}).encode()

    def ask(number: int) -> int:
        with connected(server, 60) as connection:
            connection.sendall(head(len(body)))
            time.sleep(0.1 * (number % 5))
            connection.sendall(body)
            return read_answer(connection)[0]

    with ThreadPoolExecutor(200) as pool:
        assert list(pool.map(ask, range(200))) == [200] * 200
    assert server.idle()


def test_idle_connections_keep_nobody_out(server: Server) -> None:
    connections = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(200)]
    try:
        assert works(server)
    finally:
        for connection in connections:
            connection.close()


def test_a_client_that_reads_nothing_does_not_stop_the_others(server: Server) -> None:
    body = json.dumps({"prompt": "Once", "max_tokens": 2000, "stream": True}).encode()
    with connected(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(head(len(body)) + body)
        time.sleep(0.3)
        assert works(server)
    assert server.idle()


def test_other_methods_and_paths_are_told_apart(server: Server) -> None:
    for method, path, status in (
        ("GET", PATH, 405),
        ("DELETE", "/v1/models", 405),
        ("POST", "/v1/nothing", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404),
        ("GET", "/assets/../../app.py", 404),
        ("GET", "/assets/%2e%2e%2fapp.py", 404),
        ("PATCH", "/health", 405),
        ("HEAD", "/health", 200),
        ("HEAD", PATH, 405),
    ):
        with connected(server) as connection:
            connection.sendall(head(0, "connection: close", method=method, path=path))
            assert read_answer(connection)[0] == status, (method, path)


def test_a_burst_beyond_the_queue_is_told_to_come_back(server: Server) -> None:
    many = {"prompt": ["Once"] * 32, "n": 8, "max_tokens": 300}
    body = json.dumps(many).encode()
    with connected(server) as connection:
        connection.sendall(head(len(body)) + body)
        end = time.monotonic() + 20
        while not server.get("/v1/status").json()["requests"]["running"]:
            assert time.monotonic() < end
            time.sleep(0.05)
        answer = server.post(PATH, many)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "2")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert server.idle()
    assert works(server)


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_an_offer_to_speak_http_2_is_passed_over(server: Server, piece: int) -> None:
    """Java's client makes it with every request."""
    body = b'{"prompt": "a",\r\n"max_tokens":\r\n1}'
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
    data = head(len(body), *offer) + body
    with connected(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(2):  # the connection stays good
            for start in range(0, len(data), piece):
                connection.sendall(data[start : start + piece])
                time.sleep(0.001)
            assert read_answer(connection)[0] == 200


def test_a_compressed_body_is_refused_by_name(server: Server) -> None:
    answer = server.post(PATH, {"prompt": "a"}, **{"content-encoding": "gzip"})
    assert answer.status_code == 415 and "'gzip'" in answer.json()["error"]["message"]
    assert works(server)
