"""What the cells of the labs show: `make record ARGS=labs` runs all of them, `ARGS=labs/01_NAME` one.

Each lab runs in a Jupyter kernel of its own, with the solutions, once for each language of the site. The
pages show what it printed and drew, from `site/recorded/labs/LANGUAGE/LAB.json`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tools.record import frame

from sidelit.config import config
from sidelit.labs import cells
from sidelit.labs.outputs import FOLDER

NAME = "labs"
# A lab takes three minutes at the most.
LIMIT_S = 180
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def chosen(wanted: str) -> list[tuple[str, str]]:
    """The labs that a word of the command line means, each with one language."""
    made = config.load(frame.ROOT / "site" / "sidelit.toml")
    _, _, stem = wanted.partition("/")
    labs = [lab.stem for lab in made.labs.lessons if stem in ("", lab.stem)]
    if not labs:
        sys.exit(f"there is no lab {stem!r}; choose from {', '.join(lab.stem for lab in made.labs.lessons)}")
    return [(lab, lang) for lab in labs for lang in made.languages]


def make(stem: str, lang: str) -> Path:
    """Run a lab in a language and write what its cells have shown."""
    path = f"notebooks/{stem}.py"
    found = cells.read((frame.ROOT / path).read_text("utf-8"), path)
    own = [cell for cell in found if not cell.markdown]
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(cells.solution(cell.text)) for cell in own]
    )
    run(notebook, lang, path, [cell.first for cell in own])
    shown = {cell.name: list(outputs(made.outputs)) for cell, made in zip(own, notebook.cells, strict=True)}
    record = {"data": {name: each for name, each in shown.items() if each}, **frame.origin(f"{NAME}/{stem}")}
    return frame.write(frame.ROOT / "site" / FOLDER / lang / f"{stem}.json", record)


def run(notebook: Any, lang: str, path: str, lines: Sequence[int]) -> None:
    """Execute the cells in a fresh folder; an error ends the program with the place of its cell."""
    source = str(frame.ROOT / "src")
    environment = {**os.environ, "SHARDBOOK_LANG": lang, "PYTHONPATH": source}
    environment.pop("MPLBACKEND", None)
    with tempfile.TemporaryDirectory() as folder:
        environment["IPYTHONDIR"] = f"{folder}/ipython"
        client = NotebookClient(notebook, timeout=LIMIT_S, resources={"metadata": {"path": folder}})
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            done = sum(bool(cell.execution_count) for cell in notebook.cells)
            sys.exit(f"{path}:{lines[max(done - 1, 0)]}: the cell fails:\n{_ESCAPES.sub('', str(error))}")


def outputs(shown: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, str]]:
    """What a cell has shown, as pages want it: texts that follow each other are one."""
    text = ""
    for each in shown:
        kind = each["output_type"]
        svg = each["data"].get("image/svg+xml") if kind in ("display_data", "execute_result") else None
        if svg is None:
            text += said(each)
            continue
        yield from left(text)
        text = ""
        yield {"svg": svg}
    yield from left(text)


def said(output: Mapping[str, Any]) -> str:
    """The text of an output."""
    if output["output_type"] == "stream":
        return _ESCAPES.sub("", output["text"])
    if output["output_type"] == "execute_result":
        return str(output["data"].get("text/plain", "")) + "\n"
    return ""


def left(text: str) -> Iterator[dict[str, str]]:
    """What is left of a text: of a line that was written over, such as a progress bar, its last state.

    >>> list(left("\\r 50 %\\r     \\rdone\\n"))
    [{'text': 'done\\n'}]
    """
    # A bar that was removed leaves blanks.
    lines = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))
    if (shown := "\n".join(lines)).strip():
        yield {"text": shown}
