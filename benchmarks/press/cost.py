"""What a run of a program costs: processor time, wall time and the peak of its memory.

The figures are those that the system kept for the process when it ended, with all processes that it started
and waited for. So the work of a pool counts, wherever it was done.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of all processors, seconds on the wall, and the most bytes that one process had at a time."""

    cpu: float
    wall: float
    peak: int


def run(command: Sequence[str | Path], folder: Path, **more: str) -> Cost:
    """Run a program in a folder with more variables around it. A program that fails ends the benchmark."""
    with (folder / "output.txt").open("w+b") as said:
        start = time.perf_counter()
        # What it prints is of no use here, and a full pipe would stop it.
        process = subprocess.Popen(
            list(map(str, command)), cwd=folder, stdout=said, stderr=said, env=_around(more)
        )
        _, status, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            said.seek(0)
            sys.exit(f"{' '.join(map(str, command[:6]))} … failed:\n{said.read().decode()[-2000:]}")
    return Cost(used.ru_utime + used.ru_stime, wall, used.ru_maxrss * 1024)


def _around(more: Mapping[str, str]) -> dict[str, str]:
    """A place on the path for the press that stands here, wherever another one is installed."""
    here = Path(__file__).parent.parent.parent / "src"
    return {**os.environ, "PYTHONPATH": str(here), **more}


def sidelit(*arguments: str | Path) -> list[str | Path]:
    """The command line of the press."""
    return [sys.executable, "-m", "sidelit", *arguments]
