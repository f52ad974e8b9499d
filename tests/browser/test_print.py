"""A chapter on paper: all of its words and code, whatever the paper's width."""

from __future__ import annotations

import re
from io import BytesIO
from pathlib import Path

import pytest
from playwright.sync_api import Page
from pypdf import PdfReader

from built import show

pytestmark = pytest.mark.full

# Enough words to stand above the code on a wide screen.
LONG = '''def far_out():
    """Words that are much longer than the code beside them.

    {words}
    """
    return visible_on_paper


def far_used():
    """Words like those above, and a line below the code that says who uses it.

    {words}
    """
    return printed_beside_its_uses


# sidelit: depth Refused if nobody is there.
def also_far():
    raise hidden_on_screen(far_used)
# sidelit: core
'''

NAMED = " | ".join(f"`a_name_of_a_quantity_{number}`" for number in range(1, 6))
MANY = " | ".join(f"column{number}" for number in range(1, 16))
TABLES = f"""
| {NAMED} |
|{"---|" * 5}
| {NAMED} |

| {MANY} |
|{"---|" * 15}
| {MANY} |

| a | b |
|---|---|
| 1 | 2 |

See <https://example.org/bare> and [a name](https://example.org/named).
"""
# The width of what is printed on a sheet of A4, in pixels.
PAPER = 658


def furnish(sample: Path) -> None:
    with (sample / "site/pages/notes/reading.md").open("a", encoding="utf-8") as page:
        page.write(TABLES)
    words = "\n\n    ".join(["A sentence of words that says hardly anything, and says it at length."] * 30)
    with (sample / "src/sample/ring.py").open("a", encoding="utf-8") as source:
        source.write("\n\n" + LONG.format(words=words))


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("paper", ["A4", "Letter"])
def test_no_word_and_no_line_is_lost_on_paper(page: Page, home: str, paper: str) -> None:
    page.goto(f"{home}ring.html")
    assert page.locator(".sec.above").count() == 2
    assert page.locator(".sec.above > .codes").count() == 1
    printed = PdfReader(BytesIO(page.pdf(format=paper, prefer_css_page_size=paper == "A4")))
    text = "\n".join(each.extract_text() for each in printed.pages)
    assert "return visible_on_paper" in text
    assert "return printed_beside_its_uses" in text
    assert "raise hidden_on_screen" in text
    assert text.count("hardly anything") == 60
    # What only a screen can do is not there, and every page has its number.
    for word in ("Contents", "Previous"):
        assert word not in text
    # It says where it is from: the file, and one citation.
    last = re.sub(r"\s+", " ", printed.pages[-1].extract_text())
    assert "File src/sample/ring.py" in last
    assert "The Sample authors. (n.d.). A ring. In Sample." in last
    for word in ("Cite this page", "BibTeX", "CSL-JSON", "Report it", "Found an error?"):
        assert word not in text
    for number, each in enumerate(printed.pages, 1):
        assert each.extract_text().startswith(f"{number}\n")


def test_a_wide_table_is_whole_on_paper_and_has_no_shadow(page: Page, home: str) -> None:
    show(page, PAPER, media="print").goto(f"{home}notes/reading.html")
    # A page that is wider than the paper is printed smaller as a whole.
    assert page.evaluate("document.documentElement.scrollWidth") == PAPER
    boxes = page.locator(".scroll")
    assert boxes.count() == 3
    looks = "all => all.map(one => getComputedStyle(one)).map(it => [it.overflowX, it.backgroundImage])"
    assert boxes.evaluate_all(looks) == [["visible", "none"]] * 3


def test_an_address_is_printed_once(page: Page, home: str) -> None:
    page.goto(f"{home}notes/reading.html")
    text = "".join(each.extract_text() for each in PdfReader(BytesIO(page.pdf())).pages)
    assert text.count("https://example.org/bare") == 1
    assert "⟨https://example.org/named⟩" in re.sub(r"\s+", "", text)
