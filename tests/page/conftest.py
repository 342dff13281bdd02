"""A real server with the shipped model, and headless Chromium in front of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest
from page.visit import Visit
from playwright.sync_api import Browser, sync_playwright
from serve.server_process import start_server

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


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the server is."""
    server = start_server(tmp_path_factory.mktemp("page"))
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Of one module: while it is there, playwright keeps an event loop running in this thread."""
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
