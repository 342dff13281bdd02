"""What a reader does on the page, in one line each."""

from __future__ import annotations

import json

from playwright.sync_api import Locator, Page, Route, expect


def ask(page: Page, text: str) -> Locator:
    """Send a message; the answer that begins."""
    before = page.locator(".answer").count()
    page.get_by_role("textbox", name="Message", exact=True).fill(text)
    page.keyboard.press("Enter")
    answer = page.locator(".answer").nth(before)
    expect(answer).to_be_attached()
    return answer


def finished(answer: Locator) -> str:
    """Wait for the end of an answer; its text without its thinking."""
    expect(answer).to_have_attribute("aria-busy", "false")
    expect(answer.locator(".problem")).to_have_count(0)
    return answer.locator(":scope > .prose, :scope > .code pre").inner_text()


def set_parameters(page: Page, **values: str) -> None:
    """Fill fields of the parameters panel by their labels; `thinking` chooses."""
    page.get_by_role("button", name="Parameters", exact=True).click()
    panel = page.get_by_role("region", name="Parameters")
    for label, value in values.items():
        if label == "thinking":
            panel.get_by_text(value, exact=True).click()
        else:
            panel.get_by_label(label.replace("_", " ")).fill(value)
    page.get_by_role("button", name="Close parameters").click()


def ramble(page: Page) -> None:
    """From now on every answer is words without end, since the last letter that it must have hardly ever comes."""
    endless = {"response_format": {"type": "regex", "regex": "([a-z]+ )*Ω"}, "reasoning_effort": "none"}

    def change(route: Route) -> None:
        route.continue_(post_data=json.dumps({**route.request.post_data_json, **endless}))

    page.route("**/v1/chat/completions", change)
