"""Hostile inputs do not hold a build: a process that takes too much time or memory for one is ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from press.hostile import cases, limited

FILES = ("scripts", "floods", "sources", "data")


@pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.nightly) for kind in FILES])
def test_none_takes_more_than_ten_seconds_or_500_megabytes(tmp_path: Path, kind: str) -> None:
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, limited.__file__, str(tmp_path), kind]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([tests, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-300:]}\n{done.stderr[-3000:]}"
    # Each was printed, or refused in sentences; a mistake of the press itself would be a traceback.
    assert done.stdout.count(" s, printed\n") + done.stdout.count(" s, refused: ") == len(cases.read(kind))


def test_there_are_two_hundred() -> None:
    assert sum(len(cases.read(kind)) for kind in FILES) + len(cases.file_names()) > 200


@pytest.mark.full
def test_a_process_that_takes_too_much_is_ended(tmp_path: Path) -> None:
    """The limits hold: without them the test above would hold for anything."""
    source = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from pathlib import Path
from press.hostile import limited
def endless(folder, case):
    if case["name"] == "a script":
        while True:
            pass
limited.KINDS["scripts"] = endless
limited.SECONDS = 2
limited.main(Path({str(tmp_path)!r}), "scripts", ["a script"])
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode < 0
    assert done.stdout == "a script: "
