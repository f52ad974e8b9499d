"""A run that is ended at one of many moments goes on, and its losses are those of a run left alone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import pytest
import torch
import torch.distributed as dist

import ranks
import soak
import warm
from shardbook.command import Mistake
from shardbook.train.loop import main, step
from shardbook.train.options import parse
from shardbook.train.plan import Run, assemble
from shardbook.train.saving import Claim, Saves
from shardbook.train.text import prepare, readers
from shardbook.train.tracking import json_lines
from tiers import rows
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


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize(("moment", "rank", "count"), rows(DEATHS, now=[]))
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


@pytest.mark.nightly
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
            number = errno.EROFS if background else errno.ENOSPC
            with patch.object(os, "fsync", Mock(side_effect=OSError(number, os.strerror(number)))):
                said.append(said_in_two_steps(run, saves))
    dist.barrier()
    kept = sorted(path.name for path in folder.iterdir())
    options.save_in_background = False
    run = assemble(options, readers(options, torch.device("cpu"))[0], torch.device("cpu"))
    for again in (False, True):
        with Saves(options, run) as saves:
            dist.barrier()
            if dist.get_rank() == 0:
                # What the checkpoints were is elsewhere, and an empty folder may lie there.
                folder.rename(folder.with_name(f"moved-{again}"))
                if again:
                    folder.mkdir()
            dist.barrier()
            said.append(said_in_two_steps(run, saves))
            dist.barrier()
            if dist.get_rank() == 0:
                assert not folder.exists() or not [*folder.iterdir()]
                shutil.rmtree(folder, ignore_errors=True)
                folder.with_name(f"moved-{again}").rename(folder)
            dist.barrier()
    return said, kept


@pytest.mark.full
def test_a_full_disk_ends_the_run_with_one_sentence_and_the_checkpoint_before_stays(tmp_path: Path) -> None:
    found = ranks.run(2, save_without_room, tmp_path / "run")
    assert found[0] == found[1]
    said, names = found[0]
    # The second run goes on from what the first has saved.
    assert said[:2] == [
        f"step 2 could not be saved into {tmp_path}/run: rank 0: [Errno 28] No space left on "
        "device; make room there, and start the same line again",
        f"step 3 could not be saved into {tmp_path}/run: rank 0: [Errno 30] Read-only file "
        "system; let that disk be written to, and start the same line again",
    ]
    assert names == ["step-00000001", "step-00000002"]
    moved = "was moved or removed while the run used it; put it back, and start the same line again"
    assert said[2:] == [f"{tmp_path}/run {moved}"] * 2


CLAIM = """
import os, sys
from pathlib import Path
from shardbook.train.saving import Claim

claim = Claim(Path(sys.argv[1]))
os._exit(9)
"""


@pytest.mark.full
def test_a_second_run_in_a_folder_is_refused_at_its_start(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    line = ["-m", "shardbook.train", *LINE, "--steps", "5", "--checkpoints", str(folder)]
    claim = Claim(folder)
    run = start(*line)
    assert run.returncode == 2
    assert run.stderr == (
        f"shardbook.train: --checkpoints {folder}: another run uses this folder (process {os.getpid()} on "
        f"{socket.gethostname()}); end it first, or name another folder\n"
    )
    assert [path.name for path in folder.iterdir()] == [".in-use"]
    claim.release()
    assert [*folder.iterdir()] == []
    # One that was killed here leaves its file, and stands in nobody's way; nor does half a file.
    assert start("-c", CLAIM, str(folder)).returncode == 9
    assert json.loads((folder / ".in-use").read_text("utf-8"))["process"] != os.getpid()
    run = start(*line)
    assert run.returncode == 0, run.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["step-00000003", "step-00000005"]
    (folder / ".in-use").write_text('{"host": ')
    assert start(*line).stdout == "all 5 steps were taken before; more --steps would go on\n"
    assert not (folder / ".in-use").exists()


def test_of_another_machine_only_the_same_job_takes_a_folder_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".in-use"
    said = json.dumps({"host": "elsewhere", "process": 7, "job": "none"})
    for job in (None, "none", "17"):
        if job is not None:
            monkeypatch.setenv("TORCHELASTIC_RUN_ID", job)
        file.write_text(said, "utf-8")
        with pytest.raises(BlockingIOError) as caught:
            Claim(tmp_path)
        assert str(caught.value) == (
            "another run uses this folder, or was killed (process 7 on elsewhere); if it has ended, remove "
            f"{file} and start the same line again"
        )
        assert file.read_text("utf-8") == said
    file.write_text(json.dumps({"host": "elsewhere", "process": 7, "job": "17"}), "utf-8")
    Claim(tmp_path).release()
    assert not file.exists()


def test_without_locks_a_process_that_is_alive_keeps_its_folder(tmp_path: Path) -> None:
    """Some disks have none."""
    file = tmp_path / ".in-use"
    with patch.object(fcntl, "lockf", Mock(side_effect=OSError(errno.ENOLCK, "no locks"))):
        for process, alive in ((os.getppid(), True), (os.getpid(), False), (2**22 + 1, False)):
            file.write_text(json.dumps({"host": socket.gethostname(), "process": process}), "utf-8")
            with pytest.raises(BlockingIOError, match="another run uses") if alive else nullcontext():
                Claim(tmp_path).release()
            assert file.exists() == alive


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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"once upon a time\n", 1),
        (b"# a comment\n" + OF_TWO_RUNS.encode(), 1),
        (OF_TWO_RUNS.encode() + b"# a comment\n" + OF_TWO_RUNS.encode(), 8),
        (OF_TWO_RUNS.encode() + b"the end", 8),
        (b'{"step": 1}\n{"step": 2, "accuracy": 0.5}\n', 2),
        (b'{"step": 1}\n\n{"step": 2}\n', 2),
        (b'{"step": "1"}\n', 1),
        (b'{"step": 1', None),
        (b'{"st', None),
        (OF_TWO_RUNS.encode() + b"\0" * 99, None),
        (b"\x7fELF\0\1\2" * 9999, 1),
        (b"[" * 99999, 1),
    ],
)
def test_a_file_of_somebody_is_no_log(
    tmp_path: Path, text: bytes, line: int | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(text)
    if line is None:
        assert parse([*LINE, "--jsonl", str(file)]).jsonl == file
        return
    assert main([*LINE, "--jsonl", str(file)]) == 2
    sentence = f"{file} has a line {line} that no run has written; name another file, so that this one stays"
    assert capsys.readouterr().err == f"shardbook.train: --jsonl {sentence} as it is\n"
    with pytest.raises(Mistake, match="no run has written"), json_lines(file, 1, again=True):
        pass
    assert file.read_bytes() == text


def test_a_log_on_a_full_disk_is_told_in_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with json_lines(Path("/dev/full"), 3) as track:
        for number in range(3, 6):
            track(number, {"loss": 1.0})
    said = "--jsonl: [Errno 28] No space left on device; the run goes on without it\n"
    assert capsys.readouterr() == ("", said)


LIMITED = """
import os, resource, sys
from shardbook.train.loop import main

resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400))
code = main(sys.argv[1:])
sys.stdout.flush()
os._exit(code)
"""


@pytest.mark.nightly
def test_what_is_written_beside_a_run_never_ends_it(tmp_path: Path) -> None:
    script, log = tmp_path / "limited.py", tmp_path / "log"
    script.write_text(LIMITED, "utf-8")
    run = start(
        *(*TORCHRUN, "2", str(script), *LINE, "--jsonl", str(log), "--json", str(tmp_path / "figures")),
        *("--profile", str(tmp_path / "traces"), "--memory-snapshot", str(tmp_path / "memory")),
        *("--track", "labml", "--steps", "5"),
        cwd=tmp_path,
        HOME=str(tmp_path / "home"),
    )
    assert run.returncode == 0, run.stderr
    assert "loss, last step" in run.stdout
    assert "Traceback" not in run.stderr
    told = [line for line in run.stderr.splitlines() if line.endswith("; the run goes on without it")]
    assert [line.partition(": ")[0] for line in told] == [
        *("--track labml", "--profile", "--jsonl", "--memory-snapshot", "--json"),
    ]
    # Of the log whole lines are there, and of the rest nothing.
    assert [json.loads(line)["step"] for line in log.read_text("utf-8").splitlines()] == [1, 2]
    assert {path.name for path in tmp_path.iterdir()} <= {
        *("limited.py", "log", "traces", "memory", "logs", "home")
    }
    assert [*(tmp_path / "traces").iterdir(), *(tmp_path / "memory").iterdir()] == []


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("launcher", [(), (*TORCHRUN, "2")])
def test_ctrl_c_ends_a_run_with_one_line(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    line = [
        *launcher,
        "-m",
        "shardbook.train",
        *LINE,
        # So many that the run is never over before the signal comes, however busy the machine is.
        "--steps",
        "200",
        "--checkpoints",
        str(tmp_path / "run"),
    ]
    with subprocess.Popen(
        [warm.python(), *line], stderr=subprocess.PIPE, text=True, env=warm.environment()
    ) as job:
        assert job.stderr is not None
        said = []
        for told in job.stderr:
            said.append(told)
            if "step 20/200" in told:
                job.send_signal(signal.SIGINT)
        code = job.wait()
    text = "".join(said)
    assert said.count("shardbook.train: stopped by Ctrl-C\n") == 1, text
    assert "[rank" not in text
    assert "KeyboardInterrupt" not in text
    if not launcher:
        assert code == 130
        assert said[-1] == "shardbook.train: stopped by Ctrl-C\n"
    assert all(path.name.startswith("step-") for path in (tmp_path / "run").iterdir())


@pytest.mark.full
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


@pytest.mark.nightly
def test_a_run_that_is_done_says_so(tmp_path: Path) -> None:
    line = ["-m", "shardbook.train", *LINE, "--checkpoints", str(tmp_path), "--steps", "5"]
    assert start(*line).returncode == 0
    run = start(*line)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "all 5 steps were taken before; more --steps would go on\n"
    # Another model, and another text.
    for options, sentence in (
        (["--width", "32"], "--width was 16 when the checkpoint was saved, and is 32 now"),
        (["--data", __file__], "the hash of the text .* was .* when the checkpoint was saved, and is "),
    ):
        run = start(*line, "--steps", "9", *options)
        assert run.returncode == 2
        assert re.search(sentence, run.stderr), run.stderr
        assert run.stderr.count("\n") == 1
