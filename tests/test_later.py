"""What a run leaves to a longer one, and what it says when a test has failed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import later

ROOT = Path(__file__).parent.parent
TABLE = {
    "now": {"a.py": ["test_x[3]"]},
    "full": {"a.py": ["test_x"], "b.py": ["*"]},
    "matrix": {"a.py": ["test_y[late-*"], "b.py": ["test_z"]},
}


def test_what_says_more_of_a_name_wins() -> None:
    marks = {
        name: later.marks(name, TABLE)
        for name in ("a.py::test_x[3]", "a.py::test_x[2]", "a.py::test_y[late-1]", "a.py::test_y[cpu]")
    }
    assert [*marks.values()] == [[], ["full"], ["full", "matrix"], []]
    assert later.marks("b.py::test_z[1]", TABLE) == ["full", "matrix"]
    assert later.marks("b.py::test_w", TABLE) == ["full"]
    assert later.marks("c.py::test_x", TABLE) == []


def test_a_name_that_no_test_has_is_told() -> None:
    there = ["a.py::test_x[3]", "a.py::test_y[late-1]", "b.py::test_z"]
    assert later.gone(there, TABLE) == []
    assert later.gone(there[1:], TABLE) == ["a.py::test_x[3]", "a.py::test_x"]


def test_what_the_readme_claims_is_proved_before_a_change_goes_in() -> None:
    """Of each file that it names, `.ci/run` runs some tests."""
    (rows,) = re.findall(r"(?ms)^\| claim .*?\n\n", (ROOT / "README.md").read_text("utf-8"))
    columns = [row.rsplit("|", 2)[1] for row in rows.split("\n")[2:] if row]
    named = {name for column in columns for name in re.findall(r"`([\w/.]+)`", column)}
    files = [path for name in named for path in paths(name)]
    assert len(files) > 100
    table = later.table()
    now = {name for kind in ("now", "full") for name in table[kind]}
    for path in files:
        if path.relative_to(ROOT).as_posix() in now:
            continue
        tests = [each for each in ast.walk(ast.parse(path.read_text("utf-8"))) if is_test(each)]
        marks = [later.marks(f"{path.relative_to(ROOT).as_posix()}::{each.name}", table) for each in tests]
        assert any("matrix" not in each for each in marks), path


def paths(name: str) -> list[Path]:
    """The test files that a name of the README means."""
    place = ROOT / name if name.startswith("tests/") else ROOT / "tests" / "book" / name
    assert place.exists(), name
    return sorted(place.rglob("test_*.py")) if place.is_dir() else [place]


def is_test(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


@pytest.mark.full
def test_a_run_ends_with_what_failed_and_how_to_run_it_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_bad():\n    assert 1 == 2\n", "utf-8")
    command = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, "-q"]
    said = subprocess.run(
        [*command, "-p", "conftest", "-p", "no:cacheprovider", "test_it.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.splitlines()
    *_, title, again, _, name, end = said
    assert "to run one of those below again" in title
    assert again.endswith("-m pytest -m '' test_it.py::test_bad")
    assert name == "FAILED test_it.py::test_bad - assert 1 == 2"
    assert "1 failed in" in end
