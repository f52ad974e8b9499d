"""A policy around sharded units: what sharding does in its hooks is not counted, and training is the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from shardbook.checkpointing.saved_tensors import checkpoint_saved
from shardbook.checkpointing.selective import Keep, contexts
from tiers import rows

aten = torch.ops.aten


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.linear(torch.tanh(self.norm(x)))
        return result


class Units(nn.Module):
    """Four units of equal size, each of whose kept tensors could pass for another's."""

    def __init__(self, around: int, policy: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.units = nn.ModuleList(Residual() for _ in range(4))
        self.around, self.policy = around, policy

    def some(self, first: int, x: Tensor) -> Tensor:
        for unit in self.units[first : first + self.around]:
            x = unit(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        for first in range(0, 4, self.around):
            some = partial(self.some, first)
            if self.policy is None:
                x = some(x)
            else:
                x = checkpoint_saved(some, x, context_fn=partial(contexts, self.policy))
        return x


def prefer_all(op: Any, *args: Any, **kwargs: Any) -> Keep:
    return Keep.PREFER


def prefer_copies(op: Any, *args: Any, **kwargs: Any) -> Keep:
    return Keep.PREFER if "copy" in op.name() else Keep.RECOMPUTE


def train_units(stage: int) -> dict[str, bool]:
    """For each way to shard and each policy: is training that without checkpoints?"""
    from shardbook import Policy, shard

    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "bf16": {"policy": Policy(param_dtype=torch.bfloat16)},
        "offload": {"policy": Policy(offload=True, param_dtype=torch.bfloat16), "prefetch": 2},
    }
    equal = {}
    for name, options in ways.items():
        for around in (2, 4):
            trained = []
            for policy in (None, prefer_all, prefer_copies, [aten.addmm, aten._to_copy]):
                model = shard(Units(around, policy), stage=stage, units=Residual, **options)
                optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
                for step in range(2):
                    torch.manual_seed(10 * step + dist.get_rank())
                    model(torch.randn(3, 4)).square().sum().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                trained.append([value.clone() for value in model.state_dict().values()])
            for kind, found in zip(("all", "copies", "products"), trained[1:], strict=True):
                equal[f"{name}, {around} units, {kind}"] = all(map(torch.equal, found, trained[0]))
    return equal


@pytest.mark.nightly
@pytest.mark.parametrize("stage", rows([2, 3], now=[3]))
def test_what_sharding_does_in_its_hooks_is_no_part_of_the_function(stage: int) -> None:
    """The second run gathers one unit less, and would take its copies for those of another."""
    for equal in ranks.run(2, train_units, stage):
        assert [name for name, alike in equal.items() if not alike] == []


def keep_everything_around_checkpoints_that_wait_elsewhere() -> list[bool]:
    """In the second run nothing is moved, so the copies of the first must not be counted."""
    from shardbook.streaming.residual import offload, partition

    torch.manual_seed(0)
    weights = [torch.randn(6, 6, requires_grad=True) for _ in range(4)]
    x = torch.randn(5, 6, requires_grad=True)

    def layer(number: int, x: Tensor) -> Tensor:
        return torch.tanh(x @ weights[number])

    def chain(waiting: Any, again: Callable[..., Tensor], x: Tensor) -> Tensor:
        x = layer(0, x)
        with waiting:
            x = again(partial(layer, 2), again(partial(layer, 1), x * 2) * 2)
        # A copy of the function's own, into memory of the size of a rank's piece.
        half = torch.zeros(15).copy_(x.reshape(-1)[:15])
        return layer(3, half.repeat(2).view(5, 6)).exp()

    equal = []
    for waiting in (partition(least=1), partition(least=1, offload=True), offload(least=1)):
        expected = chain(waiting, lambda function, x: function(x), x)
        function = partial(chain, waiting, checkpoint_saved)
        found = checkpoint_saved(function, x, context_fn=partial(contexts, prefer_all))
        gradients = [torch.autograd.grad(y.sum(), [x, *weights]) for y in (expected, found)]
        equal.append(all(map(torch.equal, *gradients)))
    return equal


def test_what_moves_checkpoints_is_no_part_of_the_function() -> None:
    assert ranks.run(2, keep_everything_around_checkpoints_that_wait_elsewhere) == [[True] * 3] * 2


def asked_in_a_block() -> set[str]:
    """The operations that a policy is asked about in a function that has a block of `whole`."""
    from shardbook import shard, whole

    model = shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), units=nn.Linear)
    asked = set()

    def policy(op: Any, *args: Any, **kwargs: Any) -> Keep:
        asked.add(op.name())
        return Keep.RECOMPUTE

    def penalty(x: Tensor) -> Tensor:
        with whole(model):
            return (model[1].weight * x).sum()

    x = torch.ones(4, requires_grad=True)
    checkpoint_saved(penalty, x, context_fn=partial(contexts, policy)).backward()
    return asked


def test_the_gathers_of_a_block_are_no_part_of_the_function() -> None:
    for asked in ranks.run(2, asked_in_a_block):
        assert asked == {"aten::mul.Tensor", "aten::sum"}
