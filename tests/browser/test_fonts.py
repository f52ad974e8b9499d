"""Fonts: what a first visit fetches, and what moves when they arrive."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from built import CONFIG, LANGUAGES, LONG_IN_ENGLISH, NARROW, WIDE, Open, language_of, path_of

pytestmark = pytest.mark.full

# A chapter of words and code, one of formulas, and the page that most visits begin with.
VISITED = ["hooks.html", "formats.html", CONFIG.home]
SHIFT = """
    () => new Promise(told => {
        const sum = list => list.getEntries().reduce((before, one) => before + one.value, 0);
        const observer = new PerformanceObserver(list => told(sum(list)));
        observer.observe({ type: "layout-shift", buffered: true });
        requestAnimationFrame(() => requestAnimationFrame(() => told(0)));
    })
"""
# The files of the faces that letters are set in: a face knows no file, so its rule is looked up.
USED = r"""
    () => document.fonts.ready.then(fonts => {
        const name = (family, style, range) => [family, style || "normal", range || "U+0-10FFFF"]
            .join().replaceAll(/["'\s]/g, "").toLowerCase();
        const used = [...fonts].filter(one => one.status === "loaded")
            .map(one => name(one.family, one.style, one.unicodeRange));
        return [...document.styleSheets].flatMap(sheet => [...sheet.cssRules]
            .filter(rule => rule instanceof CSSFontFaceRule)
            .filter(rule => used.includes(name(...["font-family", "font-style", "unicode-range"]
                .map(key => rule.style.getPropertyValue(key)))))
            .map(rule => rule.style.getPropertyValue("src").match(/url\("?([^")]+)/))
            .filter(Boolean).map(([, file]) => new URL(file, sheet.href).href));
    })
"""


def fetched(page: Page, kind: str) -> dict[str, int]:
    """The bytes of each file of this kind that the page has asked for."""
    sizes = "all => all.map(one => [one.name, one.decodedBodySize])"
    entries = page.evaluate(
        f"document.fonts.ready.then(() => ({sizes})(performance.getEntriesByType('resource')))"
    )
    return {name.rpartition("/")[2]: size for name, size in entries if name.endswith(kind)}


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("width", [WIDE, NARROW])
@pytest.mark.parametrize("name", VISITED)
def test_little_moves_when_the_fonts_arrive(visit: Open, name: str, width: int) -> None:
    """Web Vitals calls up to 0.1 good. It was 0.18 at 1280 px, and 0.36 for formulas at 390 px."""
    page = visit(name, width=width)
    page.evaluate("document.fonts.ready.then(() => true)")
    assert page.evaluate(SHIFT) < 0.1


def test_a_first_visit_fetches_half_of_the_latin_letters(visit: Open) -> None:
    fonts = fetched(visit("hooks.html"), ".woff2")
    # English needs none of the other Latin letters.
    assert {name.split("-")[-3] for name in fonts} == {"basic"}
    assert 0 < sum(fonts.values()) < 60_000, fonts


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_first_visit_makes_few_requests(visit: Open, lang: str) -> None:
    """Twelve with the page itself and the drawing of its tab, which a browser asks for without telling."""
    asked = fetched(visit(path_of("hooks.html", lang)), "")
    assert len(asked) <= 10, asked


@pytest.mark.nightly
@pytest.mark.parametrize("lang", LANGUAGES[1:])
def test_a_page_in_another_script_fetches_no_serif_for_its_own_words(visit: Open, lang: str) -> None:
    page = visit(path_of("hooks.html", lang))
    if page.locator("main [lang=en]").count() == 0:
        assert not [name for name in fetched(page, ".woff2") if "serif" in name]


# The italic words of one page are all in an answer.
@pytest.mark.pages(ci=[*LONG_IN_ENGLISH, *VISITED, "master_weights.html"])
def test_what_is_fetched_ahead_is_used(walk: Open, path: str) -> None:
    page = walk(path)
    ahead = page.locator("link[rel=preload]").evaluate_all("all => all.map(one => one.href)")
    # Ideographs are set in faces of the reader's system.
    assert len(ahead) >= (3 if language_of(path) == LANGUAGES[0] else 2)
    assert {*ahead} <= {*page.evaluate(USED)}
