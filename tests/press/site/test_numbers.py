"""The numbers of chapters and sections: for speaking about a release, beside the names that last."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from press.project import sidelit


def test_each_section_has_its_number_on_the_page_and_in_the_contents(sample: Path) -> None:
    sidelit("build", cwd=sample)
    for lang in ("", "ja/", "zh/"):
        text = (sample / f"build/site/{lang}ring.html").read_text("utf-8")
        # The opening has the number of its chapter. What the contents list is counted from 1 without a gap,
        # and so are the comments without a heading in each of them.
        shown = re.findall(r'<section id="([^"]+)"|<span class="at">§ ([\d.]+)</span>', text)
        ids, numbers = [one for one, _ in shown if one], [number for _, number in shown if number]
        assert numbers == ["1", "1.1", "1.2", "1.2.1", "1.3", "1.4"]
        assert ids[3].startswith("Ring.__init__/")
        listed = dict(re.findall(r'href="#([^"]+)"><span class="number">([\d.]+)</span>', text))
        assert listed["Ring.put"] == dict(zip(ids, numbers, strict=True))["Ring.put"]
    home = (sample / "build/site/index.html").read_text("utf-8")
    assert re.findall(r'href="(ring|tools/window)\.html"><b><span class="number">(\d)<', home) == [
        ("ring", "1"),
        ("tools/window", "2"),
    ]


def test_pages_of_no_book_have_no_numbers(sample: Path) -> None:
    sidelit("print", sample / "src", "--out", "out", cwd=sample)
    assert 'class="at"' not in (sample / "out/ring.html").read_text("utf-8")


NESTED = '''

def outer():
    """Words."""
    def middle(x):
        def inner():
            """More words."""
            return x
        return inner
    return middle
'''


SAID = NESTED.replace("        def inner", "        # Why it is so.\n        y = x\n\n        def inner")


@pytest.mark.parametrize("nested", [NESTED, SAID])
def test_no_heading_skips_a_level_where_code_without_words_stands_between(sample: Path, nested: str) -> None:
    with (sample / "src/sample/ring.py").open("a", encoding="utf-8") as file:
        file.write(nested)
    sidelit("build", cwd=sample)
    text = (sample / "build/site/ring.html").read_text("utf-8")
    found = re.findall(r"(?s)<h([1-6])\b[^>]*>(.*?)</h", text)
    headings = [(int(level), re.sub("<[^>]*>", "", said)) for level, said in found]
    assert all(level <= before + 1 for (before, _), (level, _) in pairwise(headings)), headings
    assert headings[-2:] == [(2, "outer"), (3, "inner")]
