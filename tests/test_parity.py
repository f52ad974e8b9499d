"""The comparison of 16 bits with FP32: it trains, and its arithmetic and its command line are there."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import ranks
from matrix import rows
from warm import start

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.curve import RIGHT, distances, draw  # noqa: E402
from benchmarks.parity import BAND, MODES, Curve, distance, parse, table, train  # noqa: E402

TINY = ["--steps", "3", "--layers", "1", "--width", "16", "--heads", "2", "--context", "16"]


def trained() -> dict[str, Any]:
    options = parse(TINY)
    return {name: asdict(train(mode, 0, options)) for name, mode in MODES.items()}


@pytest.mark.full
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


def test_the_picture_shows_each_curve_and_its_distance_where_the_numbers_say() -> None:
    exact = [[4.0, 2.0, 2.0, 1.0]] * 2
    losses = {
        "fp32": exact,
        "near": [[4.0, 2.0, 2.0, 1.0], [4.0, 2.0, 2.0, 1.02]],
        "far": [[4.0, 2.0, 2.0, 3.0]] * 2,
    }
    picture = ElementTree.fromstring(draw(losses, "fp32", band=0.01))
    name = "{http://www.w3.org/2000/svg}"
    words = [text.text for text in picture.iter(f"{name}text")]
    assert {"near", "far", "+1.0%", "0", "-2.0%", "4.0", "1.0", "step 2"} <= set(words)
    base, near, apart, far, beyond = (
        [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
        for line in picture.iter(f"{name}polyline")
    )
    assert len(base) == len(near) == len(far) == 4
    # A panel runs from its largest value at the top to its least at the bottom.
    assert base[0][1] == 26
    assert base[-1] == (RIGHT, 176)
    assert 26 < near[-1][1] < 176
    # The mean of two runs is 1 % above, at the edge of a band that takes up the middle half of its panel.
    assert apart[-1] == (RIGHT, pytest.approx(222 + 130 / 4, abs=0.1))
    assert apart[0][1] == 222 + 130 / 2
    assert beyond[-1][1] == 222


def test_a_distance_is_taken_between_means_over_a_window() -> None:
    assert list(distances([1.0, 3.0, 5.0], [1.0, 1.0, 3.0], window=2)) == [1.0, 1.0]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return start("-m", "benchmarks.parity", *arguments, cwd=ROOT)


@pytest.mark.full
def test_the_command_explains_itself() -> None:
    run = command("--help")
    assert run.returncode == 0, run.stderr
    assert all(f"--{option}" in run.stdout for option in ("steps", "seeds", "ranks", "stage", "json", "svg"))


@pytest.mark.parametrize("option", rows(["--json", "--svg"], now=["--json"]))
def test_a_folder_that_is_missing_is_told_before_anything_runs(option: str) -> None:
    run = command(option, "nowhere/curves")
    assert run.returncode == 1
    assert run.stderr == f"{option} nowhere/curves: there is no folder nowhere; make it first\n"
