"""Who may ask: keys, host names, origins."""

import pytest

from jubako.errors import MachineError, RequestError
from jubako.serve.config import Config, bind, collect_keys
from jubako.serve.guard import Guard, host_name, is_loopback
from jubako.serve.problems import Refused
from jubako.serve.protocol import Start

GUARD = Guard(("secret-1", "secret-2"), frozenset({"box.example"}), frozenset({"https://chat.example"}))


@pytest.mark.parametrize(
    ("headers", "who"),
    [
        ({"authorization": "Bearer secret-1"}, "key 1"),
        ({"authorization": "bearer  secret-2"}, "key 2"),
        ({"x-api-key": "secret-2"}, "key 2"),
    ],
)
def test_a_right_key_is_let_in(headers: dict[str, str], who: str) -> None:
    assert GUARD.check_key("/v1/models", headers) == who


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer secret-3"},
        {"authorization": "Bearer "},
        {"authorization": "Basic secret-1"},
        {"authorization": "secret-1"},
        {"x-api-key": "secret-1 "},
        {"x-api-key": "s\udcffcret"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/status", "/metrics", "/openapi.json", "/health/x", "/tokenize"])
def test_anything_else_is_not(path: str, headers: dict[str, str]) -> None:
    with pytest.raises(Refused) as error:
        GUARD.check_key(path, headers)
    assert error.value.kind == "authentication" and error.value.code == "invalid_api_key"
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("path", ["/", "/health", "/assets/index.js", "/icon.svg"])
def test_the_page_and_the_health_need_no_key(path: str) -> None:
    assert GUARD.check_key(path, {}) == ""


@pytest.mark.parametrize(
    "host", ["localhost", "127.0.0.1:8080", "[::1]:8080", "192.168.1.7:80", "BOX.example", "a.localhost"]
)
def test_hosts_that_can_not_be_rebound_are_answered(host: str) -> None:
    GUARD.check_host({"host": host})


@pytest.mark.parametrize(
    ("host", "kind"),
    [
        ("evil.example", "misdirected"),
        ("box.example.evil.example:80", "misdirected"),
        ("127.0.0.1.evil.example", "misdirected"),
        ("", "invalid"),
        ("a b", "misdirected"),
        ("user@localhost", "invalid"),
        ("localhost:port", "invalid"),
        ("localhost/x", "invalid"),
        ("[::1", "invalid"),
    ],
)
def test_other_hosts_are_not(host: str, kind: str) -> None:
    with pytest.raises(Refused) as error:
        GUARD.check_host({"host": host})
    assert error.value.kind == kind


def test_pages_of_other_sites_may_not_ask_unless_named() -> None:
    assert GUARD.check_origin({"host": "localhost:1"}) is None
    assert GUARD.check_origin({"host": "localhost:1", "origin": "http://localhost:1"}) is None
    assert GUARD.check_origin({"host": "localhost:1", "origin": "https://chat.example"}) == "https://chat.example"
    for origin in ("https://evil.example", "null", "http://localhost:2", "http://[", "https://chat.example.evil"):
        with pytest.raises(Refused, match="--cors-origin"):
            GUARD.check_origin({"host": "localhost:1", "origin": origin})


def test_names_of_hosts() -> None:
    assert host_name("Example.COM.:80") == "example.com"
    assert host_name("[::1]:80") == "::1"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.com"])
def test_without_a_key_only_this_machine_is_served(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(RequestError, match="needs a key"):
        Config(Start(("a",)), host=host)
    Config(Start(("a",)), host=host, keys=("k",))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_needs_none(host: str) -> None:
    Config(Start(("a",)), host=host)


def test_addresses_that_can_not_be_had_are_named() -> None:
    with pytest.raises(MachineError, match=r"no\.such"):
        bind("no.such.host.invalid", None)
    with bind("127.0.0.1", 0) as taken, pytest.raises(MachineError, match="choose another with --port"):
        bind("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(RequestError, match="--log-level is 'loud'"):
        Config(Start(("a",)), log_level="loud")


def test_keys_come_from_three_places(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "keys"
    file.write_text("# mine\n two \n\nthree\n")
    monkeypatch.setenv("JUBAKO_API_KEY", "four, one five")
    assert collect_keys(["one"], file) == ("one", "two", "three", "four", "five")
    file.write_text("# none\n")
    for given, path, says in (([""], None, "empty"), ([], file, "no key"), ([], tmp_path / "absent", "absent")):
        with pytest.raises(RequestError, match=says):
            collect_keys(given, path)
    for key in ("a b", "ä", "a\nb"):
        with pytest.raises(RequestError, match="printable ASCII"):
            Config(Start(("a",)), keys=(key,))
