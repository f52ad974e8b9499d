"""Mistakes in a TOML file are told at their own lines, whatever comments and strings say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from press.project import SAMPLE
from sidelit.config import toml
from sidelit.config.toml import KeyPlace
from sidelit.errors import SidelitError

TEXT = (
    r'''# lines = 1, [[parts]]
title = "lines = 2 # no comment" # a = 3
long = """
[a.table] that is
none = \"""
"""
raw = '''
    + "'''\n'[raw]''''\n"
    + r"""day = [1979-05-27 07:32:00, "day"]
"a.b".c . 'd e' = {x = [[1.5, 2], [{y = "z"}]], w = "é\u0021"}

[[parts]]
label = "first"
[[parts.chapters]]
source = "a.py"
[[parts.chapters]]
source = "b.py"

[[ parts ]]
chapters = [
    "c.py",  # ]
    {source = "a.py"},
]

[lint.rules]
a-b = "off"
[lint]
lines = 0
"""
)


def same(data: Any, place: KeyPlace) -> None:
    """What the parser and the reader of places found has the same keys, numbers and strings."""
    if isinstance(data, (dict, list)):
        inside = data if isinstance(data, dict) else dict(enumerate(data))
        assert list(place.inside) == list(inside)
        for key, each in inside.items():
            same(each, place.inside[key])
    else:
        assert place.text == (data if isinstance(data, str) else None)


def test_every_key_and_string_has_a_place() -> None:
    same(toml.tomllib.loads(TEXT), toml.read(TEXT))


@pytest.mark.parametrize("path", sorted(SAMPLE.rglob("*.toml")), ids=lambda path: path.name)
def test_the_places_of_a_file(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    same(toml.tomllib.loads(text), toml.read(text))


@pytest.mark.parametrize(
    ("way", "word", "line"),
    [
        ((), "title", 2),
        ((), "day", 9),
        ((), "z", 10),
        (("parts", 0), None, 12),
        (("parts", 0, "chapters", 1), None, 16),
        (("parts", 0, "chapters", 1), "source", 17),
        (("parts", 1), None, 19),
        (("parts", 1), "a.py", 22),
        (("parts", 1), "c.py", 21),
        (("lint",), None, 27),
        (("lint",), "lines", 28),
        (("lint", "rules"), "a-b", 26),
        (("lint",), "title", 27),
    ],
)
def test_a_word_is_looked_for_in_its_own_table(way: tuple[str | int, ...], word: str, line: int) -> None:
    table = toml.Table({}, "t.toml", TEXT).inside({}, *way)
    assert table.line(word) == line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('a = 1\nb = "' + "a." * 120 + '"\n# ' + "a." * 120 + "\n", ""),
        ("a = 1\n" + "a." * 120 + "b = 1\n", "t.toml:2: a key has more than 100 parts"),
        ("a = 1\n[" + "'a' . " * 120 + "b]\n", "t.toml:2: a key has more than 100 parts"),
        ("a = 1\n\nb = " + "[" * 2000, "t.toml:3: its tables or lists are nested too deeply"),
        ('a = "[["\n\nb = ' + "{a=" * 2000, "t.toml:3: its tables or lists are nested too deeply"),
        ("\ufeffa = 1\n", ""),
    ],
)
def test_what_the_parser_cannot_take(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text, encoding="utf-8")
    if not told:
        toml.read_toml(path, path.name)
        return
    with pytest.raises(SidelitError) as caught:
        toml.read_toml(path, path.name)
    assert str(caught.value) == told
