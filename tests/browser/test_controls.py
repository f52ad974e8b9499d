"""What scripts add: a theme that stays, a menu that closes, a page that also opens as a plain file."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from built import CHAPTERS, FRAMES, Open

pytestmark = pytest.mark.full

COLOUR = "getComputedStyle(document.body).backgroundColor"


def choose(page: Page, theme: str) -> None:
    """Press the switch until the page is in the wanted theme."""
    for _ in range(3):
        if page.locator("html").get_attribute("data-theme") == theme:
            return
        page.locator("button.theme").click()
    raise AssertionError(f"the switch never led to {theme}")


@pytest.mark.nightly
def test_the_theme_switch_works_and_stays(visit: Open) -> None:
    """A chosen theme wins over the system's, survives a reload, and holds on the next page."""
    page = visit("index.html", scheme="light")
    light = page.evaluate(COLOUR)
    choose(page, "dark")
    dark = page.evaluate(COLOUR)
    assert dark != light
    page.reload()
    assert page.evaluate(COLOUR) == dark
    page.goto(page.url.replace("index.html", CHAPTERS[0]))
    assert page.locator("html").get_attribute("data-theme") == "dark"
    choose(page, "light")
    page.emulate_media(color_scheme="dark")
    assert page.locator("html").get_attribute("data-theme") == "light"


@pytest.mark.nightly
def test_the_switch_says_what_it_does(visit: Open) -> None:
    button = visit("index.html").locator("button.theme")
    before = button.get_attribute("aria-label")
    button.click()
    assert before != button.get_attribute("aria-label")


@pytest.mark.nightly
def test_the_contents_open_by_keyboard_and_close_with_escape(visit: Open) -> None:
    page = visit(CHAPTERS[0])
    button = page.locator(".menu")
    button.focus()
    page.keyboard.press("Enter")
    assert page.locator(".panel").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator(".panel").is_visible()
    assert page.evaluate("document.activeElement.matches('.menu')")


def test_the_first_tab_skips_to_the_text(visit: Open) -> None:
    page = visit(CHAPTERS[0])
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.url.endswith("#main-text")


def test_a_box_is_a_stop_for_the_keyboard_while_it_has_something_to_scroll(visit: Open) -> None:
    """Whatever makes it too narrow: the window, or what it holds, as when a font comes late."""
    page = visit("api.html")
    box = page.locator("main .scroll:not([tabindex])").first.element_handle()
    assert box is not None
    for width, stop in [("300vw", "0"), ("auto", None)]:
        box.evaluate("(box, width) => { box.firstElementChild.style.width = width }", width)
        page.evaluate(FRAMES)
        assert box.get_attribute("tabindex") == stop


def test_the_site_opens_as_plain_files(browser: Browser, site: Path) -> None:
    """`make site` says that a file can be opened: styles, fonts and the switch work there too."""
    page = browser.new_page()
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("requestfailed", lambda request: messages.append(request.url))
    page.goto((site / CHAPTERS[0]).as_uri())
    assert page.locator("button.theme").count() == 1
    assert page.evaluate("document.fonts.ready.then(fonts => fonts.size)") > 0
    assert page.evaluate("getComputedStyle(document.querySelector('main')).fontFamily")
    page.context.close()
    assert messages == []
