"""The contents: the part one is in is open, and the page and the section one is in are marked."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from built import CHAPTERS, CONFIG, FRAMES, LANGUAGES, LONG_CHAPTERS, NARROW, WIDE, Open, longest, path_of

pytestmark = pytest.mark.full

# The last chapter of the longest part: in a list that opened at its top it would be out of sight.
FAR = max(CONFIG.parts, key=lambda part: len(part.chapters)).chapters[-1].output
LAST_OF_ITS_PART = CONFIG.parts[0].chapters[-1].output
IN_SIGHT = """
link => {
    const list = link.closest(".panel").getBoundingClientRect();
    const { top, bottom } = link.getBoundingClientRect();
    return top >= list.top && bottom <= Math.min(list.bottom, innerHeight);
}
"""
# The heading above a section.
ABOVE = """
section => {
    while (section.tagName !== "H2") section = section.previousElementSibling;
    return section.id;
}
"""
# Which of the blocks of a page is the first that is seen: they are the same in every language, but for the
# marks that a translation has.
READ = """
() => [...document.querySelectorAll("main :is(p:not(.aside, .badge), li, tr, .line)")]
    .filter(block => block.checkVisibility())
    .findIndex(block => block.getBoundingClientRect().bottom > document.querySelector(".top").offsetHeight)
"""


def opened(page: Page) -> Page:
    """Open the contents as a reader does, and wait until they stand at their place."""
    page.locator("details.menu > summary").click()
    page.evaluate(FRAMES)
    return page


@pytest.mark.nightly
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_contents_open_at_the_page_one_is_in(visit: Open, width: int) -> None:
    page = opened(visit(FAR, width=width))
    groups = [*CONFIG.parts, *filter(None, [CONFIG.course.lessons, CONFIG.labs.labs])]
    assert page.locator(".group").count() == len(groups)
    assert page.locator(".group[open]").count() == 1
    mark = page.locator(".group[open] [aria-current=page]")
    assert mark.count() == 1
    assert mark.evaluate(IN_SIGHT)


@pytest.mark.nightly
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_section_one_is_in_is_marked(visit: Open, width: int) -> None:
    page = visit(LONG_CHAPTERS[-1], width=width)
    last = page.locator(".panel .toc li:not(.folded) a").last.evaluate("link => link.hash")
    page.evaluate("hash => { location.hash = hash }", last)
    opened(page)
    marks = page.locator(".toc a[aria-current=location]")
    assert marks.evaluate_all("all => all.map(link => link.hash)") == [last, last]
    assert page.locator(".panel .toc [aria-current]").evaluate(IN_SIGHT)


@pytest.mark.nightly
def test_a_section_that_a_lesson_shows_belongs_to_its_heading(visit: Open) -> None:
    page = visit(CONFIG.course.lessons[-1].output)
    taken = page.locator(".text > h2 ~ .taken").last
    taken.evaluate("section => section.scrollIntoView()")
    page.evaluate(FRAMES)
    heading = taken.evaluate(ABOVE)
    marks = page.locator("main .toc a[aria-current=location]")
    assert marks.evaluate_all("all => all.map(link => link.hash)") == [f"#{heading}"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", [longest([each.output for each in CONFIG.prose], 1)[0], LONG_CHAPTERS[-1]])
def test_who_changes_the_language_reads_on_at_the_same_place(visit: Open, name: str) -> None:
    """Not at the beginning of its section, which may be several screens above."""
    page = visit(name, width=NARROW)
    page.evaluate("scrollTo(0, document.body.scrollHeight * .6)")
    page.evaluate(FRAMES)
    before = page.evaluate(READ)
    page.locator(f".langs [data-lang={LANGUAGES[-1]}]").click()
    page.wait_for_url(f"**/{LANGUAGES[-1]}/**")
    page.wait_for_load_state()
    page.evaluate(FRAMES)
    assert page.evaluate(READ) == pytest.approx(before, abs=1)


@pytest.mark.nightly
def test_one_step_leads_past_the_contents(visit: Open) -> None:
    page = opened(visit(FAR))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.url.endswith("#main-text")
    assert page.locator("details.menu[open]").count() == 0


@pytest.mark.nightly
def test_who_leaves_the_contents_closes_them(visit: Open) -> None:
    page = opened(visit(FAR))
    page.locator(".panel a").last.focus()
    page.keyboard.press("Tab")
    assert page.locator("details.menu[open]").count() == 0


@pytest.mark.nightly
def test_arrow_keys_walk_the_contents(visit: Open) -> None:
    page = opened(visit(FAR))
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement === document.querySelectorAll('.panel a')[1]")
    for _ in range(2):
        page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.matches('.menu > summary')")


def test_the_contents_open_without_scripts(walk: Open) -> None:
    page = walk(FAR, scripts=False)
    page.locator("details.menu > summary").click()
    assert page.locator(".panel [aria-current=page]").is_visible()


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_narrow_bar_says_which_page_this_is(visit: Open, language: str) -> None:
    page = visit(path_of(CHAPTERS[0], language), width=NARROW)
    title = page.locator(".menu .now")
    assert title.is_visible()
    assert title.inner_text() == page.locator("h1").inner_text()
    overlaps = """
        () => [...document.querySelectorAll(".top > *, .tools > *")].filter(one => one.checkVisibility())
            .some(one => one.getBoundingClientRect().right > innerWidth)
    """
    assert not page.evaluate(overlaps)


@pytest.mark.nightly
def test_a_step_onto_the_bar_leaves_the_page_where_it_is(visit: Open) -> None:
    page = visit(CHAPTERS[0])
    page.evaluate("scrollTo(0, 900)")
    before = page.evaluate("scrollY")
    for stop in page.locator(".top :is(a, summary, button):visible").element_handles():
        stop.focus()
        assert page.evaluate("scrollY") == before


@pytest.mark.nightly
def test_what_is_scrolled_to_stands_below_the_bar(visit: Open) -> None:
    page = visit(CHAPTERS[0])
    for link in page.locator("main .toc li:not(.folded) a").all()[:4]:
        target = link.evaluate("link => { location.hash = link.hash; return link.hash.slice(1) }")
        top = page.evaluate(
            "id => document.getElementById(decodeURIComponent(id)).getBoundingClientRect().top", target
        )
        assert top >= page.locator(".top").evaluate("bar => bar.getBoundingClientRect().bottom") - 1


def test_the_last_chapter_of_a_part_leads_into_the_next_one(visit: Open) -> None:
    page = visit(LAST_OF_ITS_PART)
    assert CONFIG.parts[1].label in page.locator(".neighbours .next span").inner_text()
    assert CONFIG.parts[0].label not in page.locator(".neighbours .prev span").inner_text()
