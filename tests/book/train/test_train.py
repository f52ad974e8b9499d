"""The training script as a user meets it: its line, its table, and what it says to mistakes."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist

from shardbook.command import Mistake
from shardbook.planning.report import write, write_figures
from shardbook.train.loop import main
from shardbook.train.options import parse, parser
from shardbook.train.ranks import choose_device, environment
from tiers import rows
from warm import TORCHRUN, start

OPTIONS = "--steps 30 --layers 2 --width 32 --heads 2 --context 32 --batch 4 --lr 3e-3 --device cpu"
SMALL = OPTIONS.split()


def check_figures(figures: dict[str, Any], ranks: int) -> None:
    """What every run has to show: it learned, and each byte is where the formulas want it."""
    assert figures["ranks"] == ranks
    assert figures["loss_first"] == pytest.approx(math.log(256), abs=0.2)
    assert figures["loss_last"] < figures["loss_first"] - 1
    assert figures["loss_unseen"] < figures["loss_first"] - 1
    assert figures["sent"] == figures["sent_forecast"]
    assert figures["steady"] == figures["steady_forecast"]
    assert figures["peak"] == figures["peak_forecast"]
    assert len(figures["sent"]) == len(figures["steady"]) == len(figures["peak"]) == ranks
    assert (figures["sent"][0] > 0) == (ranks > 1)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("ranks", rows([2, 4], now=[2]))
def test_the_torchrun_line_learns_and_its_table_agrees_with_the_formulas(ranks: int, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    line = [*TORCHRUN, str(ranks), "-m", "shardbook.train", *SMALL, "--json", str(file)]
    # The run on four ranks starts as a user's does, with all its imports.
    run = start(*line, program=sys.executable if ranks == 4 else None)
    assert run.returncode == 0, run.stderr
    figures = json.loads(file.read_text(encoding="utf-8"))
    check_figures(figures, ranks)
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]
    # One rank speaks, however many there are.
    assert run.stderr.count("step 30/30") == 1
    assert run.stdout.count("loss, last step") == 1
    table = {line[:30].strip(): line[30:].split("  ") for line in run.stdout.splitlines()}
    for name, key, steps in [
        ("bytes sent per rank and step", "sent", 30),
        ("steady bytes per rank", "steady", 1),
        ("peak bytes per rank", "peak", 1),
    ]:
        counted, predicted = [cell.strip() for cell in table[name] if cell.strip()][:2]
        assert counted == predicted == f"{max(figures[key]) // steps:,}"


def test_without_torchrun_one_rank_trains_and_sends_nothing(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    run = start("-m", "shardbook.train", *SMALL, "--json", str(file))
    assert run.returncode == 0, run.stderr
    check_figures(json.loads(file.read_text(encoding="utf-8")), ranks=1)


@pytest.mark.nightly
def test_below_stage_3_only_the_peak_has_no_forecast(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    run = start(*TORCHRUN, "2", "-m", "shardbook.train", *SMALL, "--stage", "1", "--json", str(file))
    assert run.returncode == 0, run.stderr
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert figures["stage"] == 1
    assert figures["peak_forecast"] == [None, None]
    check_figures({**figures, "peak_forecast": figures["peak"]}, ranks=2)
    assert "(8 ΣP + 8 n) (N-1)/N" in run.stdout
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("peak bytes per rank")]
    assert line.split() == ["peak", "bytes", "per", "rank", f"{max(figures['peak']):,}"]


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("options", "told"),
    [
        pytest.param(
            "--precision fp16 --checkpoint reentrant --stage 2",
            "stage 2, fp16, reentrant checkpoints, 30 steps",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "--precision bf16 --checkpoint non-reentrant --offload",
            "bf16, non-reentrant checkpoints, offload",
            marks=pytest.mark.full,
        ),
    ],
)
def test_the_other_techniques_learn_too_and_are_forecast(options: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    run = start(*TORCHRUN, "2", "-m", "shardbook.train", *SMALL, *options.split(), "--json", str(file))
    assert run.returncode == 0, run.stderr
    figures = json.loads(file.read_text(encoding="utf-8"))
    assert figures["peak_forecast"] == [None, None]
    check_figures({**figures, "peak_forecast": figures["peak"]}, ranks=2)
    assert told in run.stdout
    assert "each vector in its own format" in run.stdout


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--help"])
    assert stopped.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    for action in parser()._actions:
        assert action.help
        assert all(option in shown for option in action.option_strings)
    assert "torchrun --standalone" in shown


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--width 100 --heads 3", "width 100 is not divisible by heads 3; choose a multiple of heads"),
        ("--layers 0", "--layers is 0, but it must be a whole number from 1 to 1,000"),
        ("--layers 1e6", "--layers is 1e6, but it must be a whole number from 1 to 1,000"),
        (
            "--layers 1e3 --width 1e6",
            "the parameters alone take 48,000,054.6 GB on a rank, and this ",
        ),
        ("--batch 0", "--batch is 0, but it must be a whole number from 1"),
        ("--lr nan", "--lr is nan, but it must be a number from 1e-30 to 1e+30"),
        ("--lr -1", "--lr is -1, but it must be a number from 1e-30 to 1e+30"),
        ("--seed -1", "--seed is -1, but it must be a whole number from 0 to 1,000,000,000,000"),
        ("--json /", "--json is /, a folder; name a file"),
        ("--steps 1", "--steps is 1, but it must be a whole number from 2"),
        ("--warmup -1", "--warmup is -1, but it must be a whole number from 0"),
        ("--warmup 200", "--warmup is 200, but the run has only 200 steps"),
        ("--clip 0", "--clip is 0, but it must be a number from 1e-30"),
        ("--lr-end 2", "--lr-end is 2, but it must be a number from 0 to 1"),
        ("--held-out 1", "--held-out is 1, but it must be a number from 1e-06 to 0.999999"),
        ("--evaluate-every 0", "--evaluate-every is 0, but it must be a whole number from 1"),
        ("--evaluate-batches 0", "--evaluate-batches is 0, but it must be a whole number from 1"),
        ("--sample -1", "--sample is -1, but it must be a whole number from 0"),
        ("--prompt=", "--prompt is empty; write a text, or leave it out"),
        ("--ranks 2", "--ranks is for a plan; add --plan"),
        ("--memory 2", "--memory is for a plan; add --plan"),
        ("--plan --ranks 0", "--ranks is 0, but it must be a whole number from 1"),
        ("--plan --memory nan", "--memory is nan, but it must be a number"),
        ("--data=", "--data/--text is empty; name a file or a folder, or leave it out"),
        ("--profile /proc/1/x", "is /proc/1/x, but nothing can be written to /proc/1: No such file"),
        ("--checkpoints /proc", "is /proc, but nothing can be written to /proc: No such file"),
        ("--data nowhere", "--data nowhere: there is no such file or folder"),
        ("--tokenizer nowhere", "--tokenizer nowhere: there is no such file"),
        ("--config nowhere.toml", "--config nowhere.toml: No such file or directory"),
        ("--jsonl /", "--jsonl is /, a folder; name a file"),
        ("--profile /etc/passwd", "--profile is /etc/passwd, a file; name a folder"),
        ("--step 3", "unrecognized arguments: --step 3; see --help"),
        ("--steps many", "--steps is many, but it must be a whole number from 2"),
        ("--optimizer adafactor", "invalid choice: 'adafactor'"),
        ("--stepz 3", "unrecognized arguments: --stepz 3; see --help"),
        ("--json nowhere/figures.json", "there is no folder nowhere; make it first"),
        ("--device cuda", "torch sees no CUDA device here; use --device cpu"),
        ("--backend nccl", "use --backend gloo on the CPU"),
        ("--stage 4", "argument --stage: invalid choice: 4"),
        ("--mesh 2x1 --stage 0", "--mesh is for stages 1 to 3: in stage 0 each rank has a copy of its own"),
        ("--mesh 2x4", "--mesh 2x4 is for 8 ranks, but there is 1; let copies times ranks be 1"),
        ("--batch 100000", "lower batch or context"),
        ("--context 140000", "lower batch or context"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    options: str, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check_mistake(options.split(), sentence, capsys)


@pytest.mark.parametrize("option", ["--json", "--jsonl"])
def test_only_a_file_is_written_to(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    for path, what in (
        (pipe, "a pipe"),
        (Path("/dev/null"), "a device"),
    ):
        link.unlink(missing_ok=True)
        link.symlink_to(path)
        for name in (path, link):
            check_mistake([option, str(name)], f"{option} {name} is {what}; name a file", capsys)
    assert pipe.is_fifo()
    check_mistake(["--json", "both", "--jsonl", "both"], "both name both; name two files", capsys)


def test_a_file_is_written_where_a_link_leads_and_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    file, link = tmp_path / "there" / "figures", tmp_path / "link"
    link.symlink_to("there/figures")
    for text in ("old", "new"):
        write(link, text)
        assert (file.read_text("utf-8"), link.is_symlink()) == (text, True)
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with (
        patch.object(Path, "replace", side_effect=full),
        pytest.raises(Mistake, match="No space left on device"),
    ):
        write_figures(link, {})
    assert file.read_text("utf-8") == "new"
    assert [path.name for path in file.parent.iterdir()] == ["figures"]


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"WORLD_SIZE": "0", "RANK": "0"}, "WORLD_SIZE is '0', but it must be a whole number of at least 1"),
        ({"WORLD_SIZE": "two", "RANK": "0"}, "WORLD_SIZE is 'two', but it must be a whole number"),
        ({"WORLD_SIZE": "2"}, "RANK is not set; start the ranks with torchrun"),
        ({"RANK": "0"}, "WORLD_SIZE is not set; start the ranks with torchrun"),
        ({"WORLD_SIZE": "4", "RANK": "9"}, "RANK is 9, but WORLD_SIZE is 4, so the last rank is 3"),
        ({"WORLD_SIZE": "2", "RANK": "abc"}, "RANK is 'abc', but it must be a whole number"),
        ({"WORLD_SIZE": "", "RANK": "0"}, "WORLD_SIZE is '', but it must be a whole number"),
        ({"WORLD_SIZE": "1" + "0" * 23, "RANK": "0"}, "and at most 1,000,000; start the ranks with torchrun"),
        (
            {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "70000"},
            "MASTER_PORT is '70000', but it must be a whole number of at least 0, and at most 65,535",
        ),
        ({"WORLD_SIZE": "2", "RANK": "0"}, "MASTER_ADDR is not set, so the ranks cannot meet"),
    ],
)
def test_an_impossible_world_is_told_in_one_sentence(
    environment: dict[str, str],
    sentence: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    check_mistake([], sentence, capsys)


def test_a_rank_outside_of_the_world_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    # Rank 2 is not the one that speaks, so the sentence is looked for in the exception.
    with pytest.raises(Mistake, match="RANK is 2, but WORLD_SIZE is 2, so the last rank is 1"):
        environment()


@pytest.mark.parametrize(
    ("environment", "speaks"),
    [
        ({"RANK": "1"}, False),
        ({"RANK": "0"}, True),
        ({"RANK": "1", "LOCAL_RANK": "1"}, False),
        # The first process of another machine, which may have been given other options.
        ({"RANK": "8", "LOCAL_RANK": "0"}, True),
    ],
)
def test_a_mistake_in_the_options_is_told_once_on_each_machine(
    environment: dict[str, str],
    speaks: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    for name, value in {"WORLD_SIZE": "16", **environment}.items():
        monkeypatch.setenv(name, value)
    assert main(["--width", "3"]) == 2
    said = (
        "shardbook.train: width 3 is not divisible by heads 4; choose a multiple of heads\n" if speaks else ""
    )
    assert capsys.readouterr() == ("", said)


def test_only_the_rank_that_writes_needs_a_folder_for_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    assert parse(["--json", "nowhere/figures.json"]).json == Path("nowhere/figures.json")


@pytest.mark.parametrize(
    ("options", "environment", "sentence"),
    [
        (
            "--device cuda",
            {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
            "--device cuda: torch sees no CUDA device here; use --device cpu",
        ),
        (
            "",
            {"MASTER_PORT": "1"},
            "MASTER_ADDR is not set, so the ranks cannot meet; start them with torchrun",
        ),
    ],
)
def test_a_mistake_of_a_rank_alone_is_told_by_that_rank(
    options: str, environment: dict[str, str], sentence: str
) -> None:
    """A process as it runs on a second machine, whose surroundings are not those of rank 0."""
    places = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": ""}
    run = start("-m", "shardbook.train", "--steps", "2", *options.split(), **places, **environment)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr.startswith(f"shardbook.train: rank 1: {sentence}")
    assert run.stderr.count("\n") == 1


def test_gpus_are_given_out_and_shared_only_on_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert choose_device(parse([])) == (torch.device("cuda:1"), "nccl")
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert choose_device(parse([])) == (torch.device("cpu"), "gloo")
    shared = parse(["--device", "cuda", "--backend", "gloo"])
    assert choose_device(shared) == (torch.device("cuda:1"), "gloo")
    with pytest.raises(Mistake, match="4 ranks were started on this machine, but it has 2 GPUs"):
        choose_device(parse(["--device", "cuda"]))


def check_mistake(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(options) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.startswith("shardbook.train: ")
    assert err.count("\n") == 1
    assert not dist.is_initialized()
