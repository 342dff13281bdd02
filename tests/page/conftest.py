"""A real server with the shipped model, and headless Chromium in front of it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest
from page.visit import Visit
from playwright.sync_api import Browser, sync_playwright

BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
]
MISSING = "no browser: install chromium, or name one in JUBAKO_BROWSER (tests/page)"


def find_browser() -> str | None:
    named = os.environ.get("JUBAKO_BROWSER")
    return named or next(filter(None, map(shutil.which, BROWSERS)), None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if find_browser() is None:
        terminalreporter.write_line(f"The page was not tested: {MISSING}.")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server is. It stops with the session, and must then end by itself."""
    address = f"http://127.0.0.1:{free_port()}"
    log = tmp_path_factory.mktemp("page") / "server.log"
    command = [sys.executable, "-m", "jubako.cli", "serve", "--port", address.rsplit(":", 1)[1]]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            until_healthy(address, server)
            yield address
        except TimeoutError:
            raise AssertionError(log.read_text()) from None
        finally:
            server.terminate()
            server.wait(20)


def until_healthy(address: str, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        pytest.skip(MISSING)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Visit]:
    """A reader at a desk."""
    visit = Visit(browser, address)
    yield visit
    visit.close()


@pytest.fixture
def phone(browser: Browser, address: str) -> Iterator[Visit]:
    """A reader with a narrow phone."""
    visit = Visit(browser, address, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    yield visit
    visit.close()
