"""A notebook of a lab, executed in a real kernel, of which no process stays."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import psutil
from nbclient import NotebookClient

import warm

ROOT = Path(__file__).parents[1]
# A lab takes under three minutes on two cores.
LIMIT = 180


def execute(notebook: Any, directory: Path, language: str = "en", *, cold: bool = True) -> None:
    """Run all cells, also those behind an error, in a kernel that starts in a directory.

    :param language: of what the checks say
    :param cold: whether the kernel and the server of its ranks start as a reader's do, in ten seconds
    """
    mark = uuid.uuid4().hex
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        "IPYTHONDIR": str(directory / "ipython"),
        "SHARDBOOK_LANG": language,
        "MARK_OF_THIS_RUN": mark,
    }
    environment.pop("MPLBACKEND", None)
    client = NotebookClient(
        notebook, timeout=LIMIT, allow_errors=True, resources={"metadata": {"path": str(directory)}}
    )
    manager = client.create_kernel_manager()
    if not cold:
        manager.kernel_spec.argv[0] = warm.python()
    client.execute(env=environment)
    # The server of the ranks ends when it sees that the kernel has ended.
    assert psutil.wait_procs(left(mark), timeout=60)[1] == []


def left(mark: str) -> list[psutil.Process]:
    """The processes of a run that still exist."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MARK_OF_THIS_RUN") == mark:
                found.append(process)
        except psutil.Error:
            continue
    return found


def quiet(output: Any) -> bool:
    """Whether an output is neither an error nor a warning."""
    return output.output_type in ("display_data", "execute_result") or (
        output.output_type == "stream" and output.name == "stdout" and "Warning" not in output.text
    )


def printed(cell: Any) -> str:
    """What is left of the last line that a cell has printed; the time that ranks take is written over."""
    text = "".join(each.text for each in cell.outputs if each.output_type == "stream")
    return text.rstrip("\n").rpartition("\n")[2].rpartition("\r")[2]


def assert_quiet(cells: list[Any]) -> None:
    """Cells have printed and drawn only."""
    for cell in cells:
        shown = [each for each in cell.get("outputs", []) if not quiet(each)]
        assert shown == [], f"{cell.source}\n{shown}"


def assert_told(cell: Any, told: str, why: str) -> None:
    """A check has failed with one sentence for the reader, and without frames."""
    errors = [output for output in cell.outputs if output.output_type == "error"]
    assert errors, f"{why} was taken for right"
    said = "\n".join(errors[0].traceback)
    assert errors[0].ename == "NotYet", f"{why}\n{said}"
    assert told in said, f"{why}\n{said}"
    assert "Traceback" not in said, f"{why}\n{said}"
