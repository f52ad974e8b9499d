"""What must hold on every page, in every language, wide and narrow, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from axe_playwright_python.base import AxeResults
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from built import LANGUAGES, NAMES, NARROW, PAGES, WIDE, language_of, path_of, read, show

AXE = Axe()
WAYS: list[tuple[int, Any]] = [(WIDE, "light"), (NARROW, "dark"), (WIDE, "dark"), (NARROW, "light")]


def ways_of(language: str) -> list[tuple[int, Any]]:
    """In which of the four ways axe looks at the pages of a language.

    Colours depend on the theme and boxes on the width, neither on the language. So a translation is looked at
    in one way, and each language in another.
    """
    place = LANGUAGES.index(language)
    return [WAYS[(place - 1) % len(WAYS)]] if place else WAYS


def look(page: Page) -> AxeResults:
    """What axe finds. It is read into a page once, since that takes longer than to run it."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.axe_script)
    return AxeResults(page.evaluate("axe.run({ resultTypes: ['violations'] })"))


def test_the_build_holds_these_pages_and_no_others(site: Path) -> None:
    """A page that nobody tests is a page that nobody reads."""
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert built - {"404.html"} == set(PAGES)


def test_section_names_are_the_same_in_every_language(site: Path) -> None:
    for name in NAMES:
        first, *others = (read(site / path_of(name, language)).sections for language in LANGUAGES)
        assert all(other == first for other in others), name


def test_axe_finds_nothing(shared: Page, path: str) -> None:
    for width, scheme in ways_of(language_of(path)):
        found = look(show(shared, width, scheme))
        assert found.violations_count == 0, f"{width} {scheme}: {found.generate_report()}"


def test_nothing_scrolls_sideways(shared: Page) -> None:
    for width in (WIDE, NARROW):
        assert show(shared, width).evaluate("document.documentElement.scrollWidth") == width


def test_the_page_says_its_language(shared: Page, path: str) -> None:
    expected = {"zh": "zh-Hans"}.get(language_of(path), language_of(path))
    assert shared.locator("html").get_attribute("lang") == expected
    assert shared.locator("nav.langs a[aria-current]").get_attribute("hreflang") == expected


def test_formulas_carry_mathml(shared: Page) -> None:
    assert shared.locator(".katex").count() == shared.locator(".katex math").count()
    assert shared.locator(".katex-error").count() == 0


def test_no_tex_is_left_in_the_text(shared: Page) -> None:
    """A formula that was not seen as one would stand there between its dollars."""
    words = """() => {
        const main = document.querySelector("main").cloneNode(true);
        main.querySelectorAll("code, pre, .katex, .katex-display").forEach(one => one.remove());
        return main.textContent;
    }"""
    text: str = shared.evaluate(words)
    assert "$" not in text, text[text.index("$") :][:80]
    assert "\\" not in text, text[text.index("\\") :][:80]


def test_dark_is_dark(shared: Page) -> None:
    assert brightness(show(shared, scheme="light")) > 200
    assert brightness(show(shared, scheme="dark")) < 60


def brightness(page: Page) -> float:
    """How light the page's background is, from 0 to 255."""
    colour: list[int] = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3).map(Number)"
    )
    return sum(colour) / 3


def test_a_page_is_whole_without_scripts(shared: Page, scriptless: Page) -> None:
    """The same text, links and formulas; and no control that would need a script to do something."""
    show(shared)
    for selector in ("main", "footer"):
        text = scriptless.locator(selector).inner_text()
        assert text.strip()
        assert text == shared.locator(selector).inner_text()
    for selector in ("a", ".katex"):
        assert visible(scriptless, f"main {selector}") == visible(shared, f"main {selector}")
    assert visible(scriptless, "button, input, select, textarea, [role=button], [onclick]") == 0


def test_print_has_all_of_the_text_and_no_menu(shared: Page) -> None:
    show(shared, media="print")
    assert visible(shared, "header, .langs, .crumbs, .neighbours, details, button, .acts") == 0
    assert visible(shared, "h1") == 1
    text = "main section .doc > :not(.acts), main section .code"
    assert visible(shared, text) == visible(show(shared), text)


def visible(page: Page, selector: str) -> int:
    """How many of these elements take room on the page."""
    count: int = page.evaluate(
        """selector => [...document.querySelectorAll(selector)].filter(element => {
            const style = getComputedStyle(element);
            const {width, height} = element.getBoundingClientRect();
            return style.visibility === "visible" && width > 0 && height > 0;
        }).length""",
        selector,
    )
    return count
