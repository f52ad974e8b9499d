"""The helper that starts the ranks tells all that goes wrong, and leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist

import ranks


def who(offset: int) -> tuple[int, int]:
    return dist.get_rank() + offset, dist.get_world_size()


def total() -> torch.Tensor:
    tensor = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    return tensor


def surroundings() -> tuple[int, str, int]:
    return torch.get_num_threads(), os.environ["GLOO_SOCKET_IFNAME"], os.getpid()


class Complaint(Exception):
    pass


def all_fail() -> None:
    raise Complaint(f"rank {dist.get_rank()} complains")


def asserts() -> None:
    gradients = {"weight": [1, 2, 3], "bias": [dist.get_rank()]}
    assert gradients == {"weight": [1, 2, 4], "bias": [0]}


def one_fails() -> None:
    if dist.get_rank() == 1:
        raise Complaint("only rank 1 complains")
    dist.barrier()


def one_is_killed() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def one_waits_for_ever() -> str:
    if dist.get_rank() == 0:
        threading.Event().wait()
    return "done"


started: list[int] = []


def interrupt(*_: object) -> None:
    started.extend(forked())
    raise Complaint("interrupted")


def interrupts_the_test_and_waits(test: int) -> None:
    dist.barrier()
    if dist.get_rank() == 0:
        os.kill(test, signal.SIGUSR1)
    threading.Event().wait()


notes: list[str] = []


def add_a_note(note: str) -> list[str]:
    notes.append(note)
    return notes


def forked() -> list[int]:
    """The processes of the server that have not ended: its copy for this file, and the copy's ranks."""
    server = ranks.SERVER.running()
    return [child.pid for child in psutil.Process(server.pid).children(recursive=True)] if server else []


def call(function: Callable[[int], tuple[int, int]]) -> tuple[int, int]:
    return function(20)


def warn() -> None:
    torch.tensor([1]).storage()


def leave_early() -> None:
    """Rank 0 has nothing left to do while rank 1 still receives from it."""
    size = 1 << 20
    if dist.get_rank() == 0:
        dist.send(torch.ones(size), 1)
    else:
        received = torch.zeros(size)
        dist.recv(received, 0)
        assert received.eq(1).all()


def destroyed() -> bool:
    dist.destroy_process_group()
    return dist.is_initialized()


@pytest.mark.cases(now=2, ci=2)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_results_come_in_rank_order(world_size: int) -> None:
    assert ranks.run(world_size, who, 10) == [(10 + rank, world_size) for rank in range(world_size)]


def test_an_argument_may_be_a_function_of_the_file() -> None:
    assert ranks.run(2, call, who) == [(20, 2), (21, 2)]


def test_ranks_talk_and_tensors_come_back() -> None:
    assert all(torch.equal(tensor, torch.full((3,), 3.0)) for tensor in ranks.run(2, total))


def test_each_rank_is_a_fresh_process_with_one_thread_on_the_loopback() -> None:
    first, second = ranks.run(2, surroundings), ranks.run(2, surroundings)
    assert {answer[:2] for answer in first + second} == {(1, "lo")}
    assert len({pid for _, _, pid in first + second}) == 4


def test_every_traceback_is_shown() -> None:
    with pytest.raises(ranks.RanksFailed) as failure:
        ranks.run(2, all_fail)
    message = str(failure.value)
    assert "2 of 2 ranks failed" in message
    assert "rank 0 complains" in message
    assert "rank 1 complains" in message
    assert message.count("in all_fail") == 2


def test_an_assert_in_a_rank_says_what_differed() -> None:
    with pytest.raises(ranks.RanksFailed) as failure:
        ranks.run(2, asserts)
    told = re.split(r"--- rank (\d)", str(failure.value))[1:]
    stories = dict(zip(told[::2], told[1::2], strict=True))  # the first to fail stands first
    assert "{'weight': [1, 2, 3]} != {'weight': [1, 2, 4]}" in stories["0"]
    assert "{'bias': [1]} != {'bias': [0]}" in stories["1"]


def test_the_first_failure_stands_first() -> None:
    with pytest.raises(ranks.RanksFailed) as failure:
        ranks.run(2, one_fails)
    told = re.findall(r"--- rank (\d)", str(failure.value))
    assert told == ["1", "0"]
    assert "only rank 1 complains" in str(failure.value)


def test_a_killed_rank_is_named() -> None:
    with pytest.raises(ranks.RanksFailed, match=r"rank 1: died without a word, exit code -9"):
        ranks.run(2, one_is_killed)


@pytest.mark.nightly
def test_a_hanging_rank_is_named_with_its_stack_and_killed() -> None:
    ranks.run(1, who, 0)  # the server is up: the limit below is for the ranks alone
    with pytest.raises(ranks.RanksFailed, match="no answer within 4 s from rank 0") as failure:
        ranks.run(2, one_waits_for_ever, timeout=4)
    assert "in one_waits_for_ever" in str(failure.value)
    # The copy of the server that forks the ranks of this file.
    assert len(forked()) == 1


@pytest.mark.full
def test_a_test_that_is_interrupted_leaves_no_rank_behind() -> None:
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Complaint, match="interrupted"):
            ranks.run(2, interrupts_the_test_and_waits, os.getpid())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ranks.SERVER.running() is None
    assert len(started) == 3  # the copy of the server, and two ranks
    assert not any(Path(f"/proc/{rank}").exists() for rank in started)
    assert ranks.run(1, who, 0) == [(0, 1)]


def test_a_rank_sees_what_the_file_is_since_its_import_and_nothing_of_other_ranks() -> None:
    assert ranks.run(2, add_a_note, "first") == [["first"], ["first"]]
    assert ranks.run(2, add_a_note, "second") == [["second"], ["second"]]


def test_a_rank_may_finish_before_the_others() -> None:
    ranks.run(2, leave_early)


def test_a_function_may_destroy_the_group_itself() -> None:
    assert ranks.run(2, destroyed) == [False, False]


def test_warnings_are_errors_in_ranks_too() -> None:
    with pytest.raises(ranks.RanksFailed, match="TypedStorage is deprecated"):
        ranks.run(1, warn)


def test_a_local_function_is_refused() -> None:
    with pytest.raises(TypeError, match="top level"):
        ranks.run(1, lambda: None)
