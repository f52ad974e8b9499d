"""Each wait of the book orders something: without it numbers are wrong, run after run."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import ranks
from book.programs import RUNS
from book.races import waits_in_the_book
from device import runtime
from device.outcomes import outcome

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("late_device")]


def wrong_without(names: list[str]) -> tuple[dict[str, str], list[str]]:
    """For each wait a program that comes out wrong without it, and the waits for which there is none."""
    expected: dict[str, list[Tensor]] = {}
    waited: dict[str, set[str]] = {}
    seconds: dict[str, float] = {}
    for name in names:
        begin = time.process_time()
        with runtime.waits() as waited[name]:
            expected[name] = outcome(name, "late:0")
        seconds[name] = time.process_time() - begin
    [waited, seconds] = agreed([waited, seconds])
    found, idle = {}, []
    for wait, lines in waits_in_the_book().items():
        for name in sorted((name for name in names if lines & waited[name]), key=seconds.__getitem__):
            schedule = wrong(name, lines, expected[name])
            if schedule:
                found[wait] = f"{name}, {schedule}"
                break
        else:
            idle.append(wait)
        if dist.get_rank() == 0:
            print(wait, found.get(wait), flush=True)
    return found, idle


def wrong(name: str, lines: set[str], expected: list[Tensor]) -> str | None:
    """The schedule under which a program comes out wrong on some rank without these lines."""
    for schedule in runtime.SCHEDULES:
        with runtime.schedule(schedule), runtime.without(lines):
            try:
                same = all(map(torch.equal, outcome(name, "late:0"), expected))
            except Exception as error:
                print("ERROR", schedule, name, lines, repr(error)[:300], flush=True)
                same = False
        try:
            torch.late.synchronize()
        except Exception:
            pass
        differs = torch.tensor(not same, dtype=torch.int32)
        dist.all_reduce(differs, dist.ReduceOp.MAX)
        if differs:
            return schedule
    return None


def agreed(value: list) -> list:
    """What the first rank has."""
    dist.broadcast_object_list(value, src=0, device=torch.device("cpu"))
    return value


def test_without_any_wait_numbers_are_wrong() -> None:
    (found, idle), other = ranks.run(2, wrong_without, list(RUNS), backend=runtime.BACKEND, timeout=500)
    for wait, name in found.items():
        print(wait, "|", name)
    assert not idle
