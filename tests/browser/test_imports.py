"""Imports in a browser: one quiet line, by the keyboard and on a phone, and nothing of them on paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from browser.looks import ALL, violations
from built import show
from press.project import edit

pytestmark = pytest.mark.full

IMPORTS = "import json\nfrom collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized\n"
WINDOW = {"permissions": ["clipboard-read", "clipboard-write"]}


def furnish(sample: Path) -> None:
    ring = sample / "src/sample/ring.py"
    edit(ring, '"""\n\n# sidelit: hide\nfrom __future__ import annotations', f'"""\n\n{IMPORTS}')
    edit(ring, '__all__ = ["Ring"]\n# sidelit: show\n', '__all__ = ["Ring"]\n')


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("page", [{"viewport": {"width": 320, "height": 700}}, {}], indirect=True)
def test_imports_are_one_line_that_a_key_opens(page: Page, home: str) -> None:
    page.goto(home + "ring.html")
    line, code = page.locator(".imports > summary"), page.locator(".imports .code")
    box = line.bounding_box()
    assert box
    assert 24 <= box["height"] <= 32
    assert not code.is_visible()
    line.focus()
    page.keyboard.press("Enter")
    assert code.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert violations(page, ALL) == []
    # The next stop is what stands in it, and the names of the code are none.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('.imports .copy')")
    page.keyboard.press("Enter")
    page.locator(".imports .copy.done").wait_for()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith(IMPORTS)
    assert copied.endswith('__all__ = ["Ring"]\n\nfrom collections import deque')


def test_an_address_opens_the_imports_and_paper_leaves_them_out(page: Page, home: str) -> None:
    page.goto(home + "ring.html")
    number = page.locator(".imports .line").first.get_attribute("id")
    page.goto(f"{home}ring.html#{number}")
    assert page.locator(f"#{number}").is_visible()
    show(page, media="print")
    assert not page.locator(".imports").is_visible()


def test_forced_colours_leave_the_line_its_drawing(page: Page, home: str) -> None:
    page.emulate_media(forced_colors="active")
    page.goto(home + "ring.html")
    drawn = "getComputedStyle(document.querySelector('.imports > summary'), '::before').borderTopColor"
    behind = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(drawn) != page.evaluate(behind)
