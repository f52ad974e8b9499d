"""A stepper in a browser: keys, buttons, fingers, addresses, three languages, no scripts, paper.

The sample gets a lesson with the stepper `put`: four events in two scenes, and a twin.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from browser.looks import ALL, in_print, sideways, violations
from browser.looks import look as looked
from built import ROOT, show
from press.interactive import studio
from sidelit.config import languages

pytestmark = pytest.mark.full

PAGE = "steps.html"
WORDS = {lang: languages.load(lang).words for lang in ("en", "ja", "zh")}
PRESENT = ".event.on"
WINDOW = {"has_touch": True}
furnish = studio.furnish


def at(page: Page) -> str:
    """The event that is shown: exactly one."""
    found: str = page.locator(PRESENT).evaluate("event => event.id")
    assert page.url.endswith(f"#{found}")
    return found


def opened(page: Page, home: str, moment: int = 1, lang: str = "en") -> Page:
    """Open a page at an event."""
    page.goto(f"{home}{'' if lang == 'en' else f'{lang}/'}{PAGE}#put-{moment}")
    return page


# ## One moment


@pytest.mark.nightly
def test_a_moment_shows_its_sentence_its_line_and_the_memory(page: Page, home: str) -> None:
    opened(page, home, 3)
    assert page.locator(".stepper .sentence").filter(visible=True).all_inner_texts() == [
        "An item goes round."
    ]
    assert page.locator(".pane .line.now").inner_text().rstrip().endswith(studio.APPEND)
    assert page.locator(".pane .where").inner_text() == "Ring.put"
    stage = page.locator(".stage")
    assert stage.locator(".who").all_inner_texts() == ["Rank 0\n0.06 kB", "Rank 1\n0.02 kB"]
    # 60 of the 100 bytes that a rank stores at most.
    shares = stage.locator(".rank:first-child .bytes i").evaluate_all(
        "bars => bars.map(bar => bar.style.width)"
    )
    assert shares == ["50%", "10%"]
    # What rank 1 sends arrives at rank 0, in the unit it belongs to.
    arriving = """pieces => pieces.map(piece =>
        piece.matches(".arrives") ? "in" : piece.matches(".leaves") ? "out" : "")"""
    pieces = stage.locator(".vector i").evaluate_all(arriving)
    assert pieces == ["", "in", "", "", "", "out", "", ""]
    page.get_by_role("slider").fill("1")
    assert set(stage.locator(".vector i").evaluate_all(arriving)) == {""}


def test_a_phone_shows_the_sentence_and_the_names_of_the_units_at_once(page: Page, home: str) -> None:
    page.set_viewport_size({"width": 390, "height": 844})
    opened(page, home, 3)
    page.locator(".stepper").evaluate("stepper => stepper.scrollIntoView()")
    sentence = page.locator(".stepper .sentence").filter(visible=True).bounding_box()
    stage = page.locator(".stage").bounding_box()
    assert sentence
    assert stage
    assert 0 < sentence["y"] < sentence["y"] + sentence["height"] <= stage["y"]
    assert stage["y"] + stage["height"] < 844
    assert all(name.is_visible() for name in page.locator(".stage .unit code").all())


@pytest.mark.nightly
def test_a_reader_goes_forward_and_back_by_buttons_and_by_the_range(page: Page, home: str) -> None:
    opened(page, home)
    back, forward = (
        page.get_by_role("button", name=WORDS["en"][f"stepper_{way}"]) for way in ("back", "forward")
    )
    assert back.is_disabled()
    forward.click()
    forward.tap()
    assert at(page) == "put-3"
    back.tap()
    assert at(page) == "put-2"
    slider = page.get_by_role("slider")
    slider.fill("4")
    assert at(page) == "put-4"
    assert forward.is_disabled()
    spoken = slider.get_attribute("aria-valuetext")
    assert spoken is not None
    assert "4 / 4" in spoken
    assert studio.APPEND in spoken
    assert "An item goes round." in spoken
    # A finger on the link of another event goes there; on that of the present one it follows the link.
    for url in ("**/steps.html#put-3", "**/ring.html#line-*"):
        page.locator("#put-3 a").tap()
        page.wait_for_url(url)


KEYS = [
    ("ArrowRight", 2, 3),
    ("ArrowDown", 3, 4),
    ("ArrowLeft", 2, 1),
    ("ArrowUp", 1, 1),
    ("Shift+ArrowRight", 1, 3),
    ("Shift+ArrowRight", 3, 3),
    ("Shift+ArrowLeft", 4, 3),
    ("Shift+ArrowLeft", 3, 1),
    ("Home", 4, 1),
    ("End", 1, 4),
    ("Space", 1, 2),
    ("Shift+Space", 2, 1),
]


@pytest.mark.nightly
@pytest.mark.parametrize("focus", [".stepper", "input[type=range]"])
def test_keys_move_while_the_focus_is_there(page: Page, home: str, focus: str) -> None:
    for key, before, after in KEYS:
        opened(page, home, before).locator(focus).focus()
        page.keyboard.press(key)
        assert at(page) == f"put-{after}", key


def test_keys_do_nothing_elsewhere(page: Page, home: str) -> None:
    opened(page, home, 2)
    page.locator(".top a").first.focus()
    for key in ("ArrowRight", "End", "1"):
        page.keyboard.press(key)
    assert at(page) == "put-2"
    page.locator(".stepper").focus()
    page.keyboard.press("Control+End")
    assert at(page) == "put-2"


@pytest.mark.nightly
def test_a_digit_looks_through_the_eyes_of_one_rank_and_enter_opens_the_line(page: Page, home: str) -> None:
    opened(page, home, 3).locator(".stepper").focus()
    ranks = page.locator(".stage .rank")
    for key, seen in (("1", [False, True]), ("0", [True, False]), ("0", [True, True]), ("7", [True, True])):
        page.keyboard.press(key)
        assert [rank.is_visible() for rank in ranks.all()] == seen
    page.keyboard.press("Enter")
    page.wait_for_url("**/ring.html#line-*")
    assert page.locator(":target").inner_text().rstrip().endswith(studio.APPEND)


@pytest.mark.nightly
def test_the_twin_marks_the_line_that_is_gone_and_says_what_happens(page: Page, home: str) -> None:
    opened(page, home, 3)
    notes = page.locator(".event.on .remark").filter(visible=True)
    about = page.get_by_text("Nothing is put: 2 items are missing.")
    assert not about.is_visible()
    assert "the sum is 3 and 4" in notes.all_inner_texts()
    page.get_by_role("button", name="Without the item").click()
    assert about.is_visible()
    assert sorted(notes.all_inner_texts())[1:] == [
        "rank 1 sends 1.5\u202fkB",
        "the sum is 3 and 4",
        "the sum is 6 and 8",
    ]
    assert page.locator(".remark.gone").all_inner_texts() == ["the sum is 3 and 4"]
    assert page.locator(".pane .line.now.gone").count() == 1
    page.locator(".stepper").press("ArrowRight")
    assert page.locator(".pane .gone").count() == 0
    page.get_by_role("button", name=WORDS["en"]["stepper_right"]).click()
    assert not about.is_visible()


# ## Addresses and languages


@pytest.mark.nightly
@pytest.mark.parametrize("lang", ["en", "ja", "zh"])
def test_an_address_shows_its_moment_in_every_language(page: Page, home: str, lang: str) -> None:
    opened(page, home, 4, lang)
    assert at(page) == "put-4"
    assert page.locator(".stepper").bounding_box() is not None
    for word in ("back", "forward", "right"):
        assert page.get_by_role("button", name=WORDS[lang][f"stepper_{word}"], exact=True).is_visible()
    page.evaluate("location.hash = '#put-2'")
    assert at(page) == "put-2"
    page.locator(".moment a").click()
    assert at(page) == "put-2"
    other = {"en": "ja", "ja": "zh", "zh": "en"}[lang]
    page.locator(f".langs a[hreflang^='{other}']").click()
    page.wait_for_url(f"**/{'' if other == 'en' else f'{other}/'}{PAGE}#put-2")
    assert at(page) == "put-2"


def test_a_page_without_an_address_begins_with_the_first_moment_and_its_top(page: Page, home: str) -> None:
    page.goto(home + PAGE)
    assert page.locator(PRESENT).get_attribute("id") == "put-1"
    assert page.evaluate("scrollY") == 0
    assert "#" not in page.url


# ## Everywhere


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_there_is_the_whole_strip_and_nothing_that_is_dead(page: Page, home: str) -> None:
    page.goto(home + PAGE)
    assert page.locator(".event").filter(visible=True).count() == 4
    assert page.locator(".stepper .held").filter(visible=True).count() == 2
    assert page.get_by_text("Nothing is put: 2 items are missing.").is_visible()
    assert page.locator(".stepper :is(button, input)").count() == 0
    assert page.locator(".stepper").get_attribute("tabindex") is None


@pytest.mark.nightly
def test_on_paper_it_is_the_strip_again(page: Page, home: str) -> None:
    opened(page, home, 3)
    page.get_by_role("button", name="Without the item").click()
    assert list(in_print(page)) == []
    assert page.locator(".event").filter(visible=True).count() == 4
    assert page.locator(".curves").filter(visible=True).count() == 1
    assert page.get_by_text("Nothing is put: 2 items are missing.").is_visible()


@pytest.mark.nightly
@pytest.mark.parametrize("width", [390, 800, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_axe_finds_nothing(page: Page, home: str, width: int, scheme: str) -> None:
    opened(show(page, width, scheme), home, 3)
    page.get_by_role("button", name="Without the item").click()
    assert violations(page, ALL) == []
    assert list(sideways(looked(page, (width, scheme), axe=False))) == []


def test_on_a_phone_the_stage_stays_and_buttons_are_large(page: Page, home: str) -> None:
    opened(show(page, 390), home, 3)
    page.locator(".stepper .keys").scroll_into_view_if_needed()
    box = page.locator(".stage").bounding_box()
    bar = page.locator(".top").bounding_box()
    assert box is not None
    assert bar is not None
    assert box["height"] <= 0.4 * 900 + 1
    for name in ("back", "forward"):
        size = page.get_by_role("button", name=WORDS["en"][f"stepper_{name}"]).bounding_box()
        assert size is not None
        assert size["height"] >= 48


def test_the_script_is_small_and_needs_no_exception_from_the_policy() -> None:
    text = (ROOT / "templates" / "assets" / "stepper.js").read_text("utf-8")
    assert len(text.encode()) <= 8000
    for way in ("innerHTML", 'setAttribute("style"', "eval(", "http"):
        assert way not in text, way
