"""The committed notebooks: they are what their sources make, and a student's runs up to its blanks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from lab_kernel import LIMIT, ROOT, assert_quiet, assert_told, execute
from press.project import sidelit

NOTEBOOKS = ROOT / "notebooks"
LABS = sorted(each.stem for each in NOTEBOOKS.glob("*.py"))
# Two stand for the others where time is short.
ROWS = [
    pytest.param(each, marks=[pytest.mark.full, *[pytest.mark.nightly] * (each[:2] not in ("01", "03"))])
    for each in LABS
]


def read(folder: str, name: str) -> Any:
    return nbformat.read(NOTEBOOKS / folder / f"{name}.ipynb", as_version=4)


@pytest.mark.full
def test_the_notebooks_are_what_their_sources_make() -> None:
    sidelit("lab", "--check", cwd=ROOT)


@pytest.mark.parametrize("name", LABS)
@pytest.mark.parametrize("kind", ["", "teacher/"])
def test_the_code_and_the_ids_are_the_same_in_every_language(kind: str, name: str) -> None:
    english = read(f"{kind}en", name).cells
    assert any(cell.cell_type == "code" for cell in english)
    for language in ("ja", "zh"):
        translated = read(f"{kind}{language}", name).cells
        assert [cell.id for cell in translated] == [cell.id for cell in english]
        assert [cell for cell in translated if cell.cell_type == "code"] == [
            cell for cell in english if cell.cell_type == "code"
        ]


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.timeout(LIMIT)
def test_a_student_s_notebook_runs_up_to_its_blanks_and_says_what_is_blank(name: str, tmp_path: Path) -> None:
    notebook = read("en", name)
    execute(notebook, tmp_path, cold=False)
    graded = [cell.metadata.get("nbgrader", {}) for cell in notebook.cells]
    first = next(number for number, cell in enumerate(graded) if cell.get("solution"))
    before = notebook.cells[:first]
    assert any(cell.cell_type == "code" for cell in before)
    assert_quiet(before)
    checks = [number for number, cell in enumerate(graded) if cell.get("grade")]
    assert len(checks) == sum(cell.get("solution", False) for cell in graded)
    for number in checks:
        assert_told(notebook.cells[number], "is still blank", graded[number]["grade_id"])
