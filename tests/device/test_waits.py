"""Each wait of the book orders something: without it numbers are wrong, run after run."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import ranks
from book.programs import RUNS
from book.waits import waits_in_the_book
from device import runtime
from device.outcomes import outcome

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("late_device")]

# Memory that is freed while an exchange may still write to it. The exchanges of a group run in order, so
# here the late one has ended before that memory is read again. `test_races.py` shows both as races.
NOT_HERE = {"groups.py work.wait()", "unit.py self.wait()"}
# A program that raises on one rank only would leave the other one waiting.
PROGRAMS = [name for name in RUNS if "failed" not in name]


def wrong_without(names: list[str]) -> dict[str, str | None]:
    """For each wait a program and a schedule that come out wrong without it."""
    expected: dict[str, list[Tensor]] = {}
    waited: dict[str, set[str]] = {}
    seconds: dict[str, float] = {}
    for name in names:
        begin = time.process_time()
        with runtime.waits() as waited[name]:
            expected[name] = outcome(name, "late:0")
        seconds[name] = time.process_time() - begin
    waited, seconds = agreed([waited, seconds])
    found: dict[str, str | None] = {}
    for wait, lines in waits_in_the_book().items():
        if unnumbered(wait) in NOT_HERE:
            continue
        found[wait] = None
        for name in sorted((name for name in names if lines & waited[name]), key=seconds.__getitem__):
            schedule = wrong(name, lines, expected[name])
            if schedule:
                found[wait] = f"{name}, {schedule}"
                break
    return found


def unnumbered(wait: str) -> str:
    """A wait without the number of its line."""
    place, _, call = wait.partition(" ")
    return f"{place.partition(':')[0]} {call}"


def wrong(name: str, lines: set[str], expected: list[Tensor]) -> str | None:
    """The schedule under which a program comes out wrong on some rank without these lines."""
    for schedule in runtime.SCHEDULES:
        with runtime.schedule(schedule), runtime.without(lines):
            same = all(map(torch.equal, outcome(name, "late:0"), expected))
        differs = torch.tensor(not same, dtype=torch.int32)
        dist.all_reduce(differs, dist.ReduceOp.MAX)
        if differs:
            return schedule
    return None


def agreed(value: list[Any]) -> list[Any]:
    """What the first rank has."""
    dist.broadcast_object_list(value, src=0, device=torch.device("cpu"))
    return value


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_without_any_wait_numbers_are_wrong() -> None:
    found, _ = ranks.run(2, wrong_without, PROGRAMS, backend=runtime.BACKEND, timeout=500)
    assert [wait for wait, program in found.items() if program is None] == []
