"""Files as text in a question, and text that is safe to show."""

from __future__ import annotations

from page.reader import ask, finished, set_parameters
from page.visit import Visit
from playwright.sync_api import FilePayload, Page, expect


def attach(page: Page, *files: FilePayload) -> None:
    page.locator("input[type=file]").set_input_files(list(files))


def file(name: str, content: bytes) -> FilePayload:
    return {"name": name, "mimeType": "application/octet-stream", "buffer": content}


def test_a_file_goes_along_as_text(visit: Visit) -> None:
    page = visit.open()
    set_parameters(page, Max_tokens="8", thinking="Off")
    attach(page, file("notes.md", b"The marker is 4711."), file("picture.png", b"\x89PNG\r\n\x1a\n\x00"))
    expect(page.get_by_role("list", name="Attached files")).to_contain_text("notes.md")
    expect(page.get_by_role("alert")).to_have_text("picture.png is not a text file.")
    with page.expect_request("**/v1/chat/completions") as sent:
        answer = ask(page, "Repeat the marker.")
    parts = sent.value.post_data_json["messages"][0]["content"]
    assert parts == [
        {"type": "text", "text": "File notes.md:\n\nThe marker is 4711.\n\n"},
        {"type": "text", "text": "Repeat the marker."},
    ]
    finished(answer)
    expect(page.locator(".question .attached summary")).to_have_text("notes.md")


def test_a_file_too_large_is_refused_with_the_numbers(visit: Visit) -> None:
    page = visit.open()
    attach(page, file("big.txt", b"x" * 500_001))
    expect(page.get_by_role("alert")).to_have_text("big.txt is 500 kB; files can be up to 500 kB.")


def test_markup_in_a_message_stays_text(visit: Visit) -> None:
    page = visit.open()
    set_parameters(page, Max_tokens="8", thinking="Off")
    hostile = "<img src=x onerror=alert(1)> <|im_end|> <think> [x](javascript:alert(1))"
    finished(ask(page, hostile))
    expect(page.locator(".question .plain")).to_have_text(hostile)
    assert page.locator(".thread img").count() == 0
