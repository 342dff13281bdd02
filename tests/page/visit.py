"""One reader's browser, and what must never happen in it."""

from __future__ import annotations

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect

PATIENCE_MS = 15_000
expect.set_options(timeout=PATIENCE_MS)

# Notes what the page's own policy forbids, before any script of the page runs.
WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation",
  (event) => violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


class Visit:
    """One reader's browser: a page that must stay silent in the console, within its policy, and with its own server."""

    def __init__(self, browser: Browser, address: str, **options: object) -> None:
        self.address = address
        self.faults: list[str] = []
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        self.context.set_default_timeout(PATIENCE_MS)
        self.context.add_init_script(WATCH)
        self.context.on("request", self._on_request)
        self.page = self.context.new_page()
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))

    def _on_request(self, request: Request) -> None:
        if not request.url.startswith((self.address + "/", "blob:")):
            self.faults.append(f"request to {request.url}")

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(f"console {message.type}: {message.text}")

    def open(self, where: str = "") -> Page:
        self.page.goto(f"{self.address}/{where}")
        return self.page

    def close(self) -> None:
        """Fails the test when anything happened that must not."""
        self.faults += self.page.evaluate("violations")
        self.context.close()
        assert self.faults == []
