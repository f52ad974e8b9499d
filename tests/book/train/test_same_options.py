"""Ranks with different options do not start, and a run does not go on with options of another one."""

from __future__ import annotations

import argparse
import io
import os
import socket
from collections.abc import Iterator
from contextlib import redirect_stderr
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

import ranks
from shardbook.command import Mistake, OwnMistake
from shardbook.finetune_neox import finetune_options
from shardbook.train import options as train_options
from shardbook.train import ranks as rendezvous
from shardbook.train.options import parse
from shardbook.train.ranks import difference, given, refuse_different
from shardbook.train.text import prepare
from warm import TORCHRUN, start

SMALL = "--steps 4 --layers 2 --width 16 --heads 2 --context 16 --batch 2 --device cpu"
LINE = [*SMALL.split(), "--evaluate-batches", "1", "--sample", "0"]
ADVICE = "; start every rank with the same options"
PROGRAMS = [train_options.parser, finetune_options.parser]


def options_of_all() -> Iterator[tuple[argparse.Namespace, str]]:
    """Of each program its options without words, and the name of each."""
    for parser in PROGRAMS:
        names = vars(parser().parse_args([]))
        for name in names:
            yield argparse.Namespace(**names), name


def test_each_option_is_compared_but_for_those_of_a_rank_alone() -> None:
    names = set()
    for options, name in options_of_all():
        before = given(options)
        setattr(options, name, 12345)
        found = difference([before, before, given(options)])
        if name in rendezvous.OF_A_RANK:
            assert found == ""
        else:
            assert found.startswith(f"--{name.replace('_', '-')} differs between the ranks: ")
            assert found.endswith(f" on rank 0, 12345 on rank 2{ADVICE}")
        names.add(name)
    # No set has a word that is no option.
    sets = (rendezvous.OF_A_RANK, rendezvous.OF_A_CHECKPOINT, rendezvous.BESIDE_THE_STEPS)
    assert set().union(*sets) <= names
    assert sum(map(len, sets)) == len(set().union(*sets))


def test_all_differences_are_named_and_no_sentence_is_endless() -> None:
    many = [{"--lr": str(rank % 2), "--prompt": "x" * (500 + rank % 3)} for rank in range(40)]
    found = difference(many)
    assert found.startswith("--lr (and --prompt) differs between the ranks: 0 on rank 0, 1 on rank 1, 3,")
    assert found.endswith(f"15 and 12 more{ADVICE}")
    assert len(difference([{"--prompt": each["--prompt"]} for each in many])) < 500


def texts(folder: Path) -> list[str]:
    """What two ranks say with other files of the same name, and with the same options."""
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    found = []
    for number, words in enumerate((["--data", "text.txt"], ["--json", f"{rank}.json"])):
        (folder / str(rank)).mkdir(exist_ok=True)
        (folder / str(rank) / "text.txt").write_text(f"{rank}" * 500)
        options = parse([*LINE, *words])
        options.data = options.data and folder / str(rank) / options.data
        prepare(options)
        # On two machines both have the same path.
        options.data = options.data and Path("text.txt")
        try:
            refuse_different(dist.PrefixStore(str(number), store), rank, 2, given(options))
        except Mistake as mistake:
            found.append(str(mistake))
    return found


def test_files_of_each_machine_are_compared_by_what_they_hold(tmp_path: Path) -> None:
    one, other = ranks.run(2, texts, tmp_path)
    assert one == other
    (said,) = one
    assert said.startswith("the hash of the text (--data, --tokenizer) differs between the ranks: ")


ON_RANK_1 = """\
import os, sys
from shardbook.train.loop import main

words, own = (" ".join(sys.argv[1:]) + " ").split("--on-rank-1 ")
code = main([*words.split(), *(own.split() if os.environ["RANK"] == "1" else [])])
sys.stdout.flush()
sys.stderr.flush()
os._exit(code)
"""


@pytest.mark.full
def test_ranks_of_the_real_command_refuse_a_background_of_one_rank_alone(tmp_path: Path) -> None:
    program, folder = tmp_path / "program.py", tmp_path / "run"
    program.write_text(ON_RANK_1, "utf-8")
    words = [*LINE, "--checkpoints", str(folder), "--on-rank-1", "--save-in-background", "--lr", "0.5"]
    run = start(*TORCHRUN, "2", str(program), *words)
    assert run.returncode == 1
    said = (
        "shardbook.train: --lr (and --save-in-background) differs between the ranks: "
        f"0.001 on rank 0, 0.5 on rank 1{ADVICE}\n"
    )
    assert run.stderr.count(said) == 1, run.stderr
    assert not folder.exists()


# --- where the ranks meet ---


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which another program listens, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def waits(port: int) -> tuple[str, str]:
    """What is raised and said. A thread of the store goes on waiting, until this process ends."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    rendezvous.PATIENCE = timedelta(seconds=0.05)
    with redirect_stderr(io.StringIO()) as said, pytest.raises(OwnMistake) as refused:
        rendezvous.meeting_place(1, 2, timedelta(seconds=0.2), {})
    return str(refused.value), said.getvalue()


def test_a_rank_says_which_address_it_waits_for_and_does_not_wait_forever(taken: int) -> None:
    place = f"at 127.0.0.1:{taken} (MASTER_ADDR:MASTER_PORT)"
    assert ranks.run(1, waits, taken) == [
        (
            f"not all of 2 ranks have met {place} within 0:00:00.200000; start all of them, "
            "with the address of rank 0's machine",
            f"rank 1: still waiting for all 2 ranks {place}\n",
        )
    ]


def test_a_port_in_use_is_told_in_one_sentence(taken: int) -> None:
    places = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(taken)}
    run = start("-m", "shardbook.train", *LINE, **places)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == (
        f"shardbook.train: rank 0: port {taken} (MASTER_PORT) of this machine is in use; "
        "choose another one for all ranks\n"
    )


# --- a run that goes on ---


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("saved")
    run = start("-m", "shardbook.train", *LINE, "--checkpoints", str(folder), "--steps", "2")
    assert run.returncode == 0, run.stderr
    return folder


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--optimizer sgd", "--optimizer was adamw when the checkpoint was saved, and is sgd now"),
        # The shapes of all parameters stay the same.
        ("--heads 4", "--heads was 2 when the checkpoint was saved, and is 4 now"),
        ("--seed 1", "--seed was 0 when the checkpoint was saved, and is 1 now"),
        ("--held-out 0.2", "--held-out was 0.1 when the checkpoint was saved, and is 0.2 now"),
        (f"--data {__file__}", "the hash of the text (--data, --tokenizer) was "),
    ],
)
def test_an_option_that_the_checkpoint_depends_on_is_named(
    saved: Path, words: str, sentence: str, capfd: pytest.CaptureFixture[str]
) -> None:
    from shardbook.train.loop import main

    assert main([*LINE, "--checkpoints", str(saved), *words.split()]) == 2
    said = capfd.readouterr().err
    assert said.startswith(f"shardbook.train: --checkpoints {saved}: {sentence}")
    assert said.endswith("; go on with the same, or name another folder\n")
    assert said.count("\n") == 1


@pytest.mark.full
def test_a_run_goes_on_in_another_precision_and_says_what_changes(saved: Path) -> None:
    words = [*LINE, "--checkpoints", str(saved), "--save-every", "9", "--keep", "3"]
    for number, (precision, before) in enumerate((("fp16", "fp32"), ("bf16", "fp16"), ("fp32", "bf16")), 1):
        more = ("--steps", str(2 + 2 * number), "--precision", precision)
        run = start("-m", "shardbook.train", *words, *more)
        assert run.returncode == 0, run.stderr
        assert run.stderr.splitlines()[0] == (
            f"going on after step {2 * number}, with --steps {2 + 2 * number} instead of {2 * number}, "
            f"--precision {precision} instead of {before}"
        )
