"""Ranks of a lab, from a process that is no notebook: results, output, errors, hangs, and what is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import uuid
import warnings
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
import torch
import torch.distributed as dist

from shardbook import Disagreement, labs, shard
from shardbook.labs import lab_ranks
from shardbook.labs.rank_process import Ended, Raised, Stuck

# As the functions of a cell: a rank cannot import this file.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
SRC = Path(lab_ranks.__file__).parents[2]


class Pair:
    """A class of the notebook, whose objects travel to the ranks and back."""

    def __init__(self, mine: int, sum_of_all: int) -> None:
        self.mine, self.sum_of_all = mine, sum_of_all


def pair(addend: int) -> Pair:
    value = torch.tensor(addend + labs.rank())
    dist.all_reduce(value)
    return Pair(labs.rank(), int(value))


@pytest.mark.nightly
def test_results_come_in_the_order_of_the_ranks_after_a_backward_pass_too() -> None:
    """A plain fork would hang here, for the backward pass leaves threads behind."""
    weight = torch.randn(64, 64, requires_grad=True)
    (weight @ weight).sum().backward()
    found = labs.ranks(3, pair, 10)
    assert [type(each) for each in found] == [Pair] * 3
    assert [(each.mine, each.sum_of_all) for each in found] == [(0, 33), (1, 33), (2, 33)]


def draw() -> tuple[float, float, float]:
    import numpy as np

    return float(torch.rand(1)), random.random(), float(np.random.rand())


@pytest.mark.full
def test_all_ranks_draw_the_same_numbers_each_time() -> None:
    first = labs.ranks(2, draw)
    assert first[0] == first[1]
    assert labs.ranks(2, draw) == first


def surroundings() -> tuple[str, str, int, str, str]:
    import helper_beside_the_notebook as helper  # type: ignore[import-not-found]

    return os.environ["OF_THE_LAB"], str(Path.cwd()), torch.get_num_threads(), helper.NAME, labs.language()


def test_a_rank_sees_the_notebooks_variables_folder_and_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "helper_beside_the_notebook.py").write_text("NAME = 'found'\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("OF_THE_LAB", "17")
    monkeypatch.setenv("SHARDBOOK_LANG", "zh")
    assert labs.ranks(1, surroundings) == [("17", str(tmp_path), 1, "found", "zh")]


def talk() -> None:
    if labs.rank() == 0:
        print("one\ntwo")
        print("10 %\r20 %\r30 %", file=sys.stderr)
    else:
        warnings.warn("take care", stacklevel=1)
        os.write(1, "no end of line: 環".encode())


def test_each_line_appears_with_its_rank(capsys: pytest.CaptureFixture[str]) -> None:
    labs.ranks(2, talk)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("rank 0 | ")] == [
        "rank 0 | one",
        "rank 0 | two",
        "rank 0 | 30 %",
    ]
    (warning, *_, last) = [line for line in lines if line.startswith("rank 1 | ")]
    assert warning.endswith("UserWarning: take care")
    assert last == "rank 1 | no end of line: 環"
    assert len([line for line in lines if not line.startswith("rank ")]) == 0


def test_a_line_appears_before_the_ranks_have_ended(tmp_path: Path) -> None:
    """The rank waits until somebody has read its line."""
    os.mkfifo(tmp_path / "read")

    def say_and_wait() -> str:
        print("ready")
        return (tmp_path / "read").read_text()

    class Reader:
        """A standard output that answers."""

        def write(self, text: str) -> None:
            if "ready" in text:
                (tmp_path / "read").write_text("answered")

        def flush(self) -> None:
            pass

    before, sys.stdout = sys.stdout, Reader()  # type: ignore[assignment]
    try:
        assert labs.ranks(1, say_and_wait) == ["answered"]
    finally:
        sys.stdout = before


def raise_on_one() -> None:
    if labs.rank() == 1:
        numbers: list[int] = []
        numbers[labs.rank()] = 0
    dist.barrier()


def test_an_error_shows_the_rank_that_failed_first_and_the_readers_lines() -> None:
    with pytest.raises(labs.RanksFailed) as caught:
        labs.ranks(3, raise_on_one)
    first, *others = caught.value.outcomes
    assert first.rank == 1
    assert isinstance(first.failure, Raised)
    assert first.failure.kind == "IndexError"
    assert sorted(each.rank for each in others) == [0, 2]
    head, about_first, about_others = str(caught.value).split("\n\n")
    assert head == "rank 1 failed first."
    where, code = about_first.splitlines()[1:3]
    assert where.endswith("(raise_on_one)")
    assert f"test_lab_ranks.py, line {raise_on_one.__code__.co_firstlineno + 3}" in where
    assert code.strip() == "numbers[labs.rank()] = 0"
    assert about_first.endswith("IndexError: list assignment index out of range")
    assert about_others.startswith("ranks 0, 2:\n")
    assert about_others.endswith("dist.barrier()\nIt lost the connection to a rank that had failed.")


def raise_from() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise ValueError("outer") from error


def leave_the_order() -> str:
    model = shard(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))
    model(torch.ones(2, 4)).sum().backward()
    try:
        if labs.rank() == 0:
            with torch.no_grad():
                model(torch.ones(2, 4))
        model(torch.ones(2, 4)).sum().backward()
    except Disagreement as error:
        return str(error)
    return ""


def test_an_error_that_a_hook_raises_again_is_not_a_warning_too(capsys: pytest.CaptureFixture[str]) -> None:
    told = labs.ranks(2, leave_the_order)
    assert told[0] == told[1] != ""
    assert capsys.readouterr().out == ""


def test_a_cause_is_shown_before_its_error() -> None:
    with pytest.raises(labs.RanksFailed, match=r"(?s)KeyError: 'inner'\nand from that:.*ValueError: outer"):
        labs.ranks(1, raise_from)


def die() -> None:
    if labs.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def leave() -> None:
    os._exit(7)


def test_a_rank_that_dies_is_the_first_failure() -> None:
    with pytest.raises(labs.RanksFailed) as caught:
        labs.ranks(2, die)
    assert caught.value.outcomes[0].rank == 1
    assert caught.value.outcomes[0].failure == Ended(-signal.SIGKILL)
    assert "perhaps because memory ran out" in str(caught.value)
    with pytest.raises(labs.RanksFailed, match="exit code 7 before it returned"):
        labs.ranks(1, leave)


def hang() -> None:
    if labs.rank() == 1:
        threading.Event().wait()
    dist.barrier()


@pytest.mark.full
def test_a_hang_is_ended_and_shows_where_each_rank_stands() -> None:
    with pytest.raises(labs.RanksFailed) as caught:
        labs.ranks(2, hang, timeout=2)
    assert all(isinstance(each.failure, Stuck) for each in caught.value.outcomes)
    told = str(caught.value)
    assert told.startswith("no result after 2 s, so the ranks were ended.")
    assert f"line {hang.__code__.co_firstlineno + 2} (hang)" in told
    assert f"line {hang.__code__.co_firstlineno + 3} (hang)" in told


def refuse_result() -> Any:
    return threading.Lock()


def test_what_cannot_be_sent_is_said() -> None:
    with pytest.raises(TypeError, match=r"pair or one of its arguments cannot be sent to a rank: .*lock"):
        labs.ranks(1, pair, threading.Lock())
    with pytest.raises(labs.RanksFailed, match=r"TypeError: .*lock"):
        labs.ranks(1, refuse_result)
    with pytest.raises(ValueError, match="at least one rank"):
        labs.ranks(0, pair, 1)


def nest() -> None:
    labs.ranks(1, pair, 1)


def test_a_rank_starts_no_ranks_and_nothing_else_is_a_rank() -> None:
    with pytest.raises(labs.RanksFailed, match="a rank cannot start others"):
        labs.ranks(1, nest)
    with pytest.raises(RuntimeError, match="no rank"):
        labs.rank()


def train() -> int:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 64)).sum().backward()
    optimizer.step()
    return int(psutil.Process().memory_info().rss)


def test_a_rank_that_trains_stays_below_two_gigabytes() -> None:
    assert max(labs.ranks(2, train)) < 2e9


def listening() -> list[str]:
    parent = psutil.Process().parent()
    assert parent is not None
    grandparent = parent.parent()
    assert grandparent is not None
    found = grandparent.net_connections("tcp")
    return [each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN]


def test_the_store_listens_to_this_machine_alone() -> None:
    (addresses,) = labs.ranks(1, listening)
    assert "127.0.0.1" in addresses
    assert set(addresses) <= {"127.0.0.1", "::1"}


SCRIPT = """
import os, signal, subprocess, sys
print("the script runs")
from shardbook import labs

def work(x):
    subprocess.Popen(["sleep", "600"])
    return x + labs.rank()

print(labs.ranks(2, work, 10))
LAST
"""


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(
    ("last", "code"),
    [("raise SystemExit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL)],
)
def test_a_script_runs_once_and_no_process_stays(tmp_path: Path, last: str, code: int) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.replace("LAST", last), "utf-8")
    mark = {"MARK_OF_THIS_RUN": uuid.uuid4().hex}
    done = subprocess.run(
        [sys.executable, "-u", "script.py"],
        cwd=tmp_path,
        env={**os.environ, **mark, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.splitlines() == ["the script runs", "[10, 11]"]
    # After SIGKILL the server has to see that its pipe has closed.
    assert psutil.wait_procs(marked(mark), timeout=60)[1] == []


HANGS = """
import threading
from shardbook import labs

def work():
    print("here")
    threading.Event().wait()

labs.ranks(2, work)
"""


@pytest.mark.nightly
def test_ctrl_c_ends_the_ranks(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(HANGS, "utf-8")
    mark = {"MARK_OF_THIS_RUN": uuid.uuid4().hex}
    with subprocess.Popen(
        [sys.executable, "-u", "script.py"],
        cwd=tmp_path,
        env={**os.environ, **mark, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("| here\n")
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert errors.endswith("KeyboardInterrupt\n")
    assert psutil.wait_procs(marked(mark), timeout=60)[1] == []


def marked(mark: dict[str, str]) -> list[psutil.Process]:
    """The processes that have this in their environment."""
    ((name, value),) = mark.items()
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(name) == value:
                found.append(process)
        except psutil.Error:
            continue
    return found


def gpu_of_a_rank(size: int) -> tuple[str, float]:
    x = torch.full((size,), float(labs.rank()), device=labs.device())
    dist.all_reduce(x)
    return str(labs.device()), float(x.sum())


@pytest.mark.gpu
@pytest.mark.parametrize("count", [1, 2])
def test_ranks_share_a_gpu_where_there_are_fewer(count: int) -> None:
    gpus = torch.cuda.device_count()
    expected = [(f"cuda:{each % gpus}", 4.0 * sum(range(count))) for each in range(count)]
    assert labs.ranks(count, gpu_of_a_rank, 4) == expected
