"""The joined rules of a lexer make the very tokens that Pygments makes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pygments.lexer import RegexLexer, bygroups
from pygments.lexers.python import PythonLexer
from pygments.token import Keyword, Name, Text

from sidelit.text import code

ROOT = Path(__file__).parent.parent.parent.parent
JOINED = code.joined(PythonLexer)
KEPT = {"stripnl": False, "ensurenl": False}
PIECES = st.sampled_from(
    [
        *(
            "def f",
            "(x):",
            "class A",
            "'",
            '"""',
            "f'{a",
            "}'",
            "rB'",
            "\\",
            "\n",
            "  ",
            "#c",
            "@d",
            "0x1_f",
            "é",
        ),
        *(
            "import a as b",
            "from .",
            "match x:",
            "case _:",
            "async ",
            "self.",
            "print",
            "...",
            "\t",
            "$",
            "\x00",
        ),
        *(":=", "if", "("),
    ]
)


def test_the_lexer_of_python_is_joined() -> None:
    assert JOINED is not PythonLexer


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests" / "press" / "data").rglob("*.py")), ids=lambda p: p.name
)
def test_files_have_the_tokens_that_pygments_gives_them(path: Path) -> None:
    text = path.read_bytes().decode("utf-8", "replace")
    assert list(JOINED(**KEPT).get_tokens(text)) == list(PythonLexer(**KEPT).get_tokens(text))


@given(st.lists(PIECES, max_size=25).map("".join) | st.text(max_size=40))
def test_any_text_has_the_tokens_that_pygments_gives_it(text: str) -> None:
    assert list(JOINED(**KEPT).get_tokens(text)) == list(PythonLexer(**KEPT).get_tokens(text))


def test_a_lexer_that_refers_to_its_groups_is_left_as_it_is() -> None:
    class Doubled(RegexLexer):
        tokens = {"root": [(r"(\w)\1", Name), (r".|\n", Text)]}  # noqa: RUF012

    assert code.joined(Doubled) is Doubled


def test_flags_groups_and_states_are_those_of_each_rule() -> None:
    class Small(RegexLexer):
        tokens = {  # noqa: RUF012
            "root": [
                (r"(?i)(let)([ (]+)", bygroups(Keyword, Text), "name"),
                (r"[(]let[)]", Keyword, "#push"),
                (r"end", Keyword, "#pop:3"),
                (r".|\n", Text),
            ],
            "name": [(r"[a-z]+", Name, ("#pop", "root")), (r"!", Text, "#push"), (r"\?", Text, "#pop:2")],
        }

    text = "LET x let (y (let) LET !!a!?? end let !??? end\n LETZ let\nend"
    joined = code.joined(Small)
    assert joined is not Small
    assert list(joined().get_tokens(text)) == list(Small().get_tokens(text))
