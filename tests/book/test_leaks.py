"""Tensors that leave a unit on other ways than as its result: their backward pass reads weights, too.

A unit is announced by what it returns. What a module leaves in an attribute, a list or a closure has a
backward pass that nothing announces. Each such program is compared with plain training, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book.toys import assert_equal, plain_gradients, reference_step, whole_gradients


class Leaks(nn.Module):
    """A block that leaves tensors behind which no result leads to.

    :param what: which tensors it leaves
    """

    def __init__(self, what: str, width: int = 6) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.what, self.left = what, []

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        result: Tensor = x + self.outer(hidden.tanh())
        weight = self.inner.weight
        self.left = {
            "square": lambda: [weight.square().sum()],
            "sum": lambda: [weight.sum()],
            "hidden": lambda: [hidden],
            "sine": lambda: [hidden.sin()],
            "nothing": list,
        }[self.what]()
        return result


class Model(nn.Module):
    def __init__(self, what: str, use: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)
        self.blocks = nn.ModuleList(Leaks(what) for _ in range(2))
        self.use = use

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.last(x)
        return result

    def loss(self, rank: int) -> Tensor:
        loss: Tensor = self(torch.full((3, 4), 0.1 * (rank + 1))).square().mean()
        left = [tensor for block in self.blocks for tensor in block.left]  # type: ignore[union-attr]
        extra = sum((tensor.square().mean() for tensor in left), torch.zeros(()))
        return {"added": loss + extra, "alone": extra, "first": extra + loss}[self.use]


def train_alike(build: Callable[[], Any], stage: int, steps: int = 2) -> None:
    """Some steps of SGD end with the gradients and values of the plain model."""
    from shardbook import shard

    rank, members = dist.get_rank(), range(dist.get_world_size())
    plain = build()
    sharded = shard(build(), stage=stage, units=Leaks)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (plain, sharded)]
    for _ in range(steps):
        reference_step(plain, [[partial(plain.loss, each) for each in members]])
        sharded.loss(rank).backward()
        assert_equal(whole_gradients(sharded), plain_gradients(plain))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()


def what_is_left_behind() -> None:
    for what in ("square", "sum", "hidden", "sine"):
        for use in ("added", "alone", "first"):
            for stage in range(4):
                try:
                    train_alike(partial(Model, what, use), stage)
                except BaseException as error:
                    error.add_note(f"{what} {use} at stage {stage}")
                    raise


@pytest.mark.parametrize("world_size", [1, 2])
def test_what_a_unit_leaves_behind_has_the_gradients_of_plain_training(world_size: int) -> None:
    ranks.run(world_size, what_is_left_behind)
