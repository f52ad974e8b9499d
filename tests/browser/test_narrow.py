"""Phones and tablets: tables and titles that fit, a bar that can be used, and lines that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from built import CONFIG, NARROW, NARROWEST, WIDE, Open, show
from press.project import edit

pytestmark = pytest.mark.full

TABLET = 800
# A page of words, one of options, one of measurements and a chapter, each with wide tables.
TABLES = [CONFIG.home, "api.html", "measured.html", "memory.html"]
HIDDEN = """
all => all.filter(box => box.scrollWidth > box.clientWidth + 1)
    .map(box => `${box.scrollWidth}: ${box.textContent.trim().slice(0, 40)}`)
"""
# The letters in a line of print: between 45 and 80 can be read with ease, and more than 90 hardly.
LETTERS = """
all => Math.max(...all.filter(one => one.checkVisibility() && one.textContent.length > 300).map(one => {
    const range = document.createRange();
    range.selectNodeContents(one);
    const lines = new Set([...range.getClientRects()].map(box => Math.round(box.bottom / 12)));
    return one.textContent.length / lines.size;
}))
"""

TITLE = "Internationalization of interdepartmental representations"
NAME = "number_of_interdepartmental_representations"
DOC = f'''"""# {TITLE}

:notation $n_{{1}}$: how many
"""


def count({NAME}):
    """Words.

    :param {NAME}: what is counted
    """


# ## A heading without a word below it
b = 2
'''
# The words of the title that stand on more than one line.
BROKEN = """
title => title.textContent.split(" ").filter((word, index, words) => {
    const range = document.createRange();
    const before = words.slice(0, index).join(" ").length + (index ? 1 : 0);
    range.setStart(title.firstChild, before);
    range.setEnd(title.firstChild, before + word.length);
    return range.getClientRects().length > 1;
})
"""
# What of the bar lies over what stands after it.
OVER = """
() => {
    const all = [".brand", ".menu", ".find", ".tools", ".theme"];
    const boxes = all.map(each => document.querySelector(each)).filter(each => each?.checkVisibility());
    return boxes.flatMap((one, at) => boxes.slice(at + 1).filter(other => !one.contains(other)
        && !other.contains(one)
        && one.getBoundingClientRect().right > other.getBoundingClientRect().left + 1
    ).map(other => `${one.className} ${other.className}`));
}
"""
# Where the words of each begin.
LEFT = """
all => all.map(one => one.getBoundingClientRect().left + parseFloat(getComputedStyle(one).paddingLeft))
"""


def furnish(sample: Path) -> None:
    (sample / "src/sample/long.py").write_text(DOC, "utf-8")
    toml = sample / "site/sidelit.toml"
    entry = '{ source = "ring.py", run = "python -m sample.ring" }'
    edit(toml, entry, f'{entry},\n    {{ source = "long.py" }}')
    edit(toml, 'title = "Sample"', f'title = "{TITLE}"')
    edit(sample / "site/pages/index.md", "# The sample", f"# {TITLE}")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["index.html", "long.html"])
def test_a_long_word_of_a_title_stands_on_one_line(page: Page, home: str, name: str) -> None:
    page.goto(f"{home}{name}")
    for width in (NARROWEST, NARROW, 801, 1100, WIDE):
        show(page, width)
        assert page.locator("h1").evaluate(BROKEN) == [], width


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["index.html", "long.html"])
def test_however_long_its_title_the_bar_can_be_used(page: Page, home: str, name: str) -> None:
    page.goto(f"{home}{name}")
    for width in (NARROWEST, NARROW, 801, WIDE):
        show(page, width)
        assert page.evaluate(OVER) == [], width
        bar = page.locator(".top").bounding_box()
        brand = page.locator(".brand").bounding_box()
        assert bar
        assert brand is None or brand["height"] < bar["height"]


@pytest.mark.nightly
def test_a_long_name_of_a_parameter_is_broken(page: Page, home: str) -> None:
    page.goto(f"{home}long.html")
    for width in (NARROWEST, NARROW, 801, 900):
        show(page, width)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        table = page.locator(".fields.parameter").bounding_box()
        doc = page.locator(".doc:has(.fields.parameter)").bounding_box()
        assert table
        assert doc
        assert table["x"] + table["width"] <= doc["x"] + doc["width"]


def test_the_foot_of_a_narrow_page_has_one_edge(page: Page, home: str) -> None:
    show(page, NARROW).goto(f"{home}long.html")
    page.locator(".foot .help").wait_for()
    edges = page.locator(".foot .cite > summary, .foot .help, .foot > dl > :first-child").evaluate_all(LEFT)
    (heading,) = page.locator("h1").evaluate_all(LEFT)
    assert set(edges) == {heading}
    # A heading without words begins there, too.
    assert set(page.locator("main h2:not(.name)").evaluate_all(LEFT)) == {heading}


@pytest.mark.cases(ci=3)
@pytest.mark.parametrize("name", TABLES)
def test_no_column_of_a_table_is_off_the_screen_of_a_phone(visit: Open, name: str) -> None:
    page = visit(name, width=NARROW)
    assert page.locator("main .scroll:not(.drawing *) table").count() > 0
    assert page.locator("main .scroll:not(.drawing *)").evaluate_all(HIDDEN) == []


@pytest.mark.nightly
def test_a_wide_table_is_a_list_on_a_phone_and_its_values_say_what_they_are(visit: Open) -> None:
    page = visit("api.html", width=NARROW)
    cell = page.locator(".stack td[data-label]:visible").first
    said = cell.evaluate("cell => getComputedStyle(cell, '::before').content")
    assert said == f'"{cell.get_attribute("data-label")}"' != '""'
    page.set_viewport_size({"width": TABLET, "height": 900})
    assert cell.evaluate("cell => getComputedStyle(cell, '::before').content") == "none"


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["hooks.html", "formats.html"])
def test_a_line_on_a_tablet_is_no_longer_than_a_line_of_print(visit: Open, name: str) -> None:
    page = visit(name, width=TABLET)
    assert 45 < longest(page) < 90


def longest(page: Page) -> float:
    """The letters in a line of the paragraph with the longest lines."""
    return float(page.locator(".doc > p").evaluate_all(LETTERS))
