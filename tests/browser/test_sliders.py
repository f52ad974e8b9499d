"""Sliders in a browser: a range for each axis, by hand and by key; without scripts one answer."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from browser.looks import ALL, sideways, violations
from browser.looks import look as looked
from browser.serving import serve
from built import ROOT, show
from press.interactive import studio
from press.project import SAMPLE, sidelit

PAGE = "notes/reading.html"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the sample is served with sliders."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("slid") / "sample"))
    studio.ask(sample)
    sidelit("build", cwd=sample)
    with serve(sample / "build/site") as address:
        yield address


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A window whose scripts are on, or off where the test says so; it must write nothing to the console."""
    context = browser.new_context(
        java_script_enabled=getattr(request, "param", True), viewport={"width": 1280, "height": 900}
    )
    messages: list[str] = []
    page = context.new_page()
    page.on("console", lambda said: messages.append(said.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    yield page
    context.close()
    assert messages == []


def shown(page: Page) -> list[str]:
    """The numbers of the answer."""
    return [text.replace("\u202f", " ") for text in page.locator(".result b").all_inner_texts()]


def test_each_slider_moves_to_another_answer(page: Page, home: str) -> None:
    page.goto(home + PAGE)
    size = page.get_by_role("slider", name="places of the ring")
    puts = page.get_by_role("slider", name="items that were put")
    assert shown(page) == ["1 B", "0 B", "100 %"]
    puts.fill("2")
    assert shown(page) == ["4 B", "5 B", "44 %"]
    widths = "bars => bars.map(bar => bar.style.width)"
    assert page.locator(".result:first-child i").evaluate_all(widths) == ["60%", "20%"]
    # A bar that begins without a length has one now, and a number of another kind has no bar.
    assert page.locator(".result:nth-child(2) i").evaluate_all(widths) == ["100%", "0%"]
    assert page.locator(".result:nth-child(3) i").count() == 0
    size.press("ArrowLeft")
    assert shown(page) == ["1 B", "8 B", "11 %"]
    assert [axis.inner_text().split() for axis in page.locator(".choice b").all()] == [["1"], ["9"]]
    assert [slider.get_attribute("aria-valuetext") for slider in (size, puts)] == ["1", "9"]


@pytest.mark.parametrize("page", [False], indirect=True)
def test_without_scripts_one_answer_stands_there_and_nothing_that_is_dead(page: Page, home: str) -> None:
    page.goto(home + PAGE)
    assert shown(page) == ["1 B", "0 B", "100 %"]
    assert page.locator(".sliders input").count() == 0


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_they_fit_and_axe_finds_nothing(page: Page, home: str, width: int, scheme: str) -> None:
    show(page, width, scheme).goto(home + PAGE)
    assert violations(page, ALL) == []
    assert list(sideways(looked(page, (width, scheme), axe=False))) == []


def test_the_script_is_small() -> None:
    assert (ROOT / "templates/assets/sliders.js").stat().st_size <= 2000
