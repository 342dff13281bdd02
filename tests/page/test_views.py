"""The other views, themes, phones, and hands that never leave the keyboard."""

from __future__ import annotations

import re

import pytest
from page.reader import ask, finished, ramble, set_parameters
from page.visit import Visit
from playwright.sync_api import Page, expect

# The name of the control that has the focus, and the ring drawn for it; the message box's is around the whole composer.
FOCUSED = """() => {
  const control = document.activeElement;
  if (control === document.body) return null;
  const ring = control.closest(".composer:has(textarea:focus)") ?? control;
  return [control.getAttribute("aria-label") ?? control.innerText, getComputedStyle(ring).outlineStyle];
}"""
BACKGROUND = "getComputedStyle(document.documentElement).backgroundColor"


def test_the_monitor_draws_what_the_server_says(visit: Visit) -> None:
    page = visit.open()
    finished(ask(page, "Hello"))
    page.get_by_role("link", name="Monitor").click()
    expect(page.get_by_role("heading", name="What each box holds")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("The last 120 seconds. Answers"))).to_be_visible()
    written = page.locator(".figures-row div", has_text="written").locator("dd")
    expect(written).to_have_text(re.compile(r"^[\d,]+ tokens$"))
    assert page.locator(".tier").count() > 0
    with page.expect_response("**/v1/status"):
        pass  # it goes on asking


def test_snippets_name_this_server_and_its_model(visit: Visit) -> None:
    visit.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = visit.open("#/connect")
    expect(page.get_by_text(f"{visit.address}/v1", exact=True)).to_be_visible()
    expect(page.locator("figure.code").first).to_contain_text("jubako-small")
    page.get_by_role("button", name="Copy bash").first.click()
    assert page.evaluate("navigator.clipboard.readText()").startswith(f"curl -N {visit.address}/v1/chat/completions")


def test_the_theme_can_be_chosen_and_is_kept(visit: Visit) -> None:
    page = visit.open("#/settings")
    page.emulate_media(color_scheme="light")
    light = page.evaluate(BACKGROUND)
    page.get_by_text("Dark", exact=True).click()
    dark = page.evaluate(BACKGROUND)
    assert dark != light
    page.reload()
    assert page.evaluate(BACKGROUND) == dark
    page.get_by_text("As the system", exact=True).click()
    assert page.evaluate(BACKGROUND) == light


def overflow(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


@pytest.mark.parametrize("view", ["chat", "monitor", "connect", "settings"])
def test_a_phone_never_scrolls_sideways(phone: Visit, view: str) -> None:
    page = phone.open(f"#/{view}")
    page.get_by_role("button", name="Menu").wait_for()
    page.wait_for_timeout(200)
    assert overflow(page) == 0
    if view == "chat":
        set_parameters(page, Max_tokens="40", thinking="Off")
        finished(ask(page, "word " * 20 + "x" * 300))
        page.get_by_role("button", name="Parameters").tap()
        assert overflow(page) == 0
        page.get_by_role("button", name="Close parameters").tap()
        page.get_by_role("button", name="Menu").tap()
        page.get_by_role("link", name="Monitor").tap()
        expect(page.get_by_role("heading", name="Monitor", level=2)).to_be_visible()
        expect(page.get_by_role("link", name="Monitor")).to_be_hidden()


def test_everything_can_be_done_with_the_keyboard(visit: Visit) -> None:
    page = visit.open()
    keys = page.keyboard
    ramble(page)
    page.locator("main").focus()
    keys.press("/")
    expect(page.locator("#composer")).to_be_focused()
    keys.type("Tell me a story.")
    keys.press("Enter")
    expect(page.locator(".answer > .prose")).to_have_text(re.compile(r"\S"))
    keys.press("Escape")
    expect(page.locator(".answer").get_by_text("Stopped.")).to_be_visible()
    keys.press("Alt+Digit2")
    expect(page.get_by_role("heading", name="Monitor", level=2)).to_be_visible()
    keys.press("Alt+KeyN")
    expect(page.locator(".answer")).to_have_count(0)
    expect(page.locator("#composer")).to_be_focused()
    keys.press("Alt+ArrowDown")
    expect(page.locator(".answer")).to_have_count(1)
    page.locator("main").focus()
    keys.press("?")
    expect(page.get_by_role("dialog", name="Keyboard")).to_be_visible()
    keys.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_tabbing_reaches_every_control_with_a_visible_focus(visit: Visit) -> None:
    page = visit.open()
    finished(ask(page, "Hello"))
    page.locator(".skip").focus()
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        control = page.evaluate(FOCUSED)
        if control is None:  # beyond the last one
            break
        name, outline = control
        reached.append(name)
        assert outline != "none", f"no focus ring on {name!r}"
    assert {"New conversation", "Edit message", "Regenerate answer", "Message", "Attach text files"} <= set(reached)
