"""What every chapter promises: its examples hold, its command runs something, its length is a chapter's."""

from __future__ import annotations

import doctest
import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sidelit import config

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").glob("*/*.py"))
# Their examples talk to another rank; tests/book/test_collectives.py runs them on two.
ON_TWO_RANKS = {"shardbook.collectives", "shardbook.ledger"}
WITH_EXAMPLES = [
    name
    for path in SOURCES
    if re.search(r"^ *>>> ", path.read_text("utf-8"), re.MULTILINE)
    and (name := f"{path.parent.name}.{path.stem}") not in ON_TWO_RANKS
]


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_in_the_text_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_module_is_at_most_300_lines(path: Path) -> None:
    assert len(path.read_text("utf-8").splitlines()) <= 300


def test_the_command_of_every_chapter_runs_something() -> None:
    chapters = config.load(ROOT / "site" / "sidelit.toml").chapters
    commands = {shlex.split(chapter.run)[-1]: chapter.run for chapter in chapters if "pytest" in chapter.run}
    collect = [sys.executable, "-m", "pytest", "tests/book", "--collect-only", "-q"]
    found = subprocess.run(collect, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for word, command in commands.items():
        assert any(word in line.partition("tests/")[2] for line in found.splitlines()), command
    for command in (chapter.run for chapter in chapters if "shardbook.train" in chapter.run):
        assert "-m shardbook.train" in command
