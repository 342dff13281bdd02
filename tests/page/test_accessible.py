"""What the rules of axe find wrong for people who see, hear or move differently: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from page.reader import ask, finished, set_parameters
from page.visit import Visit
from playwright.sync_api import Browser

AXE = Path(__file__).parents[2] / "web" / "node_modules" / "axe-core" / "axe.min.js"
FAULTS = """axe.run(document, {runOnly: ["wcag2a", "wcag2aa", "wcag21aa", "best-practice"]})
  .then(({violations}) => violations.map(({id, nodes}) => `${id}: ${nodes.map(({html}) => html).join(" | ")}`))"""


@pytest.mark.parametrize(("scheme", "width"), [("light", 360), ("dark", 1280)])
def test_no_rule_is_broken(browser: Browser, address: str, scheme: str, width: int) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: tools/page.sh check")
    visit = Visit(browser, address, color_scheme=scheme, viewport={"width": width, "height": 800}, bypass_csp=True)
    page = visit.open()
    set_parameters(page, thinking="Off", Temperature="0")
    finished(ask(page, "What is 12 + 30?"))
    page.get_by_role("button", name="Parameters", exact=True).click()
    page.evaluate(AXE.read_text())
    assert page.evaluate(FAULTS) == []
    for view in ("monitor", "connect", "settings"):
        visit.open(f"#/{view}")
        page.get_by_role("heading", level=2).first.wait_for()
        assert page.evaluate(FAULTS) == [], view
    visit.close()
