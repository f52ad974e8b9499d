"""Exchanges of two process groups on a device: one after the other, in an order that the streams keep."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist

import ranks
from book import programs
from device import runtime
from device.outcomes import outcome_of

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("late_device")]


def on_a_mesh(stage: int) -> bool:
    program = partial(programs.crossed, stage)
    return all(map(torch.equal, outcome_of(program, "cpu"), outcome_of(program, "late:0")))


@pytest.mark.nightly
@pytest.mark.parametrize(
    "stage", [3, *(pytest.param(lower, marks=pytest.mark.nightly) for lower in (0, 1, 2))]
)
def test_the_two_groups_of_a_mesh_take_turns(stage: int) -> None:
    assert ranks.run(4, on_a_mesh, stage, backend=runtime.BACKEND) == [True] * 4


def side_by_side(wait: bool) -> str:
    """What is said of two exchanges, the second of which begins on another stream."""
    both, again = dist.group.WORLD, dist.new_group(backend="late")
    x, side = torch.ones(4, device="late"), torch.late.Stream()
    side.wait_stream(torch.late.current_stream())
    first = dist.all_reduce(x, group=both, async_op=True)
    with torch.late.stream(side):
        if wait:
            first.wait()
        try:
            dist.all_reduce(x.clone(), group=again)
        except RuntimeError as error:
            return str(error)
    return "in order"


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("wait", [False, True])
def test_the_device_refuses_two_groups_that_nothing_orders(wait: bool) -> None:
    for said in ranks.run(2, side_by_side, wait, backend=runtime.BACKEND):
        assert said == "in order" if wait else "nothing orders the two" in said
