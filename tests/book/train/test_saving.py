"""A run that is ended at any moment goes on, and its losses are those of a run that was left alone."""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist

import ranks
import soak
import warm
from matrix import rows
from shardbook.command import Mistake
from shardbook.train.assemble import Run, assemble
from shardbook.train.loop import step
from shardbook.train.options import parse
from shardbook.train.saving import Saves
from shardbook.train.text import prepare, readers
from shardbook.train.tracking import json_lines
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


@pytest.mark.parametrize(("moment", "rank", "count"), rows(DEATHS, now=[], turn=3))
def test_a_rank_that_is_killed_costs_some_steps_and_changes_no_bit(
    undisturbed: dict[int, Any], tmp_path: Path, moment: str, rank: int, count: int
) -> None:
    file, folder = tmp_path / "losses", tmp_path / "run"
    options = [*LINE, "--jsonl", str(file), "--checkpoints", str(folder)]
    mortal = [str(MORTAL), f"{moment}:{rank}:0:{count}", str(tmp_path / "trace")]
    run = start(*TORCHRUN, "2", "--max-restarts", "1", *mortal, *options)
    assert run.returncode == 0, run.stderr
    # The launcher names the rank that has ended first, which may be one that lost this one.
    assert '"dies"' in (tmp_path / "trace" / f"rank-{rank}").read_text("utf-8"), run.stderr
    assert re.search(r"going on after step [1-9]", run.stderr), run.stderr
    assert losses(file) == undisturbed
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000018", "step-00000020"]


@pytest.mark.full
def test_ranks_that_are_killed_one_after_the_other_change_no_bit(capsys: pytest.CaptureFixture[str]) -> None:
    """The short form of `make soak`: one run with three kills, one before anything was saved."""
    assert soak.main(["--kills", "3", "--seed", "34", "--ranks", "2", "--most", "3"]) == 0
    said = capsys.readouterr().out
    assert "3/3  2 ranks  sum:0:0:2,backward:0:11:4,named:0:18:1\n" in said
    assert re.search(r"^ +all +1 +3 +3 .* yes$", said, re.M), said


def test_a_soak_tells_what_differs() -> None:
    lines = [[{"attempt": 0, "step": step, "loss": "1.0", "norm": "1.0"} for step in (1, 2)]]
    alone = soak.Left(0, "", lines, [("step", 1), ("step", 2)])
    assert soak.compared(alone, alone).differences == []
    again = [[*lines[0][:1], {"attempt": 1, "step": 1, "loss": "1.1", "norm": "1.0"}, *lines[0][1:]]]
    assert soak.compared(soak.Left(0, "", again, alone.log), alone).differences == [
        "rank 0: step 1 has another loss or norm"
    ]
    found = soak.compared(soak.Left(1, "why", [lines[0][:1]], alone.log[:1]), alone)
    assert found.differences == [
        "exit code 1:\nwhy",
        "the lines of --jsonl differ",
        "rank 0: not every step was taken",
    ]
    assert soak.table({2: found}, 7, 1.0).count(" no") == 2


def said_in_two_steps(run: Run, saves: Saves) -> str:
    """What a save is refused with, at the latest by the one after it."""
    try:
        for _ in range(2):
            step(run)
            saves.after_step()
    except Mistake as mistake:
        return str(mistake)
    return "nothing"


def save_without_room(folder: Path) -> tuple[list[str], list[str]]:
    options = parse([*LINE, "--checkpoints", str(folder), "--save-every", "1"])
    prepare(options)
    said = []
    for background in (False, True):
        options.save_in_background = background
        run = assemble(options, readers(options, torch.device("cpu"))[0], torch.device("cpu"))
        with Saves(options, run) as saves:
            step(run)
            saves.after_step()
            assert saves.checkpoints is not None
            saves.checkpoints.wait()
            full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with patch.object(os, "fsync", Mock(side_effect=full)):
                said.append(said_in_two_steps(run, saves))
    dist.barrier()
    return said, sorted(path.name for path in folder.iterdir())


def test_a_full_disk_ends_the_run_with_one_sentence_and_the_checkpoint_before_stays(tmp_path: Path) -> None:
    found = ranks.run(2, save_without_room, tmp_path / "run")
    assert found[0] == found[1]
    said, names = found[0]
    # The second run goes on from what the first has saved.
    for number, sentence in zip((2, 3), said, strict=True):
        assert sentence == (
            f"step {number} could not be saved into {tmp_path}/run: rank 0: [Errno 28] No space left on "
            "device; make room there, and start the same line again"
        )
    assert names == ["step-00000001", "step-00000002"]


OF_TWO_RUNS = "".join(f'{{"step": {step}}}\n' for step in (1, 2, 3, 4, 1, 2, 3))


@pytest.mark.parametrize(
    ("text", "first", "again", "kept"),
    [
        # A new run leaves what is there, but for half a line.
        (OF_TWO_RUNS, 0, False, [1, 2, 3, 4, 1, 2, 3]),
        (OF_TWO_RUNS[:-3], 0, False, [1, 2, 3, 4, 1, 2]),
        # One that goes on removes its own lines, and those of no other run.
        (OF_TWO_RUNS, 2, False, [1, 2, 3, 4, 1, 2]),
        (OF_TWO_RUNS[:-1], 3, True, [1, 2, 3, 4, 1, 2]),
        (OF_TWO_RUNS, 0, True, [1, 2, 3, 4]),
        ("", 2, True, []),
    ],
)
def test_a_log_has_each_step_once_and_no_half_line(
    tmp_path: Path, text: str, first: int, again: bool, kept: list[int]
) -> None:
    file = tmp_path / "log"
    file.write_text(text, "utf-8")
    with json_lines(file, first, again=again) as track:
        track(first, {"loss": 1.0})
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [line["step"] for line in lines] == [*kept, first + 1]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_log_on_a_full_disk_is_told_in_one_sentence() -> None:
    full = pytest.raises(Mistake, match=r"^--jsonl /dev/full cannot be written: \[Errno 28\] No space left")
    # What was not written is still in the file's buffer when it is closed.
    with suppress(OSError), json_lines(Path("/dev/full"), 3) as track, full:
        track(3, {"loss": 1.0})


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
        assert run.returncode == 2
        assert re.search(sentence, run.stderr), run.stderr
        assert run.stderr.count("\n") == 1
