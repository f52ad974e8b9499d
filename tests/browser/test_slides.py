"""A deck in a browser, opened from its folder: keys leap from slide to slide, and each fits its paper."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request
from pypdf import PdfReader

from browser.looks import ALL, violations
from press.project import SAMPLE, edit, sidelit
from press.site.lessons import ROW, give_lessons

pytestmark = pytest.mark.full

NAMES = ["row.html", "zh/row.html"]
# Which slides are in sight, counted from 0.
SEEN = """[...document.querySelectorAll('.deck :is(.head, .text)')].flatMap((slide, number) => {
    const { top, bottom } = slide.getBoundingClientRect();
    return bottom > 2 && top < innerHeight - 2 ? [number] : [];
})"""
LONG = "\n\n".join(f"Sentence {number} of a section that is higher than any screen." for number in range(60))


@pytest.fixture(scope="module")
def deck(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A deck whose last slide is higher than the screen."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("deck") / "sample"))
    give_lessons(sample)
    edit(sample / ROW, "::: lab 2", f"## At length\n\n{LONG}\n\n::: lab 2")
    sidelit("slides", "row", cwd=sample)
    return sample / "build/slides/row"


@pytest.fixture
def show(browser: Browser, deck: Path) -> Iterator[Page]:
    """The deck in a window; nothing may be missing, and nothing may be written to its console."""
    page = browser.new_page(viewport={"width": 1280, "height": 720}, reduced_motion="reduce")
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))

    def failed(request: Request) -> None:
        # Who leaves a page takes back what it has asked for.
        if "ABORTED" not in str(request.failure):
            said.append(request.url)

    page.on("requestfailed", failed)
    page.goto((deck / "row.html").as_uri())
    yield page
    page.close()
    assert said == []


@pytest.mark.nightly
def test_keys_leap_from_slide_to_slide(show: Page) -> None:
    assert show.evaluate(SEEN) == [0]
    last = show.locator(".deck :is(.head, .text)").count() - 1
    for number in [*range(1, last + 1), last]:
        show.keyboard.press("ArrowRight")
        assert show.evaluate(SEEN) == [number]
    for number in [*reversed(range(last)), 0]:
        show.keyboard.press("ArrowLeft")
        assert show.evaluate(SEEN) == [number]
    show.keyboard.press("Space")
    show.keyboard.press("PageDown")
    assert show.evaluate(SEEN) == [2]
    show.keyboard.press("PageUp")
    assert show.evaluate(SEEN) == [1]


def test_a_deck_in_one_language_has_all_its_keys(show: Page, deck: Path) -> None:
    """Other languages are not there, and nothing may look for them."""
    sidelit("slides", "row", "--lang", "zh", "--out", "alone", cwd=deck.parents[2])
    show.goto((deck.parents[2] / "alone/zh/row.html").as_uri())
    show.keyboard.press("ArrowRight")
    assert show.evaluate(SEEN) == [1]


def test_a_high_slide_is_read_to_its_end_before_the_next(show: Page) -> None:
    number = show.locator(".deck :is(.head, .text)").count() - 1
    for _ in range(number):
        show.keyboard.press("ArrowRight")
    assert show.evaluate(SEEN) == [number]
    before = show.evaluate("scrollY")
    show.keyboard.press("Space")
    show.wait_for_function("before => scrollY > before", arg=before)
    assert show.evaluate(SEEN) == [number]


def test_a_key_that_a_control_needs_is_left_to_it(show: Page) -> None:
    answer = show.locator(".answer > summary")
    answer.focus()
    place = show.evaluate(SEEN)
    show.keyboard.press("Space")
    assert show.locator(".answer").get_attribute("open") is not None
    assert show.evaluate(SEEN) == place


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("width", [1280, 390])
def test_a_deck_is_for_everybody(show: Page, deck: Path, name: str, width: int) -> None:
    show.set_viewport_size({"width": width, "height": 780})
    show.goto((deck / name).as_uri())
    assert violations(show, ALL) == []
    assert show.evaluate("document.documentElement.scrollWidth") <= width
    assert not show.locator(".top").is_visible()


def test_on_paper_a_slide_begins_a_sheet_and_keeps_its_answers(show: Page) -> None:
    pages = PdfReader(BytesIO(show.pdf(prefer_css_page_size=True))).pages
    assert {tuple(map(round, page.mediabox.upper_right)) for page in pages} == {(960, 540)}
    texts = [page.extract_text() for page in pages]
    assert "Items in a row" in texts[0]
    assert "maxlen is 0" not in " ".join(texts)
    # The long one takes several.
    assert len(pages) > show.locator(".deck :is(.head, .text)").count()
    show.emulate_media(media="print")
    assert not show.locator(".foot").is_visible()
