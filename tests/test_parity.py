"""The comparison of 16 bits with FP32: it trains, and its arithmetic and its command line are there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import ranks
from warm import start

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.parity import BAND, MODES, Curve, distance, distances, mean_of, parse, table, train  # noqa: E402

TINY = ["--steps", "3", "--layers", "1", "--width", "16", "--heads", "2", "--context", "16"]


def trained() -> dict[str, Any]:
    options = parse(TINY)
    return {name: asdict(train(mode, 0, options)) for name, mode in MODES.items()}


@pytest.mark.nightly
def test_all_modes_train_the_same_model_in_different_formats() -> None:
    first, second = ranks.run(2, trained, timeout=120)
    assert first == second
    runs = {name: Curve(**run) for name, run in first.items()}
    exact = runs.pop("fp32")
    assert exact.train[2] < exact.train[0] == pytest.approx(5.55, abs=0.05)
    for name, run in runs.items():
        assert run.train != exact.train, name
        assert distance({name: [run], "fp32": [exact]}, name) < BAND
        assert run.scale == (2.0**16 if MODES[name].scaled else 1.0)
    assert len({tuple(run.train) for run in runs.values()}) == len(runs)


def test_the_distance_is_the_largest_of_all_seeds_and_texts() -> None:
    exact = [Curve([9.0] * 18 + [2.0, 4.0], unseen=5.0, skipped=0, scale=1.0)] * 2
    other = [Curve([1.0] * 18 + [3.0, 3.0], unseen=5.05, skipped=2, scale=8.0)]
    other.append(Curve([1.0] * 18 + [3.0, 2.88], unseen=5.0, skipped=0, scale=8.0))
    curves = {"fp32": exact, "fp16 policy, scaled": other}
    assert exact[0].last == 3.0
    assert distance(curves, "fp16 policy, scaled") == pytest.approx(0.02)
    row = table(curves).splitlines()[2]
    assert row.split() == ["fp16", "policy,", "scaled", "2.9700", "5.0250", "2.00%", "1.0", "8"]


def test_a_curve_is_the_mean_of_its_runs_step_by_step() -> None:
    runs = [Curve([4.0, 2.0], unseen=1.0, skipped=0, scale=1.0), Curve([2.0, 1.0], 1.0, 0, 1.0)]
    assert mean_of(runs) == [3.0, 1.5]


def test_a_distance_is_taken_between_means_over_a_window() -> None:
    assert list(distances([1.0, 3.0, 5.0], [1.0, 1.0, 3.0], window=2)) == [1.0, 1.0]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return start("-m", "benchmarks.parity", *arguments, cwd=ROOT)


@pytest.mark.full
def test_the_command_explains_itself() -> None:
    run = command("--help")
    assert run.returncode == 0, run.stderr
    assert all(f"--{option}" in run.stdout for option in ("steps", "seeds", "ranks", "stage", "json"))


def test_a_folder_that_is_missing_is_told_before_anything_runs() -> None:
    run = command("--json", "nowhere/curves")
    assert run.returncode == 1
    assert run.stderr == "--json nowhere/curves: there is no folder nowhere; make it first\n"
