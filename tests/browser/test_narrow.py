"""Phones and tablets: tables that fit, lines that can be read, and a picture that holds its place."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from built import CONFIG, NARROW, Open

TABLET = 800
# A page of words, one of options, one of measurements and a chapter, each with wide tables.
TABLES = [CONFIG.home, "api.html", "measured.html", "memory.html"]
HIDDEN = """
all => all.filter(box => box.scrollWidth > box.clientWidth + 1)
    .map(box => `${box.scrollWidth}: ${box.textContent.trim().slice(0, 40)}`)
"""
# The letters in a line of print: between 45 and 80 can be read with ease, and more than 90 hardly.
LETTERS = """
all => Math.max(...all.filter(one => one.checkVisibility() && one.textContent.length > 300).map(one => {
    const range = document.createRange();
    range.selectNodeContents(one);
    const lines = new Set([...range.getClientRects()].map(box => Math.round(box.bottom / 12)));
    return one.textContent.length / lines.size;
}))
"""


@pytest.mark.parametrize("name", TABLES)
def test_no_column_of_a_table_is_off_the_screen_of_a_phone(visit: Open, name: str) -> None:
    page = visit(name, width=NARROW)
    assert page.locator("main .scroll:not(.drawing *) table").count() > 0
    assert page.locator("main .scroll:not(.drawing *)").evaluate_all(HIDDEN) == []


def test_a_wide_table_is_a_list_on_a_phone_and_its_values_say_what_they_are(visit: Open) -> None:
    page = visit("api.html", width=NARROW)
    cell = page.locator(".stack td[data-label]:visible").first
    said = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert said == f'"{cell.get_attribute("data-label")}"' != '""'
    page.set_viewport_size({"width": TABLET, "height": 900})
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == "none"


@pytest.mark.parametrize("name", ["hooks.html", "formats.html"])
def test_a_line_on_a_tablet_is_no_longer_than_a_line_of_print(visit: Open, name: str) -> None:
    page = visit(name, width=TABLET)
    assert 45 < longest(page) < 90


def longest(page: Page) -> float:
    """The letters in a line of the paragraph with the longest lines."""
    return float(page.locator(".doc > p").evaluate_all(LETTERS))
