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
    assert edges(page, ".text > .drawing") <= words
    # Beside words, figures have an edge of their own; on a phone there is one column.
    beside = edges(page, ".margin > .drawing")
    assert beside <= words if width == NARROW else len(beside) <= 1 and not beside & words
    assert {*page.locator(".sheet svg").evaluate_all(BEHIND)} == {"none"}


def test_on_paper_answers_stay_folded_until_a_teacher_opens_them(visit: Open) -> None:
    page = visit(CONFIG.course.lessons[0].output)
    page.emulate_media(media="print")
    answer = page.locator(".ask .said").first
    assert not answer.is_visible()
    page.goto(f"{page.url}?answers")
    assert answer.is_visible()
    page.emulate_media(media="screen")
    page.locator("button.every").click()
    assert not answer.is_visible()


def test_what_belongs_to_words_stands_beside_them_and_below_them_on_a_phone(visit: Open) -> None:
    page = visit(CONFIG.course.lessons[1].output, width=WIDE)
    places = "all => all.map(one => { const box = one.getBoundingClientRect(); return [box.left, box.top] })"
    for pair in page.locator(".pair:has(> .lead > *)").all():
        (lead, margin) = pair.locator("> .lead, > .margin").evaluate_all(places)
        assert margin[0] > lead[0]
        assert margin[1] <= lead[1] + 5
    show(page, NARROW)
    for pair in page.locator(".pair:has(> .lead > *)").all():
        (lead, margin) = pair.locator("> .lead, > .margin").evaluate_all(places)
        assert margin[0] == lead[0]
        assert margin[1] > lead[1]
    assert page.evaluate("document.documentElement.scrollWidth") == NARROW


def test_code_that_stays_in_view_hides_nothing_below_it(visit: Open) -> None:
    page = visit("three_stages.html", width=WIDE)
    section = page.locator(".taken:has(> .told > table)").first
    # Scrolled until the last row of the table alone is in view.
    section.locator("> .told tbody tr:last-child").evaluate(
        "row => scrollTo(0, row.getBoundingClientRect().top - 60)"
    )
    code, table = (section.locator(each).bounding_box() for each in ("> .code", "> .told"))
    assert code
    assert table
    assert code["y"] + code["height"] <= table["y"] + 1
