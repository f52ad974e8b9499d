"""Every drawing of the book as a browser sets it: no word leaves it, covers another, or is too small."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from built import NARROW, ROOT, WIDE
from sidelit.catalog import catalog
from sidelit.config import config
from sidelit.figures import figure
from sidelit.figures.drawing import gallery

SITE = ROOT / "site"
STYLES = [ROOT / "templates" / "assets" / f"{name}.css" for name in ("colours", "fonts", "page", "figures")]
SMALLEST, SLACK = 12, 2.5

# What is wrong with the words of the drawings that are shown; letters may touch, but not cover each other.
WRONG = """
([smallest, slack]) => {
    const wrong = [];
    for (const svg of document.querySelectorAll("svg")) {
        const shown = svg.getBoundingClientRect();
        if (!shown.width) continue;
        const { width, height } = svg.viewBox.baseVal;
        const words = [...svg.querySelectorAll("text")].map(text => [text, text.getBBox()]);
        for (const [text, box] of words) {
            const said = text.textContent, of = svg.dataset.of;
            if (Math.min(box.x, box.y, width - box.x - box.width, height - box.y - box.height) < -slack)
                wrong.push(`${of}: "${said}" leaves the drawing`);
            const size = parseFloat(getComputedStyle(text).fontSize) * shown.width / width;
            if (size < smallest - .05) wrong.push(`${of}: "${said}" has letters of ${size.toFixed(1)} px`);
        }
        words.forEach(([one, a], number) => words.slice(number + 1).forEach(([two, b]) => {
            const wide = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
            const tall = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
            if (wide > slack && tall > 2 * slack)
                wrong.push(`${svg.dataset.of}: "${one.textContent}" covers "${two.textContent}"`);
        }));
    }
    return wrong;
}
"""


@pytest.mark.full
@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("lang", ["en", "ja", "zh"])
def test_words_have_room(browser: Browser, lang: str) -> None:
    page = browser.new_page()
    # The stylesheets and their fonts are files, so the page is one, too.
    page.goto((ROOT / "templates" / "hatching.html").as_uri())
    styles = "".join(f'<link rel="stylesheet" href="{each.as_uri()}">' for each in STYLES)
    page.set_content(f'<html lang="{lang}">{styles}<body>{"".join(sheets(lang))}')
    for width in (WIDE, NARROW):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate(WRONG, [SMALLEST, SLACK]) == []
    page.close()


def sheets(lang: str) -> Iterator[str]:
    """Both drawings of each figure in one language, as a page holds them."""
    made = config.load(SITE / "sidelit.toml")
    figures = figure.read_all(made)
    catalogs = catalog.load([each.units() for each in figures], made.folder / "locale", made.languages[1:])
    drawn = gallery(made, figures, catalogs)
    for each in figures:
        drawing = drawn.draw(each.name, lang)
        for svg, look in ((drawing.wide, "wide"), (drawing.narrow, "narrow")):
            assert svg, f"{each.name} has no drawing for narrow screens"
            shown = svg.replace("<svg", f'<svg class="{look}" data-of="{each.name}"', 1)
            yield f'<figure class="drawing"><div class="sheet">{shown}</div></figure>'
