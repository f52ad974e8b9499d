"""# One notebook

> The same cells in each language; only the words around the code differ, and its ids never do.

nbformat writes the file. What Jupyter would make up, such as ids, is given, so the same lab is the same bytes
on every machine. The metadata of exercises and of their checks are those of nbgrader, with which a course may
grade.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sidelit import requirements
from sidelit.labs import exercises, tools
from sidelit.labs.cells import Cell

# The format of nbgrader's metadata.
_SCHEMA = 3


# Colab begins with an empty machine. Elsewhere the cell finds what it needs and does nothing.
_INSTALL = """\
import importlib.util
import subprocess
import sys

if importlib.util.find_spec("{module}") is None:
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", {requirement}], check=True)"""


def notebook(
    cells: Sequence[Cell], words: Sequence[str], lang: str, *, teacher: bool, install: str = ""
) -> bytes:
    """Write the notebook of a lab.

    :param words: the Markdown of each cell; of a cell of code it is not looked at.
    :param lang: the tag of the language of the words.
    :param install: what the first cell of code installs where it is missing.
    :param teacher: whether the exercises keep their solutions.
    """
    made = tools.nbformat().v4.new_notebook(
        metadata={
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
            "lang": lang,
        }
    )
    made.nbformat_minor = 5
    made.cells = [_cell(cell, said, teacher) for cell, said in zip(cells, words, strict=True)]
    if install:
        code = _INSTALL.format(module=requirements.module(install), requirement=json.dumps(install))
        place = next((number for number, cell in enumerate(cells) if not cell.markdown), len(cells))
        made.cells.insert(place, tools.nbformat().v4.new_code_cell(code, id="install"))
    tools.nbformat().validate(made)
    return str(tools.nbformat().writes(made)).encode() + b"\n"


def _cell(cell: Cell, words: str, teacher: bool) -> Any:
    form = tools.nbformat().v4
    if cell.markdown:
        return form.new_markdown_cell(words, id=cell.name)
    code = cell.text if teacher else exercises.student(cell.text)
    return form.new_code_cell(code, id=cell.name, metadata=_graded(cell))


def _graded(cell: Cell) -> dict[str, object]:
    """What nbgrader wants to know: an exercise is the student's to write, its check is what counts."""
    if not cell.exercise and not cell.check:
        return {}
    about = {
        "grade": bool(cell.check),
        "grade_id": cell.name,
        "locked": bool(cell.check),
        "schema_version": _SCHEMA,
        "solution": bool(cell.exercise),
        "task": False,
    }
    return {"nbgrader": {**about, "points": cell.points} if cell.check else about}
