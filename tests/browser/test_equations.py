"""Formulas in the window and on paper: how they are numbered, and what becomes of one that is wide."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page

from built import NARROW, NARROWEST, show
from built import WIDE as SCREEN
from press.project import edit

pytestmark = pytest.mark.full

ROWS = r"$$\begin{align} a &= 1 \\ b &= 2 \end{align}$$"
PLACES = ("notes/reading.html", "numbered.html")

MANY = " + ".join(f"a_{{{number}}}" for number in range(20))
# One that may break, one in rows, one between brackets with a number, and one whose line is one piece.
WIDE = rf"""
$$s = {MANY}$$

$$\begin{{align}} s &= {MANY} \\ b &= 2 \end{{align}}$$

$$\left({MANY}\right)^2 \tag{{7}}$$

In a line ${MANY}$, or $\underbrace{{{MANY}}}_n$, or $f(\text{{all the words that say what it takes}}) = 1$.
"""
# What reaches out of the column that it stands in.
OUT = """
all => all.filter(one => {
    const column = one.closest("p, .math.display, td").getBoundingClientRect();
    const { left, right } = one.getBoundingClientRect();
    // The padding of a piece that scrolls is invisible.
    return left < column.left - 5 || right > column.right + 5;
}).map(one => `${one.textContent.slice(0, 20)}: ${one.getBoundingClientRect().right}`)
"""
# Formulas under whose number something of them stands.
COVERED = """
all => all.filter(one => {
    const tag = one.querySelector(".katex-tag");
    if (!tag) return false;
    const bases = [...one.querySelectorAll(".katex-base")].map(base => base.getBoundingClientRect().right);
    const places = [...tag.querySelectorAll(".eqn-num, .text")].map(number => number.getBoundingClientRect());
    return places.some(place => !place.width || place.left < Math.max(...bases));
}).map(one => one.textContent.slice(-20))
"""
CENTRED = """
all => all.map(one => {
    const { left, right } = one.getBoundingClientRect();
    const base = one.querySelector(".katex-base").getBoundingClientRect();
    const tag = one.querySelector(".katex-tag").getBoundingClientRect();
    return Math.abs(base.left - left - (right - base.right)) < 3 && Math.abs(tag.right - right) < 3;
})
"""
SCROLLS = "all => all.map(one => getComputedStyle(one).overflowX).filter(kind => kind !== 'visible')"
# The width of what is printed on a sheet of A4, in pixels.
PAPER = 658


def furnish(sample: Path) -> None:
    reading = sample / "site/pages/notes/reading.md"
    reading.write_text(f"{reading.read_text('utf-8')}\n{ROWS}\n\n{ROWS}\n", "utf-8")
    source = f'r"""# Numbered\n\n> It has equations.\n\n{ROWS}\n"""\n\n# Once more:\n#\n# {ROWS}\na = 1\n'
    (sample / "src/sample/numbered.py").write_text(source, "utf-8")
    (sample / "src/sample/wide.py").write_text(f'r"""# Wide\n{WIDE}"""\na = 1\n', "utf-8")
    toml = sample / "site/sidelit.toml"
    entry = '{ source = "ring.py", run = "python -m sample.ring" }'
    edit(toml, entry, f'{entry},\n    {{ source = "numbered.py" }},\n    {{ source = "wide.py" }}')


@pytest.mark.cases(ci=3)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("media", ["screen", "print"])
def test_the_numbers_of_equations_go_on(page: Page, home: str, place: str, media: str) -> None:
    page.emulate_media(media=media)  # type: ignore[arg-type]
    page.goto(f"{home}{place}")
    # What a stylesheet writes is in no document, but in what is laid out.
    with_text = page.context.new_cdp_session(page).send("DOMSnapshot.captureSnapshot", {"computedStyles": []})
    (shown,) = with_text["documents"]
    laid = "".join(with_text["strings"][at] for at in shown["layout"]["text"] if at >= 0)
    # Each formula is there twice, for screen readers and for the eye.
    assert re.findall(r"\((\d+)\)", laid) == [*"12", *"12", *"34", *"34"]


@pytest.mark.nightly
def test_a_wide_formula_in_a_line_stays_in_its_column(page: Page, home: str) -> None:
    page.goto(f"{home}wide.html")
    for width in (NARROWEST, NARROW, 801, 900):
        show(page, width)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.locator(".math:not(.display) .katex-base").evaluate_all(OUT) == []
    # What does not fit can be scrolled to, and stands on the line of its words.
    (brace, words) = page.locator(".math:not(.display) .katex-base:has(:nth-child(12), .text)").all()
    assert brace.evaluate("one => getComputedStyle(one).overflowX") == "auto"
    assert words.evaluate("one => one.scrollHeight <= one.clientHeight + 1")


@pytest.mark.parametrize("width", [NARROW, 801, SCREEN, 1600])
def test_a_number_keeps_clear_of_its_formula(page: Page, home: str, width: int) -> None:
    show(page, width).goto(f"{home}wide.html")
    for place in ("wide.html", "numbered.html"):
        page.goto(f"{home}{place}")
        assert page.locator(".math.display .katex-html:has(> .katex-tag)").count() == 2
        assert page.locator(".math.display").evaluate_all(COVERED) == []
    # A short formula stays in the middle of its column, and its number at the end of it.
    assert page.locator(".math.display").evaluate_all(CENTRED) == [True, True]


def test_a_formula_that_scrolls_shows_that_it_does(page: Page, home: str) -> None:
    show(page, SCREEN).goto(f"{home}wide.html")
    rows = page.locator(".math.display:has(.mtable)").first
    assert rows.evaluate("one => one.scrollWidth > one.clientWidth + 1")
    assert "gradient" in rows.evaluate("one => getComputedStyle(one).backgroundImage")


def test_nothing_of_a_wide_formula_is_cut_off_on_paper(page: Page, home: str) -> None:
    show(page, PAPER, media="print").goto(f"{home}wide.html")
    # A page that is wider than the paper is printed smaller as a whole.
    assert page.evaluate("document.documentElement.scrollWidth") == PAPER
    assert page.locator(".math").evaluate_all(SCROLLS) == []
    assert page.locator(".katex-base").evaluate_all(OUT) == []
