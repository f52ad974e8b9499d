"""The home page: what a stranger meets first, by hand and by keyboard, wide and narrow."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from built import CONFIG, FRAMES, LANGUAGES, NARROW, Open, path_of

pytestmark = pytest.mark.full

HOMES = [path_of(CONFIG.home, language) for language in LANGUAGES]
TOPS = "all => all.map(one => one.getBoundingClientRect().top)"


def told(page: Page) -> str:
    """The language of the words that the section shows."""
    (language,) = page.locator(".editions .doc:visible").evaluate_all("all => all.map(one => one.lang)")
    return str(language)


@pytest.mark.nightly
@pytest.mark.parametrize("scripts", [True, False])
def test_a_reader_chooses_the_language_of_a_section(walk: Open, scripts: bool) -> None:
    page = walk(CONFIG.home, scripts=scripts)
    assert told(page) == LANGUAGES[0]
    page.locator(".editions label").nth(1).click()
    assert told(page) == LANGUAGES[1]
    page.keyboard.press("ArrowRight")
    assert told(page) != LANGUAGES[1]
    assert page.locator(".editions pre.code").count() == 1


@pytest.mark.pages(of=HOMES, ci=HOMES)
def test_each_home_page_shows_the_section_in_its_own_language_first(walk: Open, path: str) -> None:
    page = walk(path)
    assert told(page) == page.locator("html").get_attribute("lang")
    assert page.locator(".lessons li").count() == len(CONFIG.course.lessons) + len(CONFIG.labs.lessons)
    assert page.locator("div.parts .part").count() == len(CONFIG.parts)
    listed = page.locator("div.parts li a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert {chapter.output for chapter in CONFIG.chapters} <= set(listed)


def test_on_a_phone_the_explanation_comes_before_any_list(visit: Open) -> None:
    page = visit(CONFIG.home, width=NARROW)
    (explained, *_) = page.locator(".front > p").evaluate_all(TOPS)
    for lists in (".lessons", "div.parts", ".columns"):
        assert explained < page.locator(lists).first.evaluate_all(TOPS)[0]
    assert page.locator("div.parts li:visible").count() == 0


@pytest.mark.nightly
def test_a_door_is_a_link_as_a_whole(visit: Open) -> None:
    page = visit(CONFIG.home)
    door = page.locator(".doors li").last.bounding_box()
    assert door
    page.mouse.click(door["x"] + door["width"] - 6, door["y"] + door["height"] - 6)
    page.wait_for_url("**/teaching.html")


@pytest.mark.nightly
def test_the_bars_keep_their_colours_where_the_system_chooses_all_others(visit: Open) -> None:
    page = visit(CONFIG.home)
    colours = """
        () => [1, 2, 3].map(kind => ["bar", "legend"].map(place => {
            const style = getComputedStyle(document.querySelector(`.memory .${place} .p${kind}`));
            return `${style.backgroundColor} ${style.backgroundImage}`;
        }))
    """
    page.emulate_media(forced_colors="active")
    page.evaluate(FRAMES)
    pairs = page.evaluate(colours)
    assert all(bar == legend for bar, legend in pairs)
    assert len({bar for bar, _ in pairs}) == 3
