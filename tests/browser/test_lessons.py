"""A lesson in a browser: one left edge for words and figures, nothing but the drawing behind a drawing."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from built import CONFIG, NARROW, WIDE, Open, file_of, show

DRAWN = [
    lesson.output
    for lesson in CONFIG.course.lessons
    if "::: figure" in file_of(lesson.output).read_text("utf-8")
]
# A section goes across the page, and a question hangs out by its rule.
EDGES = """all => all.filter(one => !one.matches('.taken, .ask')).map(one =>
    Math.round(one.getBoundingClientRect().left + parseFloat(getComputedStyle(one).paddingLeft)))"""
BEHIND = "all => all.map(one => getComputedStyle(one).backgroundImage)"


def edges(page: Page, selector: str) -> set[int]:
    """The left edges of some parts of a page."""
    found: list[int] = page.locator(selector).evaluate_all(EDGES)
    return {*found}


@pytest.mark.full
@pytest.mark.cases(ci=4)
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_figures_stand_at_the_left_edge_of_the_words(walk: Open, name: str, width: int) -> None:
    page = show(walk(name), width)
    words = edges(page, ".text > p")
    assert len(words) == 1
    assert edges(page, ".text > .drawing") == words
    assert {*page.locator(".sheet svg").evaluate_all(BEHIND)} == {"none"}
