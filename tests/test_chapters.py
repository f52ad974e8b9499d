"""What every chapter promises: its examples hold, its command runs something, its length is a chapter's."""

from __future__ import annotations

import ast
import doctest
import importlib
import io
import re
import shlex
import tokenize
from pathlib import Path

import pytest

from sidelit.config import config
from sidelit.errors import SidelitError
from sidelit.site import backlinks

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# Their examples talk to another rank; tests/book/foundations/test_collectives.py runs them on two.
ON_TWO_RANKS = {"shardbook.foundations.collectives"}
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
WITH_EXAMPLES = [
    name
    for path in SOURCES
    if re.search(r"^ *>>> ", path.read_text("utf-8"), re.MULTILINE)
    and (name := ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)) not in ON_TWO_RANKS
]


@pytest.mark.cases(now=65)
@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_the_examples_in_the_text_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def lines_of_code(path: Path) -> int:
    """The lines that hold code: docstrings, comments and blank lines explain it and are not counted."""
    text = path.read_text("utf-8")
    prose = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {line for t in tokens if t.type not in NO_CODE for line in range(t.start[0], t.end[0] + 1)}
    return len(code - prose)


@pytest.mark.cases(now=491)
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT / "src").as_posix())
def test_a_module_is_small(path: Path) -> None:
    """It has at most 500 lines of code; explanation never has to leave to make room."""
    assert lines_of_code(path) <= 500


def test_the_command_of_every_chapter_runs_something() -> None:
    chapters = config.load(ROOT / "site" / "sidelit.toml").chapters
    for command in (chapter.run for chapter in chapters if "pytest" in chapter.run):
        words = shlex.split(command)
        assert words[:3] == ["python", "-m", "pytest"]
        assert all((ROOT / word).is_file() for word in words[3:]), command
    for command in (chapter.run for chapter in chapters if "shardbook.train" in chapter.run):
        assert "-m shardbook.train" in command


def test_every_chapter_names_tests_that_prove_it() -> None:
    """They are there, and pytest takes them for tests."""
    made = config.load(ROOT / "site" / "sidelit.toml")
    faults: list[SidelitError] = []
    found = backlinks.proofs(made, faults.append)
    assert [str(fault) for fault in faults] == []
    assert [chapter.source for chapter in made.chapters if not chapter.proves] == []
    for proof in found:
        assert Path(proof.path).name.startswith("test_"), proof
        assert all(part.startswith(("test_", "Test")) for part in proof.name.split("::") if part), proof
