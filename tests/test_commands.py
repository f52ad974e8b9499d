"""The list of commands: its examples are command lines, and no door of the library is missing."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.record import commands  # noqa: E402


def test_no_program_of_the_library_is_missing() -> None:
    source = ROOT / "src/shardbook"
    doors = {
        ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__main__")
        for path in source.rglob("*.py")
        if re.search(r'^if __name__ == "__main__":', path.read_text("utf-8"), re.M)
    }
    assert {*commands.DOORS} == doors


@pytest.mark.parametrize("name", commands.DOORS)
def test_the_example_of_a_program_is_a_command_line(name: str) -> None:
    _, example = commands.DOORS[name]
    before, found, given = example.partition(f"-m shardbook.{name}")
    assert found, before
    commands.parser(name).parse_args(shlex.split(given))


def test_the_example_of_each_command_of_the_press_is_one() -> None:
    subs = commands.subcommands(commands.press.parser())
    assert {*commands.PRESS} == {*subs}
    for name, sub in subs.items():
        sub.parse_args(shlex.split(commands.PRESS[name]))
