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

# What is made real on a device gets random numbers of the device, and so other ones than on the CPU.
OTHER_NUMBERS = {name for name in RUNS if name.endswith("-built")}
LOWER = [name for name in RUNS if name[0] in "012"]
OTHERS = [name for name in RUNS if name not in LOWER]


def differences(names: list[str]) -> dict[str, tuple[Tensor, Tensor]]:
    """The losses of the programs that come out differently on the CPU, or under the other schedule."""
    found = {}
    for name in names:
        there = outcome(name, "late:0")
        others = {} if name in OTHER_NUMBERS else {"the CPU": outcome(name, "cpu")}
        with runtime.schedule("side streams first"):
            others["side streams first"] = outcome(name, "late:1")
        for where, other in others.items():
            if not all(map(torch.equal, there, other)):
                found[f"{name}, {where}"] = there[0], other[0]
    return found


# Gathers ahead, casts, offload, a mesh, accumulation, and a step that reduces while it computes.
SOME = ["3-stepped", "3-scattered", "3-rerouted", "3-offloaded", "failed_on_a_mesh"]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(SOME, id="some"),
        pytest.param(OTHERS, id="3", marks=pytest.mark.nightly),
        pytest.param(LOWER, id="0 to 2", marks=pytest.mark.nightly),
    ],
)
def test_every_program_trains_as_on_the_cpu(names: list[str]) -> None:
    for found in ranks.run(2, differences, names, backend=runtime.BACKEND, timeout=300):
        assert found == {}
