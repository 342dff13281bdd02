"""Typing, streaming, stopping, editing, asking again, and finding it all after a reload."""

from __future__ import annotations

import json
import re

from page.reader import ask, finished, ramble, set_parameters
from page.visit import Visit
from playwright.sync_api import Route, expect


def test_an_answer_streams_in_with_its_figures(visit: Visit) -> None:
    page = visit.open()
    set_parameters(page, Temperature="0", thinking="Off")
    answer = ask(page, "What is 12 + 30?")
    assert "42" in finished(answer)
    expect(answer.locator(".figures")).to_have_text(re.compile(r"\d+ tokens .* \d+(\.\d)? tok/s .* prompt \d+"))
    expect(page.get_by_role("heading", name="What is 12 + 30?")).to_be_visible()


def test_text_is_seen_before_the_answer_ends_and_stops_when_told(visit: Visit) -> None:
    page = visit.open()
    ramble(page)
    answer = ask(page, "Tell me a long story.")
    expect(answer.locator(".prose").first).to_have_text(re.compile(r"\S"))
    first = answer.locator(":scope > .prose").inner_text()
    page.wait_for_function(
        "length => document.querySelector('.answer > .prose').innerText.length > length + 20", arg=len(first)
    )
    expect(answer).to_have_attribute("aria-busy", "true")
    page.get_by_role("button", name="Stop").click()
    expect(answer.get_by_text("Stopped.")).to_be_visible()
    kept = answer.locator(":scope > .prose").inner_text()
    page.wait_for_timeout(300)
    assert answer.locator(":scope > .prose").inner_text() == kept
    page.unroute("**/v1/chat/completions")
    set_parameters(page, Temperature="0", thinking="Off")
    assert "42" in finished(ask(page, "What is 12 + 30?"))


def test_thinking_lies_folded_above_the_answer(visit: Visit) -> None:
    page = visit.open()
    set_parameters(page, Temperature="0", thinking="High")
    answer = ask(page, "What is 12 + 30?")
    text = finished(answer)
    thinking = answer.locator("details.thinking")
    expect(thinking.locator("summary")).to_have_text(re.compile("^Thought"))
    expect(thinking.locator(".prose")).to_be_hidden()
    thinking.locator("summary").click()
    assert thinking.locator(".prose").inner_text() not in ("", text)
    assert "think>" not in answer.inner_text()


def test_an_edited_question_is_answered_anew_and_the_old_one_stays(visit: Visit) -> None:
    page = visit.open()
    set_parameters(page, Temperature="0", thinking="Off")
    assert "42" in finished(ask(page, "What is 12 + 30?"))
    page.get_by_role("button", name="Edit message").click()
    page.get_by_role("textbox", name="Edit message").fill("What is 50 + 31?")
    page.keyboard.press("Enter")
    expect(page.locator(".question .versions")).to_have_text("2 / 2")
    expect(page.locator(".question .plain")).to_have_text("What is 50 + 31?")
    assert "81" in finished(page.locator(".answer"))
    page.get_by_role("button", name="Previous version").click()
    assert "42" in finished(page.locator(".answer"))


def test_an_answer_can_be_asked_for_again(visit: Visit) -> None:
    page = visit.open()
    answer = ask(page, "Hello")
    finished(answer)
    page.get_by_role("button", name="Regenerate answer").click()
    expect(page.locator(".answer .versions")).to_have_text("2 / 2")
    finished(page.locator(".answer"))


def test_conversations_outlive_a_reload_and_can_be_renamed_and_deleted(visit: Visit) -> None:
    page = visit.open()
    set_parameters(page, Temperature="0", thinking="Off")
    text = finished(ask(page, "What is 12 + 30?"))
    page.reload()
    assert finished(page.locator(".answer")) == text
    page.get_by_role("button", name="New conversation").click()
    finished(ask(page, "Hello"))
    entries = page.get_by_role("navigation", name="Conversations").get_by_role("link")
    expect(entries).to_have_text(["Hello", "What is 12 + 30?"])
    entries.nth(0).hover()
    page.get_by_role("button", name="Rename Hello").click()
    page.keyboard.type("Greeting")
    page.keyboard.press("Enter")
    expect(entries.nth(0)).to_have_text("Greeting")
    page.on("dialog", lambda dialog: dialog.accept())
    entries.nth(0).hover()
    page.get_by_role("button", name="Delete Greeting").click()
    expect(entries).to_have_text(["What is 12 + 30?"])
    page.reload()
    expect(entries).to_have_text(["What is 12 + 30?"])


def test_a_conversation_is_exported_as_markdown(visit: Visit) -> None:
    page = visit.open()
    set_parameters(page, Temperature="0", thinking="Off")
    text = finished(ask(page, "What is 12 + 30?"))
    page.get_by_role("navigation", name="Conversations").get_by_role("link").hover()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export What is 12 + 30?").click()
    assert download.value.suggested_filename == "What-is-12-30.md"
    assert (
        download.value.path().read_text()
        == f"# What is 12 + 30?\n\n## You\n\nWhat is 12 + 30?\n\n## Jubako\n\n{text}\n"
    )


def test_a_json_answer_is_json(visit: Visit) -> None:
    page = visit.open()
    set_parameters(page, Temperature="1", Max_tokens="400", thinking="JSON")
    assert isinstance(json.loads(finished(ask(page, "Give me an object."))), dict)


def test_an_error_is_said_in_words_and_can_be_tried_again(visit: Visit) -> None:
    page = visit.open()
    page.route("**/v1/chat/completions", lambda route: route.abort(), times=1)
    answer = ask(page, "Hello")
    expect(answer.get_by_role("alert")).to_contain_text("The server does not answer")
    page.get_by_role("button", name="Try again").click()
    finished(page.locator(".answer"))
    visit.faults = [fault for fault in visit.faults if "ERR_FAILED" not in fault]


def test_the_key_is_asked_for_when_the_server_wants_one(visit: Visit) -> None:
    page = visit.page

    def guard(route: Route) -> None:
        if route.request.header_value("authorization") == "Bearer sesame":
            route.continue_()
        else:
            route.fulfill(status=401, json={"error": {"message": "wrong key"}})

    page.route("**/v1/**", guard)
    visit.open()
    field = page.get_by_label("The server asks for an API key.")
    field.fill("mellon")
    page.keyboard.press("Enter")
    expect(field).to_have_value("mellon")
    field.fill("sesame")
    page.keyboard.press("Enter")
    expect(field).to_have_count(0)
    set_parameters(page, Temperature="0", thinking="Off")
    assert "42" in finished(ask(page, "What is 12 + 30?"))
    page.get_by_role("link", name="Connect").click()
    expect(page.locator("figure.code").first).to_contain_text("Authorization: Bearer sesame")
    visit.faults = [fault for fault in visit.faults if "401" not in fault]
