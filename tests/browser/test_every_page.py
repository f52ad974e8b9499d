"""What must hold on every page, in every language, wide and narrow, light and dark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from built import LANGUAGES, NAMES, PAGES, Open, language_of, path_of, read

SIZES = (1280, 390)
SCHEMES: tuple[Any, ...] = ("light", "dark")
AXE = Axe()


def test_the_build_holds_these_pages_and_no_others(site: Path) -> None:
    """A page that nobody tests is a page that nobody reads."""
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    assert built - {"404.html"} == set(PAGES)


def test_axe_finds_nothing(visit: Open, path: str) -> None:
    page = visit(path)
    for width in SIZES:
        page.set_viewport_size({"width": width, "height": 900})
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            found = AXE.run(page)
            assert found.violations_count == 0, f"{width} {scheme}: {found.generate_report()}"


def test_nothing_scrolls_sideways(visit: Open, path: str) -> None:
    for width in SIZES:
        page = visit(path, width)
        assert page.evaluate("document.documentElement.scrollWidth") == width


def test_the_page_says_its_language(visit: Open, path: str) -> None:
    expected = {"zh": "zh-Hans"}.get(language_of(path), language_of(path))
    page = visit(path)
    assert page.locator("html").get_attribute("lang") == expected
    assert page.locator("nav.langs a[aria-current]").get_attribute("hreflang") == expected


def test_formulas_carry_mathml(visit: Open, path: str) -> None:
    page = visit(path)
    formulas = page.locator(".katex")
    assert formulas.count() == page.locator(".katex math").count()
    assert page.locator(".katex-error").count() == 0


def test_dark_is_dark(visit: Open, path: str) -> None:
    light, dark = (brightness(visit(path, scheme=scheme)) for scheme in SCHEMES)
    assert light > 200
    assert dark < 60


def brightness(page: Page) -> float:
    """How light the page's background is, from 0 to 255."""
    colour: list[int] = page.evaluate(
        "getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).slice(0, 3).map(Number)"
    )
    return sum(colour) / 3


def test_a_page_is_whole_without_scripts(visit: Open, path: str) -> None:
    """The same text, links and formulas; and no control that would need a script to do something."""
    with_scripts, without = visit(path), visit(path, scripts=False)
    for page in (with_scripts, without):
        assert page.locator("main").inner_text().strip()
    assert without.locator("main").inner_text() == with_scripts.locator("main").inner_text()
    assert without.locator("main a").count() == with_scripts.locator("main a").count()
    assert without.locator(".katex:visible").count() == with_scripts.locator(".katex:visible").count()
    controls = without.locator("button, input, select, textarea, [role=button], [onclick]")
    assert controls.locator("visible=true").count() == 0


def test_print_leaves_the_text_alone(visit: Open, path: str) -> None:
    """On paper there is no menu, and all of the text."""
    page = visit(path)
    page.emulate_media(media="print")
    assert page.locator("nav:visible, button:visible, .acts:visible").count() == 0
    assert page.locator("h1:visible").count() == 1
    for column in page.locator("section[id] .doc, section[id] pre.code").all():
        assert column.is_visible()


def test_section_names_are_the_same_in_every_language(site: Path) -> None:
    for name in NAMES:
        first, *others = (read(site / path_of(name, language)).sections for language in LANGUAGES)
        assert all(other == first for other in others), name
