"""Words and code side by side, or one above the other; code without words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from press.project import sidelit
from sidelit.site.model import CodeLine
from sidelit.site.page_renderer import words_above

SENTENCE = "<p>A rank sends what another rank keeps, and keeps what the others send.</p>"


def code(lines: int) -> list[CodeLine]:
    return [CodeLine(number, "x = 1", 0) for number in range(1, lines + 1)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sentences", "lines", "above"),
    [(1, 1, False), (12, 4, True), (12, 20, False), (12, 0, False), (3, 4, False)],
)
def test_words_stand_above_code_that_is_much_shorter(sentences: int, lines: int, above: bool) -> None:
    assert words_above(SENTENCE * sentences, code(lines)) is above


def test_a_letter_of_japanese_is_as_wide_as_two() -> None:
    sentence = "<p>ランクは送ります。</p>"
    assert not words_above(sentence * 8 + "a" * 200, code(10))
    assert words_above(sentence * 8 + "ラ" * 200, code(10))


def test_what_a_formula_tells_screen_readers_takes_no_room() -> None:
    silent = f'<span class="katex-mathml"><math>{"x" * 2000}</math></span>'
    assert not words_above(f"<p>{silent}</p>", code(3))


SOURCE = """

class Bare:
    \"\"\"Nothing.\"\"\"

    def __init__(self) -> None:
        self.x = 1

    def turn(self) -> None:
        def inner() -> None:
            self.x = 2

        inner()

    def tell(self) -> None:
        \"\"\"Words.\"\"\"
        # A comment.
        self.x = 3

    def last(self) -> None:
        self.x = 4


MORE = 1


class Other:
    def told(self) -> None:
        self.x = 5
"""


@pytest.mark.full
def test_code_without_words_goes_on_in_the_block_of_the_section_before(sample: Path) -> None:
    ring = sample / "src/sample/ring.py"
    with ring.open("a", encoding="utf-8") as file:
        file.write(SOURCE)
    sidelit("build", cwd=sample)
    html = (sample / "build/site/ring.html").read_text(encoding="utf-8")
    sections = dict(re.findall(r'(?s)<section id="([^"]+)"(.*?)</section>', html))
    joined = {
        id: re.findall(r'<span class="alias" id="([^"]+)"></span>(?:<a class="num"|<a )', shown)
        for id, shown in sections.items()
    }
    assert {id: names for id, names in joined.items() if names} == {
        "Bare": ["Bare.__init__", "Bare.turn"],
        "Bare.turn.inner": ["Bare.turn/inner"],
        "Bare.tell/a-comment": ["Bare.last", "module/more-1"],
    }
    # What the words above are not about begins below a hairline.
    another = re.findall(r'class="line another[^"]*" id="[^"]*"><span class="alias" id="([^"]+)"', html)
    assert another == ["Bare.turn/inner", "Bare.last", "module/more-1"]
    sticky = {id for id, shown in sections.items() if '<div class="doc stick">' in shown}
    assert "Bare" in sticky
    assert "Bare.tell/a-comment" not in sticky
    # Without words above it a definition keeps its place, and so does what it holds.
    assert {"Other", "Other.told"} <= sections.keys()
    assert sections["Bare"].count("<pre ") == 1
    # Python itself calls `__init__`; the others have a line in the contents, without a number.
    assert "#Bare.__init__" not in html
    contents = re.findall(r'<a href="#([\w./-]+)">(?:<span class="number">([\d.]+)</span> )?<code>', html)
    assert {("Bare.turn", ""), ("Bare.last", "")} <= {*contents}
    depths = {id: depth for depth, id in re.findall(r'<li class="d(\d)[^"]*"><a href="#(Bare[\w.]*)"', html)}
    assert (depths["Bare"], depths["Bare.turn"], depths["Bare.turn.inner"]) == ("0", "1", "2")
    numbers = [number for id, number in dict(contents).items() if number]
    assert numbers == sorted(numbers, key=lambda each: [*map(int, each.split("."))])
