"""What a run leaves to a longer one, and what it says when a test has failed."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiers

ROOT = Path(__file__).parent.parent
MARKS = """
import pytest
from tiers import rows

@pytest.mark.cases(now=1, ci=3)
@pytest.mark.parametrize("number", rows(range(6), now=[2, 5]))
def test_numbers(number): pass

@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("word", ["a", pytest.param("on a GPU", marks=pytest.mark.gpu), "b"])
def test_words(word): pass

@pytest.mark.nightly
def test_slow(): pass
"""


def pytest_of(folder: Path, *arguments: str) -> list[str]:
    """What `pytest` says of the tests in a folder, with the settings of this project."""
    start = [sys.executable, "-m", "pytest", "-c", ROOT / "pyproject.toml", "--rootdir", folder, "-q"]
    command = [*start, "-p", "conftest", "-p", "no:cacheprovider", *arguments]
    said = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout
    return said.splitlines()


@pytest.mark.full
@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ([], {"numbers[5]", "words[a]"}),
        (["-m", "not gpu and not nightly"], {"numbers[0]", "numbers[2]", "numbers[5]", "words[a]"}),
        (["-m", "not gpu"], {*(f"numbers[{each}]" for each in range(6)), "words[a]", "words[b]", "slow"}),
    ],
    ids=["make test", "ci", "make test-all"],
)
def test_a_longer_run_tries_more_cases(tmp_path: Path, choice: list[str], chosen: set[str]) -> None:
    (tmp_path / "test_it.py").write_text(MARKS, "utf-8")
    said = pytest_of(tmp_path, "--collect-only", *choice, "test_it.py")
    assert {line.partition("::test_")[2] for line in said if "::" in line} == chosen


@given(st.integers(1, 60))
def test_cases_are_chosen_from_all_over(count: int) -> None:
    assert sorted(tiers.spread(count)) == [*range(count)]
    for some in range(1, count + 1):
        first = sorted(tiers.spread(count)[:some])
        assert max(b - a for a, b in itertools.pairwise([*first, count])) <= 3 * count / some


def test_what_is_claimed_is_proved_before_a_change_goes_in() -> None:
    """Of each file that the page of claims names, `.ci/run` runs some tests."""
    page = (ROOT / "site" / "pages" / "proved.md").read_text("utf-8")
    tables = re.findall(r"(?ms)^\| claim .*?\n\n", page)
    columns = [row.rsplit("|", 2)[1] for rows in tables for row in rows.split("\n")[2:] if row]
    named = {name for column in columns for name in re.findall(r"`([\w/.]+)`", column)}
    files = [path for name in named for path in paths(name)]
    assert len(files) > 100
    for path in files:
        tree = ast.parse(path.read_text("utf-8"))
        assert any(is_test(each) and not waits(each) for each in ast.walk(tree)), path
        assert not any(isinstance(each, ast.Assign) and waits(each) for each in tree.body), path


def paths(name: str) -> list[Path]:
    """The test files that a name on that page means."""
    place = ROOT / name if name.startswith("tests/") else ROOT / "tests" / "book" / name
    assert place.exists(), name
    return sorted(place.rglob("test_*.py")) if place.is_dir() else [place]


def is_test(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and node.name.startswith("test_")


def waits(node: ast.AST) -> bool:
    """Whether it is marked as a test that only `make test-all` runs."""
    written = node.decorator_list if isinstance(node, ast.FunctionDef) else [getattr(node, "value", node)]
    return any(ast.unparse(each) == "pytest.mark.nightly" for each in written)


@pytest.mark.full
def test_a_run_ends_with_what_failed_and_how_to_run_it_again(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_bad():\n    assert 1 == 2\n", "utf-8")
    said = pytest_of(tmp_path, "test_it.py")
    *_, title, again, _, name, end = said
    assert "to run one of those below again" in title
    assert again.endswith("-m pytest -m '' test_it.py::test_bad")
    assert name == "FAILED test_it.py::test_bad - assert 1 == 2"
    assert "1 failed in" in end
