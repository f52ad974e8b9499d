"""A chapter as a reader meets it: columns that line up, one scroll, a language menu that keeps the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page

from built import CHAPTERS, CONFIG, LANGUAGES, NARROW, WIDE, Open, language_of, name_of, path_of, show
from sidelit import source

PATHS = [path_of(name, language) for name in CHAPTERS for language in LANGUAGES]
# The ways from one language to another are walked once a chapter, from each language in turn.
STARTS = [path_of(name, LANGUAGES[index % len(LANGUAGES)]) for index, name in enumerate(CHAPTERS)]
# Letters line up, not boxes: a heading has more room above it than a line of code. Half a line is the most.
HALF_A_LINE = 12
BOXES = """
() => [...document.querySelectorAll("section[id]")].map(section => {
    const box = element => {
        if (!element) return null;
        const {left, right, top, bottom} = element.getBoundingClientRect();
        return {left, right, top, bottom};
    };
    return {
        id: section.id,
        all: box(section),
        doc: section.querySelector(".doc").textContent.trim() ? box(section.querySelector(".doc")) : null,
        code: box(section.querySelector("pre.code")),
    };
})
"""


def file_of(path: str) -> Path:
    """The source of a chapter's page."""
    return CONFIG.project / CONFIG.chapters[CHAPTERS.index(name_of(path))].source


def pairs(page: Page, path: str) -> list[dict[str, Any]]:
    """The sections that have commentary and code, with their boxes: no fewer than the source has."""
    boxes: list[dict[str, Any]] = page.evaluate(BOXES)
    both = [section for section in boxes if section["doc"] and section["code"]]
    sections = source.read(file_of(path)).sections
    written = [one for one in sections if one.commentary and one.code and not one.hidden]
    assert len(both) >= len(written) > 0
    return both


def test_columns_line_up(shared: Page, path: str) -> None:
    """At 1280 px each section's commentary and code start on one line, side by side, inside their section."""
    show(shared, WIDE)
    before = float("-inf")
    for section in pairs(shared, path):
        doc, code, whole = section["doc"], section["code"], section["all"]
        assert doc["right"] <= code["left"] + 1, section["id"]
        assert abs(doc["top"] - code["top"]) <= HALF_A_LINE, section["id"]
        assert max(doc["bottom"], code["bottom"]) <= whole["bottom"] + 1, section["id"]
        assert whole["top"] >= before - 1, section["id"]
        before = whole["bottom"]


def test_narrow_pages_put_commentary_above_code(shared: Page, path: str) -> None:
    show(shared, NARROW)
    for section in pairs(shared, path):
        assert section["doc"]["bottom"] <= section["code"]["top"] + 1, section["id"]
        assert section["doc"]["left"] >= 0, section["id"]
        assert section["code"]["right"] <= 391, section["id"]


def test_the_columns_share_one_scroll(shared: Page) -> None:
    """No part of a wide page scrolls up and down by itself."""
    inner = """() => [...document.querySelectorAll("main *")].filter(element =>
        element.scrollHeight > element.clientHeight + 1 &&
        ["auto", "scroll"].includes(getComputedStyle(element).overflowY)
    ).map(element => element.outerHTML.slice(0, 80))"""
    assert show(shared, WIDE).evaluate(inner) == []


def test_line_numbers_and_code_are_those_of_the_file(shared: Page, path: str) -> None:
    """Each shown line is the line of the source that carries its number."""
    lines = file_of(path).read_text("utf-8").split("\n")
    shown = shared.evaluate("""() => [...document.querySelectorAll("pre.code .line")].map(line => {
        const number = line.querySelector(".num");
        const text = line.textContent.slice(number.textContent.length);
        return [Number(number.textContent), text.replace(/\\n$/, "")];
    })""")
    assert shown
    for number, text in shown:
        assert text == lines[number - 1]


@pytest.mark.parametrize("start", STARTS)
def test_the_language_menu_keeps_the_section(walk: Open, start: str) -> None:
    page = walk(start)
    ids = page.eval_on_selector_all("section[id]", "all => all.map(one => one.id)")
    wanted = ids[len(ids) // 2]
    page.evaluate("id => { location.hash = '#' + encodeURIComponent(id) }", wanted)
    other = next(language for language in LANGUAGES if language != language_of(start))
    choose(page, other)
    page.wait_for_url(f"**/{path_of(name_of(start), other)}**")
    assert unquote(urlsplit(page.url).fragment) == wanted
    assert in_view(page, wanted)


def test_the_language_menu_keeps_the_place_of_a_reader_who_scrolled(walk: Open) -> None:
    page = walk(CHAPTERS[0])
    ids = page.eval_on_selector_all("section[id]", "all => all.map(one => one.id)")
    wanted = ids[len(ids) // 2]
    page.evaluate("id => document.getElementById(id).scrollIntoView()", wanted)
    choose(page, "ja")
    page.wait_for_url(f"**/ja/{CHAPTERS[0]}**")
    assert in_view(page, wanted)


@pytest.mark.parametrize("start", STARTS)
def test_each_section_links_to_itself_in_the_other_languages(walk: Open, start: str) -> None:
    """Without any script a reader changes language and stays at the section."""
    page = walk(start, scripts=False)
    sections = page.locator("section[id]")
    wanted = sections.nth(sections.count() // 2)
    name = wanted.get_attribute("id")
    assert name
    link = wanted.locator(".acts a[hreflang]").last
    language = link.get_attribute("hreflang")
    target = link.evaluate("link => link.href")
    link.click()
    page.wait_for_url(target)
    assert page.locator("html").get_attribute("lang") == language
    assert unquote(urlsplit(page.url).fragment) == name
    assert in_view(page, name)


def choose(page: Page, language: str) -> None:
    """Click on a language where it stands: `Locator.click` may scroll the page to a bar that is in sight."""
    box = page.locator(f"nav.langs a[data-lang={language}]").bounding_box()
    assert box
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)


def in_view(page: Page, name: str) -> bool:
    """Whether the section's start can be seen, once the browser has scrolled there."""
    page.wait_for_function(
        """id => {
            const top = document.getElementById(id).getBoundingClientRect().top;
            const last = scrollY + innerHeight >= document.documentElement.scrollHeight - 2;
            return top > -innerHeight / 4 && (top < innerHeight / 2 || (last && top < innerHeight));
        }""",
        arg=name,
    )
    return True
