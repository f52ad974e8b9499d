"""What a unit's forward pass takes, returns and writes to: objects, its caller's list, its own parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import ranks
from book.reference import compare
from book.toys import features


@dataclass
class Result:
    hidden: Tensor
    name: str = "result"


class GivesAnObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Result:
        return Result(self.linear(x))


class ReadsAnObject(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = GivesAnObject(), GivesAnObject()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x).hidden).hidden
        return y


def outputs_in_an_object() -> None:
    compare(ReadsAnObject, lambda model, rank: model(features(rank)).square().sum(), units=GivesAnObject)


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(4, 3)
        self.second = nn.LSTM(3, 3)

    def forward(self, x: PackedSequence) -> Tensor:
        y: Tensor = pad_packed_sequence(self.second(self.lstm(x)[0])[0])[0]
        return y


def packed_sequences() -> None:
    def loss(model: nn.Module, rank: int) -> Tensor:
        x = torch.full((3, 2, 4), 0.3 * (rank + 1))
        return model(pack_padded_sequence(x, torch.tensor([3, 2]))).square().sum()  # type: ignore[no-any-return]

    compare(Packed, loss, units=nn.LSTM)


def a_sparse_output() -> None:
    class GivesSparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.linear(x)
            return y.to_sparse()

    def build() -> nn.Module:
        return nn.ModuleDict({"gives": GivesSparse()})

    compare(
        build,
        lambda model, rank: model["gives"](features(rank)).to_dense().square().sum(),  # type: ignore[index]
        units=GivesSparse,
    )


class LeavesALeaf(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.outside = [torch.ones(4, requires_grad=True)]

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.linear(x), self.outside[0]


def hooks_do_not_pile_up_on_a_tensor_that_is_returned_each_time() -> None:
    from shardbook import shard

    model = shard(nn.ModuleDict({"leaves": LeavesALeaf()}), units=LeavesALeaf)["leaves"]
    for _ in range(3):
        y, leaf = model(features(0))
        (y.sum() + leaf.sum()).backward()
    assert not leaf._backward_hooks


class Appends(nn.Module):
    """Leaves something in a list of its caller's, as a cache of keys and values does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, cache: list[Tensor], *, more: dict[str, Any]) -> Tensor:
        y: Tensor = self.linear(x)
        cache.append(y.detach())
        more["last"] = y.detach()
        return y


def what_a_layer_leaves_in_its_arguments_reaches_the_caller() -> None:
    from shardbook import Zero3Layer

    layer = Zero3Layer(Appends())
    for x in (features(0), features(0).requires_grad_()):
        cache: list[Tensor] = [x * 2]
        more: dict[str, Any] = {}
        y = layer(x, cache, more=more)
        assert len(cache) == 2
        assert torch.equal(more["last"], y)


class SelfAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2)
        self.same: list[bool] = []
        self.attention.register_forward_pre_hook(
            lambda _, args: self.same.append(args[0] is args[1] is args[2])
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        y: Tensor = self.attention(x, x, x)[0]
        return y


def one_argument_passed_three_times_stays_one() -> None:
    """Attention computes with one product instead of three where query, key and value are one object."""
    sharded = compare(
        SelfAttention,
        lambda model, rank: model(torch.full((3, 2, 8), 0.2 * (rank + 1))).square().sum(),
        units=lambda name, module: name in ("before", "attention"),
    )
    assert sharded.same == [True]


class Clamped(nn.Module):
    """Writes to its own parameter, if it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((4, 4), 5.0))
        self.writes = True

    def forward(self, x: Tensor) -> Tensor:
        if self.writes:
            with torch.no_grad():
                self.weight.clamp_(-1, 1)
        return x @ self.weight


def a_forward_pass_that_writes_to_its_parameters() -> None:
    """A write to what was gathered or cast is lost. A write to the stored parameters lasts."""
    from shardbook import Policy, shard

    policies = (None, Policy(param_dtype=torch.bfloat16), Policy(offload=True))
    for stage, policy, grad in product(range(4), policies, (True, False)):
        for build in (Clamped, partial(nn.Embedding, 8, 4, max_norm=0.1)):
            plain, model = nn.Sequential(build()), shard(nn.Sequential(build()), stage=stage, policy=policy)
            x = torch.ones(1, 4) if build is Clamped else torch.arange(4)
            with torch.set_grad_enabled(grad):
                if stage == 0 and policy is None:
                    plain.load_state_dict(model.state_dict())
                    assert torch.equal(model(x), plain(x))
                    assert torch.equal(model.state_dict()["0.weight"], plain.state_dict()["0.weight"])
                    continue
                with pytest.raises(RuntimeError, match="has written to its own parameters"):
                    model(x)
            if build is Clamped:
                # The unit is free, and the next pass is like any other.
                model[0].writes = False
                model(x).sum().backward()


CASES: list[Callable[[], None]] = [
    outputs_in_an_object,
    packed_sequences,
    a_sparse_output,
    hooks_do_not_pile_up_on_a_tensor_that_is_returned_each_time,
    what_a_layer_leaves_in_its_arguments_reaches_the_caller,
    one_argument_passed_three_times_stays_one,
    a_forward_pass_that_writes_to_its_parameters,
]


@pytest.mark.cases(now=3, ci=3)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_forward_pass(case: Callable[[], None]) -> None:
    ranks.run(2, case)
