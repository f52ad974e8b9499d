"""A run on a device that is saved and goes on: bit for bit, on the same device and on another."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ranks
from device import runtime
from shardbook import Policy, shard
from shardbook.state.run_state import load_run, save_run

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("late_device")]


class Run:
    """A model that drops out, with data that are drawn on its device."""

    def __init__(self, device: str, seed: int, policy: Policy | None) -> None:
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.Dropout(0.3), nn.Linear(9, 6))
        self.device = torch.device(device)
        self.model = shard(model.to(self.device), units=nn.Linear, policy=policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        torch.manual_seed(seed + dist.get_rank())

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            x = torch.randn(4, 6, device=self.device)
            loss = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses


def goes_on(folder: Path, first: list[str], second: list[str], offload: bool) -> bool:
    """Whether a run that was saved goes on as before; the devices of its ranks before, and after."""
    rank, policy = dist.get_rank(), Policy(offload=True) if offload else None
    run = Run(first[rank], 1, policy)
    run.train(2)
    save_run(folder, run.model, run.optimizer)
    expected = run.train(3)
    other = Run(second[rank], 2, policy)
    other.train(1)
    load_run(folder, other.model, other.optimizer)
    return other.train(3) == expected


HERE, THERE = ["late:0", "late:1"], ["late:1", "late:1"]


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("offload", [False, True], ids=["", "offload"])
@pytest.mark.parametrize("second", [HERE, THERE], ids=["same", "other"])
def test_random_numbers_of_a_device_go_on(tmp_path: Path, second: list[str], offload: bool) -> None:
    """A rank may find itself on another device when the job is started again."""
    found = ranks.run(2, goes_on, tmp_path / "saved", HERE, second, offload, backend=runtime.BACKEND)
    assert found == [True, True]
