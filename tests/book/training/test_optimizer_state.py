"""Optimizer state goes from a plain model to a sharded one and back, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

import ranks
from book.reference import ordered_mean
from shardbook import Disagreement, Policy
from shardbook.zero.flat import is_sharded

pytestmark = pytest.mark.full


class Model(nn.Module):
    """A matrix, vectors, a number, a frozen weight, one that no pass uses, and a tied one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(5, 7), nn.Linear(7, 5)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.unused = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.second.tied = self.first.bias

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.tanh(self.first(x)) + self.second.tied) * self.scale * self.frozen
        return y


DATA = torch.linspace(-1, 1, 15).view(3, 5)
Make = Callable[[nn.Module], Optimizer]


def train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    """All ranks have the same data, so a plain model knows the gradients of all of them."""
    for step in range(steps):
        (model(DATA + step).square().sum() / 64).backward()
        for p in model.parameters():
            if not is_sharded(p) and p.grad is not None:
                p.grad = ordered_mean([p.grad] * dist.get_world_size())
        optimizer.step()
        optimizer.zero_grad()


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    head = [model.second.weight, model.second.bias]
    rest = [p for p in model.parameters() if all(p is not h for h in head)]
    return [{"params": head, "lr": 0.02}, {"params": rest, "weight_decay": 0.1}]


def adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(two_groups(model), foreach=True)


def fused(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(two_groups(model), fused=True, amsgrad=True)


def momentum(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(two_groups(model), lr=0.1, momentum=0.9)


def nadam(model: nn.Module) -> Optimizer:
    return torch.optim.NAdam(model.parameters())


def some(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW([model.first.weight, model.scale])


MAKES: list[Make] = [adamw, fused, momentum, nadam, some]


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["param_groups"] == expected["param_groups"]
    assert sorted(found["state"]) == sorted(expected["state"]), (found["state"], expected["state"])
    for number, entries in expected["state"].items():
        assert list(found["state"][number]) == list(entries), number
        for key, value in entries.items():
            other = found["state"][number][key]
            if isinstance(value, Tensor):
                assert other.shape == value.shape, (number, key, other.shape)
                assert other.dtype == value.dtype, (number, key, other.dtype)
                assert torch.equal(other, value), (number, key)
            else:
                assert other == value, (number, key)


def there_and_back() -> None:
    from shardbook import load_optimizer_state_dict, optimizer_state_dict, shard

    for stage, make in [(3, make) for make in MAKES] + [(stage, adamw) for stage in (0, 1, 2)]:
        plain = Model()
        theirs = make(plain)
        train(plain, theirs, 2)
        # A model that nobody has trained gets values and state of one that was.
        model = shard(Model(), stage=stage, units=nn.Linear)
        model.load_state_dict(plain.state_dict())
        ours = make(model)
        state = theirs.state_dict()
        load_optimizer_state_dict(model, ours, state)
        train(plain, theirs, 2)
        train(model, ours, 2)
        whole = optimizer_state_dict(model, ours)
        unused = {
            n for n, p in enumerate(p for g in ours.param_groups for p in g["params"]) if p is model.unused
        }
        for number in unused & set(whole["state"]) - set(theirs.state_dict()["state"]):
            del whole["state"][number]
        assert_same(whole, theirs.state_dict())
        # The other way: a plain program goes on with what a sharded one has saved.
        other = Model()
        other.load_state_dict(model.state_dict())
        again = make(other)
        again.load_state_dict(copy.deepcopy(whole))
        train(other, again, 1)
        train(plain, theirs, 1)
        assert_same(again.state_dict(), theirs.state_dict())
        # What was saved is a copy.
        before = whole["state"][0]
        kept = {key: value.clone() for key, value in before.items() if isinstance(value, Tensor)}
        train(model, ours, 1)
        assert all(torch.equal(before[key], kept[key]) for key in kept), before


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_state_goes_from_a_plain_model_to_a_sharded_one_and_back(world_size: int) -> None:
    ranks.run(world_size, there_and_back)


def on_masters() -> None:
    from shardbook import load_optimizer_state_dict, optimizer_state_dict, shard

    for policy in (Policy(param_dtype=torch.bfloat16), Policy(offload=True)):
        model = shard(Model(), units=nn.Linear, policy=policy)
        optimizer = adamw(model)
        assert optimizer_state_dict(model, optimizer)["state"] == {}
        train(model, optimizer, 2)
        whole = optimizer_state_dict(model, optimizer)
        assert whole["state"][0]["exp_avg"].shape == (5, 7)
        assert whole["state"][0]["exp_avg"].dtype == torch.float32
        other = shard(Model(), units=nn.Linear, policy=policy, stage=1)
        loaded = adamw(other)
        load_optimizer_state_dict(other, loaded, whole)
        assert_same(optimizer_state_dict(other, loaded), whole)


def refused() -> list[str]:
    from shardbook import load_optimizer_state_dict, optimizer_state_dict, shard

    model, other = shard(Model()), shard(Model())
    optimizer = adamw(model)
    train(model, optimizer, 1)
    said = []
    for attempt in (
        lambda: load_optimizer_state_dict(model, optimizer, optimizer.state_dict()),
        lambda: optimizer_state_dict(other, optimizer),
        lambda: optimizer_state_dict(Model(), optimizer),
    ):
        try:
            attempt()
        except ValueError as error:
            said.append(str(error))
    if dist.get_rank():
        del optimizer.state[model.scale]
    with pytest.raises(Disagreement, match="ranks hold different optimizer state"):
        optimizer_state_dict(model, optimizer)
    return said


def also() -> list[str]:
    on_masters()
    return refused()


def test_state_is_that_of_the_masters_and_other_state_is_refused() -> None:
    for said in ranks.run(2, also):
        slices, another, plain = said
        assert slices.startswith("exp_avg of second.weight has shape (")
        assert "the whole parameter (5, 7); load what optimizer_state_dict() returned" in slices
        assert another.startswith("this AdamW trains parameters of another sharded model")
        assert plain.startswith("this Model is not sharded")
