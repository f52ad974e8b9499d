"""The learning rate, against PyTorch's own schedules."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.optim import lr_scheduler

from shardbook.train.plan import Schedule


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(1)), torch.nn.Parameter(torch.ones(1))], lr=7.0)


@pytest.mark.parametrize(("steps", "warmup", "end"), [(20, 5, 0.1), (20, 1, 0.0), (9, 8, 0.5), (12, 4, 1.0)])
def test_the_rates_are_those_of_pytorch(steps: int, warmup: int, end: float) -> None:
    reference = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.3)
    rising = lr_scheduler.LinearLR(reference, 1 / warmup, total_iters=warmup - 1)
    expected = []
    for _ in range(warmup):
        expected.append(reference.param_groups[0]["lr"])
        reference.step()
        rising.step()
    falling = lr_scheduler.CosineAnnealingLR(reference, max(1, steps - 1 - warmup), 0.3 * end)
    for _ in range(steps - warmup):
        expected.append(reference.param_groups[0]["lr"])
        reference.step()
        with warnings.catch_warnings():
            falling.step()
    made = Schedule(0.3, steps, warmup, "cosine", end)
    assert [made.at(number) for number in range(steps)] == pytest.approx(expected, rel=1e-12)


def test_a_constant_schedule_stays_at_its_peak_after_the_warm_up() -> None:
    made = Schedule(0.4, steps=6, warmup=2)
    assert [made.at(number) for number in range(6)] == [0.2, 0.4, 0.4, 0.4, 0.4, 0.4]


def test_a_rate_reaches_every_group_and_depends_on_the_step_alone() -> None:
    made, trained = Schedule(1.0, 10, 4, "cosine"), optimizer()
    trained.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 9.0})
    for number in (7, 0, 7):
        assert made.apply(trained, number) == made.at(number)
        assert [group["lr"] for group in trained.param_groups] == [made.at(number)] * 2
