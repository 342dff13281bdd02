"""The engine in its own process: crashes, cancellations, the end of the server."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import httpx
import openai
import pytest
from server_process import SMALL, TINY, Server, start_server

from jubako.serve.protocol import Start, frame
from jubako.serve.supervisor import Engine


@pytest.fixture(scope="module")
def one_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that answers one request at a time, and may be hurt. Somebody's file lies where it keeps sessions."""
    folder = tmp_path_factory.mktemp("one")
    (folder / "sessions").mkdir()
    (folder / "sessions" / "somebodys.session").write_bytes(b"else")
    running = start_server(folder, "--sequences", "1", "--drafts", "0")
    yield running
    running.stop()


class Stream:
    """A completion that would go on for long, its end tokens barred; leaves when the block ends."""

    def __init__(self, server: Server, **more: object) -> None:
        self.client = httpx.Client(timeout=30)
        body = {"prompt": "Once upon a time", "max_tokens": 4000, "stream": True, "logit_bias": _bars(server), **more}
        request = self.client.build_request("POST", server.url + "/v1/completions", json=body)
        self.answer = self.client.send(request, stream=True)
        self.lines = self.answer.iter_lines()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.answer.close()
        self.client.close()

    def data(self, count: int = -1) -> list[str]:
        """The next `count` events, or all the rest."""
        found: list[str] = []
        while len(found) != count and (line := next(self.lines, None)) is not None:
            if line.startswith("data: "):
                found.append(line[6:])
        return found


def _bars(server: Server) -> dict[str, int]:
    names = "<|im_end|><|endoftext|>"
    ids = server.post("/tokenize", {"content": names, "parse_special": True}).json()["tokens"]
    return {str(id): -100 for id in ids}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def running(server: Server) -> int:
    status = server.get("/v1/status").json()
    return int(status["sequences"]["running"]) + int(status["sequences"]["waiting"])


def test_the_engine_logs_as_the_server_does(one_place: Server) -> None:
    told = [line for line in one_place.log.read_text().splitlines() if "somebodys.session" in line]
    assert told and all(json.loads(line)["level"] == "warning" for line in told)


def test_a_killed_engine_costs_its_answers_and_comes_back(one_place: Server) -> None:
    before = one_place.children()
    assert len(before) == 1
    with Stream(one_place) as stream:
        stream.data(3)
        waiting: list[httpx.Response] = []
        thread = threading.Thread(
            target=lambda: waiting.append(one_place.post("/v1/completions", {"prompt": "a", "max_tokens": 1}))
        )
        thread.start()
        time.sleep(0.2)
        os.kill(before[0], signal.SIGKILL)
        error = json.loads(stream.data()[-1])["error"]
        assert "SIGKILL" in error["message"] and error["code"] == "engine_error" and error["type"] == "server_error"
        thread.join()
    assert waiting[0].status_code in (200, 503)  # it was in the line, not in the engine
    if waiting[0].status_code == 503:
        assert waiting[0].headers["retry-after"] == "1"
    one_place.wait_ready()
    after = one_place.children()
    assert len(after) == 1 and after != before
    assert one_place.get("/v1/status").json()["restarts"] == 1
    with openai.OpenAI(base_url=f"{one_place.url}/v1", api_key="x", max_retries=5) as again:
        assert again.completions.create(model="a", prompt="Once", max_tokens=3).choices[0].text


def test_a_file_that_is_cut_while_in_use_is_named_until_it_is_whole_again(tmp_path: Path) -> None:
    """What once loaded is tried again: the engine comes back with the file."""
    path = tmp_path / "model.gguf"
    shutil.copy(SMALL, path)
    server = start_server(tmp_path, "--drafts", "0", model=path)
    try:
        os.truncate(path, path.stat().st_size // 2)
        assert server.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 500
        end = time.monotonic() + 30
        while "did not load again" not in (told := server.log.read_text()):
            assert time.monotonic() < end, told
            time.sleep(0.05)
        assert f"{path}: its bytes are gone" in told
        assert re.search(rf'"the model did not load again: {path}: .*download is incomplete', told)
        shutil.copy(SMALL, path)
        server.wait_ready()
    finally:
        server.stop()


def test_a_client_that_leaves_its_answer_frees_the_engine_at_once(one_place: Server) -> None:
    with Stream(one_place) as stream:
        stream.data(3)
        assert running(one_place) == 1
    began = time.monotonic()
    while running(one_place):
        assert time.monotonic() - began < 1.0
        time.sleep(0.02)
    assert one_place.post("/v1/completions", {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_client_that_leaves_without_a_stream_does_too(one_place: Server) -> None:
    with httpx.Client(timeout=0.5) as client, pytest.raises(httpx.TimeoutException):
        client.post(
            one_place.url + "/v1/completions",
            json={"prompt": "Once", "max_tokens": 4000, "logit_bias": _bars(one_place)},
        )
    assert one_place.idle(1.0)


def test_a_client_that_leaves_while_its_prompt_is_read(one_place: Server) -> None:
    with Stream(one_place, prompt=[5, 6, 7, 8] * 6000, return_progress=True) as stream:
        progress = json.loads(stream.data(1)[0])["prompt_progress"]
        assert progress["total"] == 24000 and progress["processed"] < 24000
    assert one_place.idle(5.0)


def test_a_client_that_leaves_the_line_is_forgotten(one_place: Server) -> None:
    with Stream(one_place) as first:
        first.data(2)
        with httpx.Client(timeout=0.5) as impatient, pytest.raises(httpx.TimeoutException):
            impatient.post(one_place.url + "/v1/completions", json={"prompt": "x", "max_tokens": 5})
        time.sleep(0.1)
        status = one_place.get("/v1/status").json()["requests"]
        assert (status["running"], status["waiting"]) == (1, 0)
        assert len(first.data(5)) == 5  # the one at work goes on
    assert one_place.idle(1.0)


def test_keep_alives_come_while_a_request_waits(one_place: Server) -> None:
    with Stream(one_place) as first:
        first.data(1)
        with Stream(one_place) as second:  # its head comes with the first keep-alive
            assert next(second.lines) == ": keep-alive"


def test_stopping_finishes_what_is_being_answered(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    with Stream(server, max_tokens=150) as stream:
        stream.data(1)
        for process in server.children():  # systemd's stop reaches these, too
            os.kill(process, signal.SIGTERM)
        server.process.terminate()
        time.sleep(0.3)
        with pytest.raises(httpx.TransportError):
            server.get("/health")
        assert stream.data()[-1] == "[DONE]"
    assert server.process.wait(20) == 0
    assert server.children() == []
    log = server.log.read_text()
    assert "Finishing 1 answer;" in log and "Traceback" not in log


def test_the_engine_ends_when_its_server_is_killed(tmp_path: Path) -> None:
    server = start_server(tmp_path)
    (engine,) = server.children()
    server.process.kill()
    server.process.wait(10)
    end = time.monotonic() + 10
    while Path(f"/proc/{engine}").exists() and "Z" not in Path(f"/proc/{engine}/stat").read_text().split(")")[1][:3]:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_engine_whose_server_has_gone_ends_quietly() -> None:
    """Before it was told what to load, and while it loads."""
    for first in (b"", frame(Start((str(SMALL),)))):
        ours, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, "-m", "jubako.serve.engine", str(theirs.fileno()), "info"]
            engine = subprocess.Popen(words, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, env=_environment())
        ours.sendall(first)
        ours.close()
        assert engine.communicate(timeout=60)[1].decode() == ""


def test_a_terminals_interrupt_is_for_the_server_alone(tmp_path: Path) -> None:
    """The engine that is just starting does not hear of it and has nothing to say."""
    words = [sys.executable, "-m", "jubako.cli", "serve", str(SMALL), "--port", "0", "--sessions-gb", "0"]
    server = subprocess.Popen(words, stderr=subprocess.PIPE, env=_environment(), start_new_session=True)
    try:
        while not (engines := Server(server, 0, tmp_path).children()):
            time.sleep(0.01)
        assert os.getpgid(engines[0]) != server.pid
        os.killpg(server.pid, signal.SIGINT)
        assert "Traceback" not in server.communicate(timeout=30)[1].decode() and server.returncode in (
            130,
            -signal.SIGINT,
        )
    finally:
        server.kill()


def test_a_home_that_can_not_be_written_to_keeps_no_server_from_starting(tmp_path: Path) -> None:
    """Read-only containers have such homes. A folder that was asked for is another matter."""
    (tmp_path / "home").write_text("no folder")
    words = [sys.executable, "-m", "jubako.cli", "serve", str(SMALL), "--port", "0"]
    environment = {**_environment(), "XDG_CACHE_HOME": str(tmp_path / "home"), "PYTHONUNBUFFERED": "1"}
    server = subprocess.Popen(words, stderr=subprocess.PIPE, env=environment, text=True)
    try:
        assert server.stderr is not None
        said = list(takewhile(lambda line: "Ready after" not in line, server.stderr))
        assert server.poll() is None and any("what was read is not kept for the next start" in line for line in said)
    finally:
        server.terminate()
        server.wait(20)
    asked = [*words, "--sessions", str(tmp_path / "home" / "sessions")]
    refused = subprocess.run(asked, capture_output=True, env=environment, text=True, timeout=60)
    assert refused.returncode == 1 and "sessions can't be kept in" in refused.stderr


def test_an_engine_that_can_not_be_started_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refused(*words: str, **options: object) -> None:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    async def problem() -> str:
        engine = Engine(Start((str(SMALL),)))
        engine.start()
        await asyncio.wait_for(engine.launched(), 5)
        assert not await engine.settled()
        await engine.stop()
        return engine.problem

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refused)
    assert asyncio.run(problem()) == "the engine can't be started: Resource temporarily unavailable"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothing-here.gguf"], "nothing-here.gguf"),
        ([str(TINY), "--context", "99999999"], "context is 99999999"),
        ([str(SMALL), "--host", "0.0.0.0"], "needs a key"),
        ([str(SMALL), "--allow-host", "my.host:80"], "--allow-host is 'my.host:80'; a name without port"),
        ([str(SMALL), "--cors-origin", "my.site"], "--cors-origin is 'my.site'; a site is expected"),
    ],
)
def test_what_can_not_be_served_is_one_clear_line(words: list[str], says: str) -> None:
    command = [sys.executable, "-m", "jubako.cli", "serve", "--port", "0", "--log-level", "error", *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, env=_environment())
    assert result.returncode == 1
    assert says in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


def test_the_server_needs_no_engine_code() -> None:
    code = "import sys, jubako.cli.serve; print({'torch', 'jubako._cpu', 'jubako.engine'} & set(sys.modules))"
    words = [sys.executable, "-c", code]
    result = subprocess.run(words, capture_output=True, text=True, timeout=60, env=_environment())
    assert result.stdout.strip() == "set()"
