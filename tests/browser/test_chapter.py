"""A chapter as a reader meets it: columns that line up, one scroll, a language menu that keeps the place."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from playwright.sync_api import Page

from browser.looks import Looks, columns, stacked
from built import (
    CHAPTERS,
    CONFIG,
    LANGUAGES,
    LONG_CHAPTERS,
    NARROW,
    WIDE,
    Open,
    language_of,
    name_of,
    path_of,
    show,
    written,
)

pytestmark = pytest.mark.full

PATHS = [path_of(name, language) for name in CHAPTERS for language in LANGUAGES]
OTHER_CHAPTERS = [name for name in CHAPTERS if name not in LONG_CHAPTERS]
# The sections that a reader sees who has unfolded nothing.
CORE = "main > section[id]"
# The ways from one language to another are walked once a chapter, from each language in turn. All but
# `make test-all` walk those of the longest chapters.
STARTS = [
    pytest.param(path_of(name, LANGUAGES[place % len(LANGUAGES)]), marks=marks)
    for chapters, marks in ((LONG_CHAPTERS, ()), (OTHER_CHAPTERS, pytest.mark.nightly))
    for place, name in enumerate(chapters)
]


@pytest.mark.cases(ci=2)
def test_columns_line_up(looks: Looks, path: str) -> None:
    """At 1280 px each section's commentary and code start on one line, side by side, inside their section."""
    assert len(looks.wide.pairs) >= written(name_of(path)) > 0
    assert list(columns(looks.wide)) == []


def test_narrow_pages_put_commentary_above_code(looks: Looks, path: str) -> None:
    assert len(looks.narrow.pairs) >= written(name_of(path)) > 0
    assert list(stacked(looks.narrow)) == []


def test_the_columns_share_one_scroll(looks: Looks) -> None:
    """No part of a wide page scrolls up and down by itself."""
    assert looks.wide.scrolling == []


@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_drawings_keep_a_distance_from_the_edges(walk: Open, width: int) -> None:
    """At the opening of a chapter and beside a section."""
    gaps = show(walk("flat.html"), width).eval_on_selector_all(
        "figure.drawing",
        """all => all.map(one => {
            const inner = one.getBoundingClientRect(), outer = one.parentElement.getBoundingClientRect();
            return Math.min(inner.left - outer.left, outer.right - inner.right);
        })""",
    )
    assert len(gaps) > 1
    assert min(gaps) >= 12


@pytest.mark.nightly
@pytest.mark.parametrize("start", STARTS)
def test_the_language_menu_keeps_the_section(walk: Open, start: str) -> None:
    page = walk(start)
    ids = page.eval_on_selector_all("section[id]", "all => all.map(one => one.id)")
    wanted = ids[len(ids) // 2]
    page.evaluate("id => { location.hash = '#' + encodeURIComponent(id) }", wanted)
    other = next(language for language in LANGUAGES if language != language_of(start))
    choose(page, other)
    # The English page is at the end of the address of the page in another language, too.
    target = urlsplit(page.url).path.removesuffix(start) + path_of(name_of(start), other)
    page.wait_for_url(lambda url: urlsplit(url).path == target)
    assert unquote(urlsplit(page.url).fragment) == wanted
    assert in_view(page, wanted)


@pytest.mark.nightly
def test_the_language_menu_keeps_the_place_of_a_reader_who_scrolled(walk: Open) -> None:
    page = walk(CHAPTERS[0])
    ids = page.eval_on_selector_all(CORE, "all => all.map(one => one.id)")
    wanted = ids[len(ids) // 2]
    page.evaluate("id => document.getElementById(id).scrollIntoView()", wanted)
    choose(page, "ja")
    page.wait_for_url(f"**/ja/{CHAPTERS[0]}**")
    assert in_view(page, wanted)


# Pages of a part that stands in one language have no other words to lead to.
KEPT = {each.output for each in CONFIG.chapters if CONFIG.written_in(each) != LANGUAGES}


@pytest.mark.nightly
@pytest.mark.parametrize("start", [start for start in STARTS if name_of(start.values[0]) not in KEPT])
def test_each_section_links_to_itself_in_the_other_languages(walk: Open, start: str) -> None:
    """Without any script a reader changes language and stays at the section."""
    page = walk(start, scripts=False)
    sections = page.locator(CORE)
    wanted = sections.nth(sections.count() // 2)
    # The section of a class holds that of its `__init__`.
    link = wanted.locator(".acts a[hreflang]").last
    name = link.evaluate("link => link.closest('.sec').id")
    assert name
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
