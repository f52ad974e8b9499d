"""Symbols in a browser: pointing at one lights them all and says what it means, by mouse, finger and key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.looks import ALL, point_and_press, violations
from press.project import edit
from tiers import rows

pytestmark = pytest.mark.full

CHAPTER = r'''r"""# Sizes

> How large a part is.

Each of $N_d$ ranks stores $\Psi / N_d$ numbers.

$$\frac{\Psi^2}{N_d}$$

:notation $N_d$: `world_size`, the number of ranks
:notation $\Psi$: the number of parameters
"""


def part(numel: int, world_size: int) -> int:
    """Divide by `world_size`, or by $N_d$."""
    # The world_size of a string is none.
    return numel // world_size
'''
LESSON = """# Parts

> What one rank holds.

:minutes: 5
:aim: say what a part is

There are $N_d$ ranks with $n$ tokens.

::: section src:sample/sizes.py#part
:::

:notation $N_d$: `world_size`, the number of ranks here
:notation $n$: the number of tokens
"""
PHONE = {"has_touch": True, "viewport": {"width": 390, "height": 780}}
LIT = "[...document.querySelectorAll('.lit')].filter(one => !one.closest('.gloss')).length"


def furnish(sample: Path) -> None:
    (sample / "src/sample/sizes.py").write_text(CHAPTER, encoding="utf-8")
    entry = '{ source = "ring.py", run = "python -m sample.ring" }'
    edit(sample / "site/sidelit.toml", entry, f'{entry},\n    {{ source = "sizes.py" }}')
    (sample / "site/lessons").mkdir()
    (sample / "site/lessons/parts.md").write_text(LESSON, encoding="utf-8")
    course = '[course]\nlabel = "Lessons"\nlessons = [{ source = "lessons/parts.md" }]\n\n[[parts]]'
    edit(sample / "site/sidelit.toml", "[[parts]]", course)


@pytest.mark.nightly
def test_pointing_lights_every_place_and_says_what_it_means(page: Page, home: str) -> None:
    page.clock.install()
    page.goto(home + "sizes.html")
    page.hover("#module p [data-sym=N_d]")
    gloss = page.locator(".gloss")
    page.clock.run_for(100)
    expect(gloss).to_be_visible()
    assert "world_size, the number of ranks" in gloss.inner_text()
    # Three formulas and the table's; the table's code and that of a sentence; two names in code.
    assert page.evaluate(LIT) == page.locator("main [data-sym=N_d]").count() == 9
    # What it says can be read with the pointer on it, and goes by a key.
    gloss.hover()
    page.clock.run_for(1000)
    expect(gloss).to_be_visible()
    page.keyboard.press("Escape")
    expect(gloss).to_be_hidden()
    assert page.evaluate(LIT) == 0
    page.hover("pre [data-sym=N_d]")
    page.clock.run_for(100)
    expect(gloss).to_be_visible()
    page.hover("h1")
    page.clock.run_for(300)
    expect(gloss).to_be_hidden()


def test_nothing_is_marked_in_comments_and_strings_and_numbers_stay(page: Page, home: str) -> None:
    page.goto(home + "sizes.html")
    assert page.locator("pre .c1 [data-sym]").count() == 0
    assert page.locator("pre [data-sym]").all_inner_texts() == ["world_size"] * 2
    assert page.locator("math [data-sym]").count() == 0
    assert "htmlData" not in page.content()


def test_keys_walk_the_symbols_in_sight(page: Page, home: str) -> None:
    page.clock.install()
    page.goto(home + "sizes.html")
    # A pointer that came to something else just before takes nothing away.
    page.hover("h1")
    for key, count in [("s", 9), ("s", 3), ("S", 9)]:
        page.keyboard.press(key)
        assert page.evaluate(LIT) == count
    page.clock.run_for(300)
    expect(page.locator(".gloss")).to_be_visible()


def test_a_page_that_moves_below_a_resting_pointer_keeps_what_a_key_has_lit(page: Page, home: str) -> None:
    page.clock.install()
    page.goto(home + "sizes.html")
    point_and_press(page, "h1", "s")
    page.clock.run_for(300)
    assert page.evaluate(LIT) > 0
    page.mouse.move(1, 1)
    page.clock.run_for(300)
    assert page.evaluate(LIT) == 0


def test_the_notation_is_one_stop_for_the_keyboard(page: Page, home: str) -> None:
    page.goto(home + "sizes.html")
    assert page.locator("main [tabindex='0']:not([role=group])").count() == 1
    page.locator(".notation tbody tr").first.focus()
    assert page.evaluate(LIT) == 9
    page.keyboard.press("ArrowDown")
    assert page.evaluate(LIT) == 3
    expect(page.locator(".gloss")).to_be_hidden()


@pytest.mark.parametrize("page", [PHONE], indirect=True)
def test_a_finger_asks_and_the_answer_fits(page: Page, home: str) -> None:
    page.goto(home + "ja/sizes.html")
    page.tap("#part pre [data-sym=N_d]")
    box = page.locator(".gloss")
    expect(box).to_be_visible()
    edges = box.bounding_box()
    assert edges is not None
    assert edges["x"] >= 0
    assert edges["x"] + edges["width"] <= 390
    page.tap("h1")
    expect(box).to_be_hidden()


@pytest.mark.nightly
def test_a_lesson_lists_its_symbols_and_those_it_has_taken(page: Page, home: str) -> None:
    page.goto(home + "parts.html")
    summary = page.locator(".symbols > summary")
    assert summary.inner_text() == "Symbols of this page"
    summary.click()
    said = page.locator(".symbols tbody tr").all_inner_texts()
    assert [re.sub(r"[\s\u200b]+", " ", row.partition("\t")[2]).strip() for row in said] == [
        "world_size, the number of ranks here",
        "the number of tokens",
    ]
    page.hover("article pre [data-sym=N_d]")
    expect(page.locator(".gloss")).to_contain_text("the number of ranks here")
    assert page.locator("main :is(h2, h3, p) ~ table.notation").count() == 0


def test_a_page_without_symbols_loads_nothing_for_them(page: Page, home: str) -> None:
    page.goto(home + "tools/window.html")
    assert page.locator("[src$='symbols.js'], [href$='symbols.css'], .symbols").count() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("name", rows(["sizes.html", "ja/parts.html"], now=["sizes.html"]))
def test_axe_finds_nothing(page: Page, home: str, name: str) -> None:
    page.goto(home + name)
    page.locator(".notation").evaluate("list => { (list.closest('details') ?? {}).open = true }")
    page.keyboard.press("s")
    assert violations(page, ALL) == []
