"""Sliders in a browser: a range for each axis, by hand and by key; without scripts one answer."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from browser.looks import ALL, sideways, violations
from browser.looks import look as looked
from built import ROOT, show
from press.interactive import studio

pytestmark = pytest.mark.full

PAGE = "notes/reading.html"
furnish = studio.ask


def shown(page: Page) -> list[str]:
    """The numbers of the answer."""
    return [text.replace("\u202f", " ") for text in page.locator(".result b").all_inner_texts()]


def test_each_slider_moves_to_another_answer(page: Page, home: str) -> None:
    page.goto(home + PAGE)
    size = page.get_by_role("slider", name="places of the ring")
    puts = page.get_by_role("slider", name="items that were put")
    assert shown(page) == ["1 B", "0 B", "100%"]
    puts.fill("2")
    assert shown(page) == ["4 B", "5 B", "44%"]
    widths = "bars => bars.map(bar => bar.style.width)"
    assert page.locator(".result:first-child i").evaluate_all(widths) == ["60%", "20%"]
    # A bar that begins without a length has one now, and a number of another kind has no bar.
    assert page.locator(".result:nth-child(2) i").evaluate_all(widths) == ["100%", "0%"]
    assert page.locator(".result:nth-child(3) i").count() == 0
    size.press("ArrowLeft")
    assert shown(page) == ["1 B", "8 B", "11%"]
    assert [axis.inner_text().split() for axis in page.locator(".choice b").all()] == [["1"], ["9"]]
    assert [slider.get_attribute("aria-valuetext") for slider in (size, puts)] == ["1", "9"]


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_one_answer_stands_there_and_nothing_that_is_dead(page: Page, home: str) -> None:
    page.goto(home + PAGE)
    assert shown(page) == ["1 B", "0 B", "100%"]
    assert page.locator(".sliders input").count() == 0


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_they_fit_and_axe_finds_nothing(page: Page, home: str, width: int, scheme: str) -> None:
    show(page, width, scheme).goto(home + PAGE)
    assert violations(page, ALL) == []
    assert list(sideways(looked(page, (width, scheme), axe=False))) == []


def test_the_script_is_small() -> None:
    assert (ROOT / "templates/assets/sliders.js").stat().st_size <= 2000
