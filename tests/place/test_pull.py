"""`pull` against a server on this machine that breaks off, lies about ranges, and damages what it sends."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from jubako.cli import app
from jubako.errors import JubakoError, MachineError, RequestError
from jubako.place import fetch as fetching
from jubako.place.fetch import Remote
from jubako.place.pull import check_room, list_files, pull, source_of

SIZE = 3_000_017  # no whole number of pieces


def content(name: str, size: int = SIZE) -> bytes:
    return np.random.default_rng(sum(name.encode())).bytes(size)


@dataclass
class Server:
    """Files, and how they are given. Each entry of `tricks` spoils one answer, in order."""

    files: dict[str, bytes]
    tricks: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)  # what was asked for
    endpoint: str = ""

    def listing(self) -> dict[str, object]:
        siblings = []
        for name, data in self.files.items():
            if name.endswith(".txt"):
                blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
                siblings.append({"rfilename": name, "size": len(data), "blobId": blob})
            else:
                lfs = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                siblings.append({"rfilename": name, "size": len(data), "blobId": "0" * 40, "lfs": lfs})
        return {"id": "me/model", "sha": "a" * 40, "siblings": siblings, "tags": [], "private": False}


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path.startswith("/api/models/me/model"):
                self.answer(200, json.dumps(server.listing()).encode(), {"Content-Type": "application/json"})
            elif self.path.startswith("/me/model/resolve/"):
                self.give(self.path.split("/", 5)[5].split("?")[0])
            else:
                self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})

        def give(self, name: str) -> None:
            data, asked = server.files[name], self.headers.get("Range")
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked else 0
            server.ranges.append(asked or "")
            trick = server.tricks.pop(0) if server.tricks else ""
            piece = data[start:]
            headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if asked else {}
            match trick:
                case "error":
                    self.answer(503, b"")
                case "gone":
                    self.answer(404, b"")
                case "private":
                    self.answer(403, b"")
                case "break":
                    self.answer(206 if asked else 200, piece, headers, sent=len(piece) // 3)
                case "short":  # says that this is all
                    self.answer(206 if asked else 200, piece[: len(piece) // 2], headers)
                case "long":
                    self.answer(206 if asked else 200, piece + b"more than there is", headers)
                case "whole":  # knows no ranges
                    self.answer(200, data)
                case "elsewhere":  # another piece than was asked for
                    self.answer(206, data[7:], {"Content-Range": f"bytes 7-{len(data) - 1}/{len(data)}"})
                case "lie":  # says that it is the right piece
                    self.answer(206, data[: len(piece)], headers)
                case "damage":
                    self.answer(206 if asked else 200, piece[:-1] + bytes([piece[-1] ^ 1]), headers)
                case _:
                    self.answer(206 if asked else 200, piece, headers)

        def answer(
            self, status: int, body: bytes, headers: dict[str, str] | None = None, sent: int | None = None
        ) -> None:
            self.send_response(status)
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:sent])
            if sent is not None:
                self.wfile.flush()
                self.close_connection = True

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server({name: content(name) for name in ("A-00001-of-00002.gguf", "A-00002-of-00002.gguf")})
    made.files["notes.txt"] = b"small, and known to git alone"
    monkeypatch.setattr(ThreadingHTTPServer, "handle_error", lambda *_: None)  # clients that hang up
    listener = ThreadingHTTPServer(("127.0.0.1", 0), handler(made))
    threading.Thread(target=listener.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    made.endpoint = f"http://127.0.0.1:{listener.server_address[1]}"
    monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    yield made
    listener.shutdown()
    listener.server_close()


def one(server: Server, name: str = "A-00001-of-00002.gguf") -> list[Remote]:
    return [file for file in list_files(source_of("me/model:*")) if file.name == name]


def whole(paths: list[Path], server: Server) -> None:
    assert [path.read_bytes() == server.files[path.name] for path in paths] == [True] * len(paths)


def test_all_files_come_with_their_checksums(server: Server, tmp_path: Path) -> None:
    files = list_files(source_of("me/model:*"))
    counted: dict[str, int] = {}
    paths = pull(files, tmp_path, lambda name, count: counted.update({name: counted.get(name, 0) + count}))
    whole(paths, server)
    assert counted == {file.name: file.size for file in files}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(server.files)


def test_patterns_choose_files(server: Server) -> None:
    server.files["deep/folder/B.gguf"] = b"b"
    assert [file.name for file in list_files(source_of("me/model:*.txt"))] == ["notes.txt"]
    assert [file.name for file in list_files(source_of("me/model:B*"))] == ["B.gguf"]
    with pytest.raises(RequestError, match=r"no file like \*\.bin"):
        list_files(source_of("me/model:*.bin"))


@pytest.mark.parametrize(
    ("tricks", "asked"),
    [
        (["break"], ["", "bytes=1000005-"]),
        (["break", "break", "break"], ["", "bytes=1000005-", None, None]),
        (["short"], ["", "bytes=1500008-"]),
        (["error", "error"], ["", "", ""]),
        (["long"], [""]),
        (["break", "whole"], ["", "bytes=1000005-"]),
        (["break", "elsewhere"], ["", "bytes=1000005-", ""]),
        (["break", "lie"], ["", "bytes=1000005-", ""]),
        (["damage"], ["", ""]),
    ],
)
def test_what_a_server_does_wrong_is_mended(
    server: Server, tmp_path: Path, tricks: list[str], asked: list[str | None]
) -> None:
    server.tricks = tricks
    whole(pull(one(server), tmp_path), server)
    assert len(server.ranges) == len(asked)
    assert all(want is None or want == got for want, got in zip(asked, server.ranges, strict=True))
    assert [path.name for path in tmp_path.iterdir()] == ["A-00001-of-00002.gguf"]


def test_the_next_call_goes_on_where_one_ended(server: Server, tmp_path: Path) -> None:
    server.tricks = ["break"] + ["error"] * fetching.ATTEMPTS
    with pytest.raises(MachineError, match=r"the server answered 503; 1.0 MB of 3.0 MB|kept"):
        pull(one(server), tmp_path)
    server.ranges.clear()
    whole(pull(one(server), tmp_path), server)
    assert server.ranges == ["bytes=1000005-"]


def test_damage_twice_is_an_error_and_leaves_nothing(server: Server, tmp_path: Path) -> None:
    server.tricks = ["damage", "damage"]
    with pytest.raises(MachineError, match="twice with a wrong checksum"):
        pull(one(server), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_small_file_is_checked_by_gits_sum(server: Server, tmp_path: Path) -> None:
    server.tricks = ["damage", "damage"]
    with pytest.raises(MachineError, match="wrong checksum"):
        pull(one(server, "notes.txt"), tmp_path)


@pytest.mark.parametrize(("trick", "says"), [("gone", "does not have it"), ("private", "HF_TOKEN")])
def test_what_is_not_given_is_said_at_once(server: Server, tmp_path: Path, trick: str, says: str) -> None:
    server.tricks = [trick]
    with pytest.raises(RequestError, match=says):
        pull(one(server), tmp_path)
    assert len(server.ranges) == 1


def test_a_file_that_is_there_is_checked_and_not_fetched(server: Server, tmp_path: Path) -> None:
    [file] = one(server)
    (tmp_path / file.name).write_bytes(server.files[file.name])
    pull([file], tmp_path)
    assert server.ranges == []
    (tmp_path / file.name).write_bytes(b"something of mine")
    with pytest.raises(MachineError, match="another content"):
        pull([file], tmp_path)
    assert (tmp_path / file.name).read_bytes() == b"something of mine"


def test_a_set_without_one_of_its_parts_is_refused(server: Server) -> None:
    del server.files["A-00002-of-00002.gguf"]
    with pytest.raises(RequestError, match="lacks part 2 of 2 of A"):
        list_files(source_of("me/model:*.gguf"))


def test_files_of_one_name_are_not_taken_for_each_other(server: Server) -> None:
    server.files |= {"Q4/B.gguf": b"b", "Q8/B.gguf": b"c"}
    with pytest.raises(RequestError, match=r"Q4/B.gguf and Q8/B.gguf.*me/model:FOLDER"):
        list_files(source_of("me/model:*B.gguf"))
    assert [file.size for file in list_files(source_of("me/model:Q8/*"))] == [1]


def test_two_pulls_do_not_write_to_one_file(server: Server, tmp_path: Path) -> None:
    files = one(server)

    def again(_: str, count: int) -> None:
        if count:
            with pytest.raises(MachineError, match="another jubako pull is at work"):
                pull(files, tmp_path)

    whole(pull(files, tmp_path, again), server)
    whole(pull(files, tmp_path), server)  # the folder is free again


def test_free_disk_is_looked_at_first(server: Server, tmp_path: Path) -> None:
    files = list_files(source_of("me/model:*.gguf"))
    assert check_room(files, tmp_path) == 2 * SIZE
    huge = [Remote("http://x", "huge.gguf", 1 << 60)]
    with pytest.raises(MachineError, match=r"are to be fetched and .* are free"):
        check_room(huge, tmp_path)


def test_names_from_a_server_stay_in_the_folder(server: Server, tmp_path: Path) -> None:
    server.files = {"../../outside.gguf": b"x"}
    [file] = list_files(source_of("me/model"))
    assert file.name == "outside.gguf"
    server.files = {"bad\nname.gguf": b"x"}
    with pytest.raises(MachineError, match="can't be a file's"):
        list_files(source_of("me/model"))


@pytest.mark.parametrize("name", ["no-such-model", "", "a/b/c", "me/", "http://x/y"])
def test_unknown_names_are_errors(name: str) -> None:
    with pytest.raises(RequestError):
        source_of(name)


def test_published_names_bring_their_draft_layer() -> None:
    source = source_of("ud-iq3_xxs")
    assert source.known is not None and source.known.name == "UD-IQ3_XXS"
    assert source.patterns == ("*UD-IQ3_XXS-*.gguf", "MTP/mtp-Qwen3.8-Flash-Next-shared-Q8_0.gguf")
    assert source_of("UD-IQ3_XXS", draft=False).patterns == ("*UD-IQ3_XXS-*.gguf",)


def test_no_server_and_no_repository_are_one_sentence(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(JubakoError, match="there is no such repository"):
        list_files(source_of("me/other"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(JubakoError, match="can't be"):
        list_files(source_of("me/model"))


def test_a_full_disk_says_what_is_kept(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Iterator[bytes]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetching, "_pieces", full)
    with pytest.raises(MachineError, match="No space left on device; 0 kB of 3 MB are kept"):
        pull(one(server), tmp_path)


def test_the_command_fetches_and_says_how_to_start(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "my {x} [" / "red] models"  # which the terminal's markup leaves alone
    folder.mkdir(parents=True)
    server.files |= {"mtp-A.gguf": b"draft"}
    server.tricks = ["break"]
    result = CliRunner().invoke(app, ["pull", "me/model:*.gguf", "--to", str(folder)], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    whole([folder / name for name in server.files if name.endswith(".gguf")], server)
    for word in ("A-00001-of-00002.gguf", "3 MB", "6 MB in all, 6 MB to fetch", "checksums right"):
        assert word in result.stderr
    assert f"./start -m '{folder}/A-00001-of-00002.gguf' -m '{folder}/mtp-A.gguf'" in result.stderr
    server.ranges.clear()
    again = CliRunner().invoke(app, ["pull", "me/model:*.gguf", "--to", str(folder), "--dry-run"])
    assert again.exit_code == 0 and "0 kB to fetch" in again.stderr and not server.ranges
