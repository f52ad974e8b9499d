"""The benchmark is never run as a test, but its command line has to be there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def benchmark(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_the_benchmark_explains_its_options() -> None:
    run = benchmark("--help")
    assert run.returncode == 0, run.stderr
    for option in ("--json", "--pairs", "--quick", "--steps", "--vocabulary"):
        assert option in run.stdout


def test_a_folder_that_is_missing_is_told_before_anything_runs() -> None:
    run = benchmark("--json", "nowhere/figures.json")
    assert run.returncode == 1
    assert run.stderr == "--json nowhere/figures.json: there is no folder nowhere; make it first\n"
