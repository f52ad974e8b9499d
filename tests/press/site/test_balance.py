"""Words and code side by side, or one above the other; a class and its `__init__`."""

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


@pytest.mark.full
def test_an_init_without_words_stands_below_the_line_of_its_class(sample: Path) -> None:
    ring = sample / "src/sample/ring.py"
    with ring.open("a", encoding="utf-8") as file:
        file.write(
            '\n\nclass Bare:\n    """Nothing."""\n\n    def __init__(self) -> None:\n        self.x = 1\n'
        )
        file.write(
            '\n\nclass Said:\n    """Nothing."""\n\n    def __init__(self) -> None:\n        """Words."""\n'
        )
    sidelit("build", cwd=sample)
    html = (sample / "build/site/ring.html").read_text(encoding="utf-8")
    inner = re.findall(
        r'<div class="codes">(?:(?!</section>).)*<section id="([^"]+)" class="sec [\w-]+ inner">', html, re.S
    )
    assert inner == ["Bare.__init__"]
    for name in ("Bare", "Bare.__init__", "Said", "Said.__init__"):
        assert html.count(f'<section id="{name}"') == 1
    assert html.count('href="#Bare.__init__"') == 3, "its own link, and those of the contents"
