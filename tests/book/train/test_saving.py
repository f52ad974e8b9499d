"""A run that is ended at any moment goes on, and its losses are those of a run that was left alone."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import warm
from matrix import rows
from warm import TORCHRUN, start

MORTAL = Path(__file__).parents[2] / "mortal.py"
OPTIONS = (
    "--steps 20 --layers 2 --width 16 --heads 2 --context 16 --batch 2 --device cpu --precision fp16 "
    "--evaluate-batches 1 --sample 0 --schedule cosine --warmup 4 --clip 1 --save-every 3"
)
LINE = OPTIONS.split()


def losses(file: Path) -> dict[int, tuple[float, float]]:
    """Of each step its loss and the norm of its gradient, all of their digits."""
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    found = {line["step"]: (line["loss"], line["norm"]) for line in lines}
    assert len(found) == len(lines)
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """The losses of a run that is left alone, and saves nothing."""
    file = tmp_path_factory.mktemp("undisturbed") / "losses"
    run = start(*TORCHRUN, "2", "-m", "shardbook.train", *LINE, "--jsonl", str(file))
    assert run.returncode == 0, run.stderr
    found = losses(file)
    assert [*found] == [*range(1, 21)]
    assert found[20][0] < found[1][0]
    return found


# A step has three units, each of which is gathered twice.
DEATHS = [
    ("forward", 0, 40),
    ("forward", 1, 40),
    ("backward", 0, 40),
    ("backward", 1, 40),
    ("reduce", 0, 40),
    ("reduce", 1, 40),
    ("optimizer", 0, 13),
    ("optimizer", 1, 13),
    ("plan", 0, 3),
    ("plan", 1, 3),
    ("write", 0, 3),
    ("write", 1, 3),
    ("index", 0, 3),
    ("sum", 0, 3),
    ("sum", 1, 3),
    ("rename", 0, 3),
    ("named", 0, 3),
    ("remove", 0, 2),
]


@pytest.mark.parametrize(
    ("moment", "rank", "count"), rows(DEATHS, now=[("backward", 1, 40), ("rename", 0, 3)])
)
def test_a_rank_that_is_killed_costs_some_steps_and_changes_no_bit(
    undisturbed: dict[int, Any], tmp_path: Path, moment: str, rank: int, count: int
) -> None:
    file, folder = tmp_path / "losses", tmp_path / "run"
    options = [*LINE, "--jsonl", str(file), "--checkpoints", str(folder)]
    mortal = [str(MORTAL), moment, str(rank), str(count)]
    run = start(*TORCHRUN, "2", "--max-restarts", "1", *mortal, *options)
    assert run.returncode == 0, run.stderr
    assert "exitcode: -9" in run.stderr, run.stderr
    assert re.search(r"going on after step [1-9]", run.stderr), run.stderr
    assert losses(file) == undisturbed
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000018", "step-00000020"]


def test_sigterm_saves_and_the_same_line_goes_on(undisturbed: dict[int, Any], tmp_path: Path) -> None:
    file, folder = tmp_path / "losses", tmp_path / "run"
    line = [*TORCHRUN, "2", "-m", "shardbook.train", *LINE, "--jsonl", str(file)]
    line += ["--checkpoints", str(folder), "--save-every", "100", "--save-in-background"]
    with subprocess.Popen(
        [warm.python(), *line], stderr=subprocess.PIPE, text=True, env=warm.environment()
    ) as job:
        assert job.stderr is not None
        said = []
        for told in job.stderr:
            said.append(told)
            if "step 2/20" in told:
                job.terminate()
        assert job.wait() != 0
    left = re.search(r"saved after step (\d+), as SIGTERM wants this job to end", "".join(said))
    assert left, said
    assert [path.name for path in folder.iterdir()] == [f"step-{int(left[1]):08d}"]
    assert 2 < int(left[1]) < 20
    run = start(*line)
    assert run.returncode == 0, run.stderr
    assert f"going on after step {left[1]}" in run.stderr
    assert losses(file) == undisturbed


def test_a_run_that_is_done_says_so(tmp_path: Path) -> None:
    line = ["-m", "shardbook.train", *LINE, "--checkpoints", str(tmp_path), "--steps", "5"]
    assert start(*line).returncode == 0
    run = start(*line)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "all 5 steps were taken before; more --steps would go on\n"
    # Another model, and another text.
    for options, sentence in (
        (["--width", "32"], r"has shape .* in the checkpoint and"),
        (["--data", __file__], "the position was saved with text"),
    ):
        run = start(*line, "--steps", "9", *options)
        assert run.returncode == 1
        assert re.search(sentence, run.stderr), run.stderr
        assert run.stderr.count("\n") == 1
