"""The contents: the part one is in is open, and the page and the section one is in are marked."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from built import CHAPTERS, CONFIG, FRAMES, LANGUAGES, LONG_CHAPTERS, NARROW, WIDE, Open, longest, path_of

pytestmark = pytest.mark.full

# What a list may have that is open by itself.
AT_MOST = 12
LAB = CONFIG.labs.lessons[4]
LESSON = "three_states.html"
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


# All parts are there: what a page does not list itself has come.
WHOLE = "() => !document.querySelector('.panel a.group')"


def opened(page: Page) -> Page:
    """Open the contents as a reader does, and wait until they stand at their place."""
    page.locator(".menu").click()
    return settled(page)


def settled(page: Page) -> Page:
    page.wait_for_function(WHOLE)
    page.evaluate(FRAMES)
    return page


@pytest.mark.nightly
@pytest.mark.parametrize("width", [WIDE, NARROW])
def test_the_contents_open_at_the_page_one_is_in(visit: Open, width: int) -> None:
    page = opened(visit(FAR, width=width))
    # Each lab stands beside its lesson.
    groups = [*CONFIG.parts, *filter(None, [CONFIG.course.lessons, CONFIG.back_label])]
    assert page.locator(".book > .group").count() == len(groups)
    assert page.locator(".book > .group[open]").count() == 1
    assert page.locator(".book .group .group[open]").count() == 1
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


def test_code_without_words_is_a_place_of_its_own(visit: Open, site: Path) -> None:
    pages = ((name, (site / name).read_text("utf-8")) for name in CHAPTERS)
    begins = r'class="line another[^>]*><span class="alias" id="([a-z_]+)"'
    name, own = next((name, found[1]) for name, html in pages if (found := re.search(begins, html)))
    page = visit(name)
    here, marks = page.locator(".crumbs .here"), page.locator(".panel .toc [aria-current=location]")
    line = page.locator(f".line:has(> [id='{own}'])")
    line.evaluate("line => line.scrollIntoView()")
    expect(here).to_have_text(own)
    assert marks.get_attribute("href") == f"#{own}"
    # Whoever follows a link to a line below is in the same place.
    page.evaluate("scrollTo(0, 0)")
    below = line.evaluate("line => line.nextElementSibling.id")
    page.evaluate("id => { location.hash = id }", below)
    expect(here).to_have_text(own)


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
    expect(page.locator(".panel")).to_be_hidden()


@pytest.mark.nightly
def test_who_leaves_the_contents_closes_them(visit: Open) -> None:
    page = opened(visit(FAR))
    page.locator(".panel a").last.focus()
    page.keyboard.press("Tab")
    expect(page.locator(".panel")).to_be_hidden()


@pytest.mark.nightly
def test_arrow_keys_walk_the_contents(visit: Open) -> None:
    page = opened(visit(FAR))
    for _ in range(2):
        page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.matches('.past ~ * summary')")
    for _ in range(2):
        page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.matches('.menu')")


def test_the_contents_open_without_scripts(walk: Open) -> None:
    page = walk(FAR, scripts=False)
    page.locator(".menu").click()
    assert page.locator(".panel [aria-current=page]").is_visible()
    page.locator(".panel a.group").first.click()
    page.wait_for_url("**/contents.html#*")
    target = page.evaluate("document.querySelector(location.hash).textContent")
    assert target == CONFIG.course.label
    # That page has all of them, and here they stand beside the words.
    listed = page.locator("main li > a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert listed == [item.output for item in CONFIG.order]
    assert page.locator(".panel").is_visible()


# ## Beside the page


def test_beside_a_lesson_stands_the_group_that_it_is_in(visit: Open) -> None:
    page = settled(visit(LESSON))
    panel = page.locator(".panel")
    assert panel.is_visible()
    assert not page.locator(".menu").is_visible()
    assert 0 < panel.locator(".group .group li a:visible").count() <= AT_MOST
    # The lab of a lesson stands below it.
    lab = panel.locator(f"li:has(> [aria-current=page]) li a[href$='{LAB.output}']")
    assert lab.inner_text().startswith(f"Lab {LAB.number}")
    lab.click()
    page.wait_for_url(f"**/{LAB.output}")
    assert panel.locator("li li [aria-current=page]").is_visible()


def test_no_group_lists_more_than_a_reader_takes_in_at_a_glance() -> None:
    chapters = Counter((part.label, each.group) for part in CONFIG.parts for each in part.chapters)
    assert max(chapters.values()) <= AT_MOST, chapters
    lessons = Counter(lesson.group for lesson in CONFIG.course.lessons)
    assert max(lessons.values()) + len(CONFIG.labs.lessons) // len(lessons) <= AT_MOST
    assert len(CONFIG.back) <= AT_MOST


def test_the_book_is_sixty_chapters_and_the_workshop_has_the_rest() -> None:
    read = [each for each in CONFIG.chapters if not each.workshop]
    assert 55 <= len(read) <= 65
    assert len(CONFIG.chapters) - len(read) < 60
    assert [part.number for part in CONFIG.parts] == ["I", "II", "III", "IV", "V", ""]


def test_a_finished_lesson_is_seen_in_the_contents(visit: Open) -> None:
    page = settled(visit(LESSON))
    progress = page.locator(".book .progress")
    assert progress.count() == 0
    page.locator(".finish").click()
    total = len(CONFIG.course.lessons) + len(CONFIG.labs.lessons)
    expect(progress).to_have_text(f"1/{total}")
    assert page.locator(".panel [aria-current=page] .finished").is_visible()
    page.locator(".finish").click()
    expect(progress).to_have_count(0)


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("width", [1920, 2560])
def test_beside_a_chapter_lines_and_words_have_their_room(visit: Open, width: int) -> None:
    page = settled(visit(LONG_CHAPTERS[-1], width=width))
    assert page.locator(".panel").is_visible()
    letters = page.locator(".line .k").first.evaluate(
        "one => parseFloat(getComputedStyle(one).fontSize) * .6"
    )
    line = page.locator(".sec:not(.above, .opening) .line").first
    room = line.evaluate("one => one.clientWidth") - page.locator(".num").first.evaluate(
        "one => one.clientWidth"
    )
    assert room / letters >= 100
    words = page.locator(".sec:not(.above, .opening) .doc p").first.evaluate("one => one.clientWidth / 8.2")
    assert words >= 60


def test_a_chapter_keeps_its_width_on_a_smaller_screen(visit: Open) -> None:
    page = visit(CHAPTERS[0])
    assert not page.locator(".panel").is_visible()
    assert page.locator("main").evaluate("main => main.clientWidth") == WIDE


@pytest.mark.nightly
def test_who_puts_the_contents_away_finds_them_so_on_the_next_page(visit: Open) -> None:
    page = settled(visit(LESSON))
    beside = page.locator("main").evaluate("main => main.clientWidth")
    page.locator(".hide").click()
    assert not page.locator(".panel").is_visible()
    assert page.locator("main").evaluate("main => main.clientWidth") > beside
    assert page.evaluate("document.activeElement.matches('.menu')")
    page.reload()
    assert not page.locator(".panel").is_visible()
    opened(page)
    page.locator(".keep").click()
    page.reload()
    assert page.locator(".panel").is_visible()
    assert page.locator("main").evaluate("main => main.clientWidth") == beside
    # A chapter has room for them from another width on.
    page.set_viewport_size({"width": 1500, "height": 900})
    page.goto(page.url.replace(LESSON, CHAPTERS[0]))
    assert page.locator(".panel").is_visible()
    page.evaluate("localStorage.clear()")


def test_the_filter_finds_what_the_page_does_not_list(visit: Open) -> None:
    page = visit(LESSON)
    page.locator(".filter").fill("loss scaling")
    expect(page.locator(".panel li a:visible")).to_have_count(1)
    assert "Loss scaling" in page.locator(".panel li a:visible").inner_text()
    page.locator(".filter").fill("")
    expect(page.locator(".book > .group[open]")).to_have_count(1)


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1100, WIDE])
def test_beside_the_contents_a_lesson_has_room_for_its_words(visit: Open, width: int) -> None:
    """What it takes of a chapter has its words beside the code, in lines that are long enough to read."""
    page = visit(LESSON, width=width)
    taken = page.locator(".taken:not(.above)").first
    words, code = (taken.locator(each).first.bounding_box() for each in (".doc", "pre.code"))
    assert words
    assert code
    assert words["x"] + words["width"] <= code["x"] + 1
    assert taken.locator(".doc p:not(.origin)").first.evaluate("one => one.clientWidth / 8.2") >= 40
    assert page.evaluate("document.documentElement.scrollWidth") == width


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
