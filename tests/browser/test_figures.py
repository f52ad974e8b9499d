"""A figure in a browser: a click, Enter or its button shows it large; without scripts it is just a figure.

The sample gets the figure `bars` on a page of prose, which has room for the wide drawing.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from built import ROOT
from press.figures import studio
from sidelit.config import languages

pytestmark = pytest.mark.full

SCRIPT = ROOT / "templates" / "assets" / "figures.js"
PAGE = "notes/reading.html"
WORDS = {lang: languages.load(lang).words for lang in ("en", "ja", "zh")}


def furnish(sample: Path) -> None:
    """Put a figure on a page of prose."""
    with (studio.furnish(sample) / "pages" / "notes" / "reading.md").open("a", encoding="utf-8") as prose:
        prose.write("\n::: figure bars\n:::\n")


def width(page: Page, selector: str) -> float:
    """How wide the drawing is that is shown."""
    found = page.locator(f"{selector} svg").filter(visible=True).bounding_box()
    assert found is not None
    return found["width"]


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["click", "enter", "button"])
def test_a_figure_is_shown_large_and_closed_again(page: Page, home: str, way: str) -> None:
    if way == "enter":
        # A drawing is a stop for the keyboard where it scrolls; elsewhere its button alone is.
        page.set_viewport_size({"width": 300, "height": 700})
    page.goto(home + PAGE)
    before = width(page, "figure .sheet")
    if way == "click":
        page.locator("figure .sheet svg.wide").click()
    elif way == "enter":
        page.locator("figure .sheet").focus()
        page.keyboard.press("Enter")
    else:
        page.locator("figure .enlarge").focus()
        page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Ring holds 900\u202fB at most")
    assert dialog.is_visible()
    assert width(page, "dialog.sheet") > before + 100
    page.keyboard.press("Escape")
    page.locator("dialog.sheet").wait_for(state="detached")
    # The reader is where they were: the button has the focus, and opens it again.
    page.keyboard.press("Enter")
    dialog.get_by_role("button", name=WORDS["en"]["drawing_close"]).click()
    page.locator("dialog.sheet").wait_for(state="detached")


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("lang", ["en", "ja", "zh"])
def test_the_control_speaks_the_language_of_the_page(page: Page, home: str, lang: str) -> None:
    page.goto(home + ("" if lang == "en" else f"{lang}/") + PAGE)
    page.get_by_role("button", name=WORDS[lang]["drawing_enlarge"], exact=True).click()
    assert page.get_by_role("button", name=WORDS[lang]["drawing_close"], exact=True).is_visible()


def test_on_a_phone_the_wide_drawing_scrolls_within_the_window(page: Page, home: str) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(home + PAGE)
    assert page.locator("figure svg.narrow").is_visible()
    page.locator("figure svg.narrow").click()
    box = page.locator("dialog.sheet").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    # Letters are as large as on a wide screen.
    assert width(page, "dialog.sheet") >= 640
    # Whoever has scrolled to the end can still close it.
    page.locator("dialog.sheet").evaluate("dialog => dialog.scrollLeft = dialog.scrollWidth")
    close = page.get_by_role("button", name=WORDS["en"]["drawing_close"]).bounding_box()
    assert close is not None
    assert 300 < close["x"] < close["x"] + close["width"] <= 390
    assert close["y"] < box["y"] + 10


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_a_figure_offers_nothing_that_is_dead(page: Page, home: str) -> None:
    page.goto(home + PAGE)
    assert page.locator("figure svg.wide").is_visible()
    assert page.locator("figure button").count() == 0
    page.locator("figure svg.wide").click()
    assert page.locator("dialog.sheet").count() == 0


def test_the_script_is_small_and_needs_no_exception_from_the_policy() -> None:
    text = SCRIPT.read_text("utf-8")
    assert len(text.encode()) <= 1500
    for way in ("innerHTML", ".style", 'setAttribute("style"', "eval(", "http"):
        assert way not in text, way


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_a_figure_is_described_and_its_numbers_can_be_read(page: Page, home: str) -> None:
    page.goto(home + PAGE)
    drawing = page.get_by_role("img", name="Ring holds 900\u202fB at most").filter(visible=True)
    described = drawing.get_attribute("aria-describedby")
    assert page.locator(f"#{described}").text_content() == "Two bars, one for each size."
    figures = page.locator("figure table")
    assert not figures.is_visible()
    page.get_by_text(WORDS["en"]["drawing_data"]).click()
    assert figures.is_visible()
    assert figures.locator("thead th").all_inner_texts() == ["Size", "Bytes"]
    assert figures.locator("tbody tr").all_inner_texts() == ["4\t400\u202fB", "9\t900\u202fB"]


def test_on_paper_the_numbers_stand_unfolded_below_the_wide_drawing(page: Page, home: str) -> None:
    # As wide as a sheet of A4 between its margins.
    page.set_viewport_size({"width": 658, "height": 900})
    page.goto(home + PAGE)
    page.emulate_media(media="print")
    assert page.locator("figure svg.wide").is_visible()
    assert page.locator("figure table").is_visible()
    assert not page.locator("figure .enlarge").is_visible()
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
