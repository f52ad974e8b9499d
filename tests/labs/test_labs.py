"""Every lab in a real Jupyter kernel: its solutions pass, its blanks and the usual wrong answers are told so.

The cells of a lab run in their order, with the solutions. Behind each check stand further pairs of cells: an
answer that is not right, and the check again, which has to fail with the sentence that
`answers/LAB.toml` names. So a lab runs once, and what it shows is what a reader sees. Each lab is judged with
its blanks and one wrong answer of each exercise, the first lab in a kernel that starts as a reader's does. In
`make test-all` every lab has such a kernel, and gets every wrong answer.
"""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pytest

from lab_kernel import LIMIT, ROOT, assert_quiet, assert_told, execute, printed
from sidelit.labs import cells
from sidelit.labs.cells import Cell
from tiers import rows

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LABS = sorted(each.stem for each in (ROOT / "notebooks").glob("*.py"))
FIRST = LABS[0]


@dataclass(frozen=True)
class Try:
    """An answer that is not right.

    :param cell: its number in the notebook; the check follows
    :param told: part of what the check has to say
    """

    cell: int
    why: str
    told: str


def read(name: str) -> tuple[Cell, ...]:
    path = f"notebooks/{name}.py"
    return cells.read((ROOT / path).read_text("utf-8"), path)


def answers(name: str) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = tomllib.loads(
        (Path(__file__).parent / "answers" / f"{name}.toml").read_text("utf-8")
    )
    return found


@pytest.mark.parametrize("name", LABS)
def test_every_exercise_has_at_least_five_wrong_answers_and_a_hint(name: str) -> None:
    found, given = read(name), answers(name)
    wanted = [cell.exercise for cell in found if cell.exercise]
    assert wanted
    assert list(given) == wanted
    assert {each: len(given[each]) for each in wanted if len(given[each]) < 5} == {}
    for each in wanted:
        (at,) = [number for number, cell in enumerate(found) if cell.exercise == each]
        assert "::: hint" in found[at - 1].text, each


def notebook_of(name: str, most: int | None) -> tuple[Any, list[Try]]:
    """A notebook that runs the lab, with the further pairs of cells.

    :param most: how many wrong answers of each exercise there are at most
    """
    made: list[str] = []
    tries: list[Try] = []
    given = answers(name)
    solutions: dict[str, Cell] = {}
    for cell in read(name):
        if cell.markdown:
            continue
        if cell.exercise:
            solutions[cell.exercise] = cell
        made.append(cells.solution(cell.text))
        if not cell.check:
            continue
        solution = solutions[cell.check]
        names = defined(cells.solution(solution.text))
        blanks = [
            ("blank", cells.student(solution.text), "is still blank"),
            ("missing", "", "is still blank"),
        ]
        wrong = [(each["why"], each["answer"], each["told"]) for each in given[cell.check][:most]]
        for why, answer, told in [*blanks, *wrong]:
            # Nothing of the answer before is left.
            forget = f"for name in {names!r}: globals().pop(name, None)\n"
            tries.append(Try(len(made), why, told))
            made += [forget + answer, cell.text]
        made.append(cells.solution(solution.text))
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in made]), tries


def defined(code: str) -> list[str]:
    """The names that a cell defines."""
    found = []
    for node in ast.parse(code).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found.append(name)
            case ast.Assign(targets=targets):
                found += [each.id for each in targets if isinstance(each, ast.Name)]
    return found


@pytest.mark.parametrize("most", [1, pytest.param(None, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", rows(LABS, now=["06_checkpointing"]))
@pytest.mark.timeout(LIMIT)
def test_a_lab_runs_and_judges(name: str, most: int | None, tmp_path: Path) -> None:
    notebook, tries = notebook_of(name, most)
    cold = most is None or name == FIRST
    if cold:
        notebook.cells.append(nbformat.v4.new_code_cell(PEAK))
    execute(notebook, tmp_path, cold=cold)
    judge(notebook, tries)
    if cold:
        assert 10**8 < int(printed(notebook.cells[-1])) < 2 * 10**9


# The server has waited for its ranks, and the kernel waits for the server: so its largest child is the
# largest of them all. The pages that a rank shares with the server count for both.
PEAK = """\
import resource, sys
from shardbook.labs import lab_ranks
lab_ranks.SERVER.close()
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
print(peak * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.nightly
@pytest.mark.parametrize("name", LABS)
@pytest.mark.parametrize("language", ["ja", "zh"])
@pytest.mark.timeout(LIMIT)
def test_the_solutions_of_a_lab_run_in_each_language(language: str, name: str, tmp_path: Path) -> None:
    codes = [cells.solution(cell.text) for cell in read(name) if not cell.markdown]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in codes])
    execute(notebook, tmp_path, language)
    assert_quiet(notebook.cells)


def judge(notebook: Any, tries: list[Try]) -> None:
    """Solutions print and draw only; every other answer is told what is wrong with it."""
    answered = {each.cell for each in tries} | {each.cell + 1 for each in tries}
    assert_quiet([cell for number, cell in enumerate(notebook.cells) if number not in answered])
    for each in tries:
        # The answer's own cell fails only where a blank stands outside of a function.
        errors = [output for output in notebook.cells[each.cell].outputs if output.output_type == "error"]
        assert all(error.ename == "NotImplementedError" for error in errors), each
        assert_told(notebook.cells[each.cell + 1], each.told, str(each))
