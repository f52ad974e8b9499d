"""A rank that has fewer batches than the others, and leaves: the others say who, and what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ranks
from book.toys import batch, chain, error
from shardbook import Disagreement, no_sync, shard, step_in_backward
from shardbook.foundations.watchdog import leave
from shardbook.zero.scheduler import scheduler_of
from tiers import rows

pytestmark = pytest.mark.full

UNEVEN = "give every rank as many batches, or loop over shardbook.join(batches)"


def unequal_numbers(stage: int) -> str:
    """Rank 1 has two batches, rank 0 has three."""
    # PyTorch warns that the hooks after a forward pass that raised have raised the same.
    warnings.simplefilter("ignore")
    rank = dist.get_rank()
    model = shard(chain(), stage=stage)
    order = scheduler_of(model).order
    for step in range(2):
        error(model, batch(rank, step)).backward()
    if rank == 1:
        # What runs when the program ends.
        leave(order.rendezvous, os.getpid())
        return ""
    with pytest.raises(Disagreement) as caught:
        error(model, batch(rank, 2)).backward()
    return str(caught.value)


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("stage", rows([0, 3], now=[3]))
def test_a_rank_whose_batches_ran_out_is_named(stage: int) -> None:
    said, _ = ranks.run(2, unequal_numbers, stage)
    assert said.startswith("rank 1, after ")
    assert "exchanges, is about to end its program or to drop the model, but rank 0 went on" in said
    assert said.endswith(UNEVEN)


def goes_on_alone(how: str) -> str:
    """Rank 1 is through with its batches, and evaluates, or calls a layer, or keeps its gradients."""
    warnings.simplefilter("ignore")
    rank = dist.get_rank()
    model = shard(chain())
    for step in range(2):
        error(model, batch(rank, step)).backward()
    model.train(rank == 0)
    layer: Any = model[0]
    called = (
        partial(layer, batch(rank, 2)[0])
        if rank and how == "separate 0"
        else partial(error, model, batch(rank, 2))
    )
    if how == "accumulating backward":
        loss = error(model, batch(rank, 2))
        with pytest.raises(Disagreement) as caught, no_sync(model) if rank else nullcontext():
            loss.backward()
        return str(caught.value)
    with pytest.raises(Disagreement) as caught, torch.set_grad_enabled(rank == 0):
        called()
    return str(caught.value)


@pytest.mark.parametrize("how", ["evaluation", "separate 0", "accumulating backward"])
def test_a_rank_that_has_gone_on_to_something_else_is_named_on_every_rank(how: str) -> None:
    first, second = ranks.run(2, goes_on_alone, how)
    assert first == second
    # Of the two, the rank that came first is named first.
    kinds = [re.search(f"rank {rank}\\b.*? its ([\\w ]+) pass", first) for rank in range(2)]
    usual = "backward" if "backward" in how else "forward"
    assert [kind and kind[1] for kind in kinds] == [usual, how], first
    assert first.endswith(UNEVEN)


class Cut(torch.nn.Sequential):
    """On one rank, no gradient comes to the first layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self[0](x)
        y: torch.Tensor = self[1](x.detach() if dist.get_rank() else x)
        return y


def leaves_out_the_last_unit() -> str:
    """Each unit steps by itself, so the ranks compare nothing at the end of the backward pass."""
    model = shard(Cut(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), stage=2, units=torch.nn.Linear)
    step_in_backward(model, partial(torch.optim.SGD, lr=0.1))
    loss = model(torch.ones(2, 4)).sum()
    with pytest.raises(Disagreement) as caught:
        loss.backward()
    return str(caught.value)


def test_the_backward_pass_of_a_rank_that_leaves_out_the_last_unit_does_not_end() -> None:
    first, second = ranks.run(2, leaves_out_the_last_unit)
    assert first == second
    assert "is about to compare the used parameters of 0" in first


# A process that has imported torch._dynamo may be aborted at its end, because the threads of gloo still run.
# What is registered first runs last, after all that the program has to say, and ends it before that.
PROGRAM = """
import atexit, os, sys
atexit.register(os._exit, 0)
import torch, torch.distributed as dist
from shardbook import shard

rank = int(sys.argv[1])
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
model = shard(torch.nn.Linear(3, 3))
for step in range(3 - rank):
    model(torch.ones(2, 3)).sum().backward()
dist.destroy_process_group()
"""


@pytest.mark.nightly
def test_the_end_of_a_program_is_announced(tmp_path: Path) -> None:
    line = [sys.executable, "-c", PROGRAM]
    here = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([*line, str(rank), str(tmp_path / "store")], **here) for rank in range(2)]
    told = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0, 0], told
    assert not told[1]
    said = next(
        line for line in told[0].splitlines()[::-1] if "shardbook.foundations.agreement.Disagreement" in line
    )
    assert "rank 1" in said
    assert said.endswith(UNEVEN)
