"""What trains on the late device equals what trains on the CPU, bit for bit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import ranks
from book.programs import RUNS
from device import runtime
from device.outcomes import outcome

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("late_device")]


# What is made real on a device gets random numbers of the device, and so other ones on another.
OTHER_NUMBERS = {name for name in RUNS if name.endswith("-built")}


def differences(names: list[str]) -> dict[str, tuple[Tensor, Tensor]]:
    """The losses of the programs that come out differently on the device, and under any of its schedules."""
    found = {}
    for name in names:
        there = outcome(name, "late:0")
        here = outcome(name, "cpu") if name not in OTHER_NUMBERS else there
        for schedule in runtime.SCHEDULES:
            with runtime.schedule(schedule):
                again = outcome(name, "late:1")
            for other in (here, again):
                if not all(map(torch.equal, there, other)):
                    found[f"{name}, {schedule}"] = there[0], other[0]
    return found


def test_every_program_trains_as_on_the_cpu() -> None:
    for found in ranks.run(2, differences, list(RUNS), backend=runtime.BACKEND, timeout=300):
        assert found == {}
