"""The comparison of saving and loading: all ways are timed in turns, and ratios are of one round."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import ranks
from warm import start

ROOT = Path(__file__).parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.launch import Size  # noqa: E402
from benchmarks.saving import PAIRS, absolute, compare, measure, relative  # noqa: E402

SMALL = Size(layers=1, width=8, heads=1, context=8, vocabulary=30)


def measured(folder: Path) -> dict[str, list[float]]:
    return measure(folder, SMALL, 2, cold=True)


@pytest.mark.full
def test_each_way_is_timed_in_each_round(tmp_path: Path) -> None:
    seconds = ranks.run(2, measured, tmp_path)[0]
    ways = [*PAIRS, *PAIRS.values()]
    assert seconds.keys() == {f"{act}_{way}" for act in ("save", "load") for way in ways}
    assert all(len(each) == 2 and min(each) > 0 for each in seconds.values())
    # Ours and PyTorch's hold the same bytes: 3 numbers for each parameter, or one.
    sizes = {way: sum(f.stat().st_size for f in (tmp_path / way).rglob("*.*")) for way in ways}
    assert 2 * sizes["torch_model"] < sizes["torch_all"]
    assert set(sizes) == {path.name for path in tmp_path.iterdir()}


def test_a_ratio_is_of_one_round() -> None:
    ways = {"checkpoints": [4.0, 9.0, 8.0], "torch_all": [2.0, 3.0, 2.0], "folder": [1.0] * 3}
    ways["torch_model"] = [2.0] * 3
    figures = compare({f"{act}_{way}": each for way, each in ways.items() for act in ("save", "load")}, 2)
    assert figures["save_checkpoints_ratio_n2"] == 3.0
    assert figures["save_folder_ratio_n2"] == 0.5
    assert figures["load_torch_all_seconds_n2"] == 2.0
    assert "load_checkpoints     8.000\n" in absolute(figures, [2])
    assert "load_folder_ratio_n2" in relative(figures)


@pytest.mark.nightly
def test_the_command_writes_its_figures(tmp_path: Path) -> None:
    size = [
        "--layers",
        "1",
        "--width",
        "8",
        "--heads",
        "1",
        "--context",
        "8",
        "--vocabulary",
        "30",
        "--rounds",
        "1",
        "--ranks",
        "1",
    ]
    file = tmp_path / "figures.json"
    run = start("-m", "benchmarks.saving", *size, "--folder", str(tmp_path), "--json", str(file), cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert "save_checkpoints_ratio_n1" in run.stdout
    assert float(json.loads(file.read_text())["load_folder_ratio_n1"]) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
