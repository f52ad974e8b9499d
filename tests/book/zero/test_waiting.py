"""A gradient of which a part waits in `no_sync` may be dropped, and not changed otherwise."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book.reference import STAGES, all_losses, assert_same_gradients, fill_gradients, toy_loss
from book.toys import chain, said_by
from shardbook.zero.waiting import Found, Watch
from tiers import rows

Change = Callable[[list[nn.Parameter]], Any]


def gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def each(change: Callable[[nn.Parameter], Any]) -> Change:
    return lambda parameters: [change(parameter) for parameter in parameters]


def replace(parameter: nn.Parameter) -> None:
    parameter.grad = gradient(parameter) * 0.5


def point_elsewhere(parameter: nn.Parameter) -> None:
    gradient(parameter).data = gradient(parameter) * 0.5


def add_in_place(parameter: nn.Parameter) -> None:
    parameter.grad += 1  # type: ignore[operator]


def unscale(operation: Any) -> Change:
    """What PyTorch's scaler does."""
    return lambda parameters: operation([*map(gradient, parameters)], torch.zeros(1), torch.full((1,), 0.5))


CHANGES: dict[str, Change] = {
    "unscaled": unscale(torch._amp_foreach_non_finite_check_and_unscale_),
    "unscaled by the operator": unscale(torch.ops.aten._amp_foreach_non_finite_check_and_unscale_),
    "in place": each(lambda parameter: gradient(parameter).mul_(0.5)),
    "added": each(add_in_place),
    "through data": each(lambda parameter: gradient(parameter).data.mul_(0.5)),
    "through a view": each(lambda parameter: gradient(parameter).view(-1).mul_(0.5)),
    "other data": each(point_elsewhere),
    "out": each(lambda parameter: torch.mul(gradient(parameter), 0.5, out=gradient(parameter))),
    "replaced": each(replace),
    "together": lambda parameters: torch._foreach_mul_([gradient(p) for p in parameters], 0.5),
    "clipped by value": lambda parameters: nn.utils.clip_grad_value_(parameters, 1e-3),
    "clipped by value, together": lambda parameters: nn.utils.clip_grad_value_(parameters, 1e-3, True),
    "clipped by norm": lambda parameters: nn.utils.clip_grad_norm_(parameters, 1e-3),
}


def refusal(name: str) -> str:
    return (
        f"the gradient of {name} was changed while a part of it waits in no_sync(), which the change does "
        "not reach; change it after a backward pass outside of no_sync(), or call zero_grad()"
    )


def first(stage: int) -> str:
    """In stage 0 the units are compared in the order of the model, and else in that of the exchanges."""
    return "4.weight" if stage else "0.weight"


def micro_batches(model: nn.Module, numbers: Iterable[int]) -> None:
    from shardbook import no_sync

    for number in numbers:
        with no_sync(model):
            toy_loss(model, dist.get_rank(), number).backward()


def last(model: nn.Module, number: int) -> None:
    toy_loss(model, dist.get_rank(), number).backward()


def changed_while_a_part_waits(stage: int) -> None:
    """With an exchanged part and without one. After `zero_grad` the model trains on like any other."""
    from shardbook import clip_grad_norm_, shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [4])])
    model = shard(chain(), stage=stage)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for before, (how, change) in product((False, True), CHANGES.items()):
        case = stage, before, how
        if before:
            toy_loss(model, rank, 0).backward()
        micro_batches(model, [1])
        change(list(model.parameters()))
        assert said_by(lambda: last(model, 2)) == refusal(first(stage)), case
        # What is there now is neither the one nor the other.
        for act in (optimizer.step, lambda: clip_grad_norm_(model, 1.0)):
            assert "did not end" in said_by(act), case
        (model if before else optimizer).zero_grad()
        last(model, 4)
        assert_same_gradients(model, plain)
        model.zero_grad()


@pytest.mark.nightly
@pytest.mark.parametrize("stage", rows(STAGES, now=[3]))
def test_a_change_is_refused_on_every_rank(stage: int) -> None:
    ranks.run(2, changed_while_a_part_waits, stage)


def halve_one(model: nn.Module, name: str) -> None:
    gradient(dict(model.named_parameters())[name]).mul_(0.5)


class Branches(nn.Module):
    """Rank 0 uses the one layer, rank 1 the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(2)])

    def forward(self, x: Tensor) -> Any:
        return self.layers[dist.get_rank()](x).sum()


def changed_on_one_rank() -> None:
    """By one rank only, in a parameter of which the other has nothing, or which the other has not used."""
    from shardbook import no_sync, shard

    for stage, who in product(STAGES, (0, 1)):
        model = shard(chain(), stage=stage)
        name = ("1.0.weight", "1.2.bias")[who]
        piece = dict(model.named_parameters())[name]
        assert stage == 0 or bool(piece.numel()) is (dist.get_rank() == who)
        micro_batches(model, [1])
        if dist.get_rank() == who:
            halve_one(model, name)
        micro_batches(model, [2])
        assert said_by(lambda model=model: last(model, 3)) == refusal(name), (stage, who)

        branches = shard(Branches(), stage=stage)
        with no_sync(branches):
            branches(torch.ones(2, 3)).backward()
        if dist.get_rank() == who:
            halve_one(branches, f"layers.{who}.weight")
        answer = said_by(branches(torch.ones(2, 3)).backward)
        assert answer == refusal(f"layers.{who}.weight"), (stage, who)


@pytest.mark.full
def test_a_change_on_one_rank_is_refused_on_every_rank() -> None:
    ranks.run(2, changed_on_one_rank)


def zero(parameter: nn.Parameter) -> None:
    """As PyTorch does it."""
    gradient(parameter).requires_grad_(False)
    gradient(parameter).zero_()


def drop(parameter: nn.Parameter) -> None:
    parameter.grad = None


DROPS: dict[str, Change] = {
    "none": each(drop),
    "zero": each(zero),
    "data": each(lambda parameter: gradient(parameter).data.zero_()),
    "detached": each(lambda parameter: gradient(parameter).detach().zero_()),
    "together": lambda parameters: torch._foreach_zero_([gradient(p) for p in parameters]),
    **{
        f"optimizer, {foreach}, {set_to_none}": lambda parameters, options=(foreach, set_to_none): (
            torch.optim.AdamW(parameters, foreach=options[0]).zero_grad(options[1])
        )
        for foreach, set_to_none in product((True, False), repeat=2)
    },
}


def dropped_while_a_part_waits(stage: int) -> None:
    """Also after a change, because nothing of it is left."""
    from shardbook import shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [2, 3])])
    model = shard(chain(), stage=stage)
    for before, changed, (how, act) in product((False, True), (None, 0, 1), DROPS.items()):
        parameters = list(model.parameters())
        if before:
            toy_loss(model, rank, 0).backward()
        micro_batches(model, [1])
        if changed is not None:
            CHANGES["in place"](parameters)
            micro_batches(model, [5] * changed)
        act(parameters)
        micro_batches(model, [2])
        try:
            last(model, 3)
            assert_same_gradients(model, plain)
        except (AssertionError, RuntimeError) as error:
            raise AssertionError(f"{stage, before, changed, how}: {error}") from error
        model.zero_grad()


@pytest.mark.nightly
@pytest.mark.parametrize("stage", rows(STAGES, now=[3]))
def test_what_waits_may_be_dropped_in_every_way(stage: int) -> None:
    ranks.run(2, dropped_while_a_part_waits, stage)


def changed_where_it_is_zero() -> None:
    """The exchanged part is exactly zero, as that of a new LoRA adapter: halved it is still zero."""
    from shardbook import shard

    for stage in STAGES:
        model = shard(chain(), stage=stage)
        (0 * toy_loss(model, dist.get_rank(), 0)).backward()
        micro_batches(model, [1])
        CHANGES["in place"](list(model.parameters()))
        assert said_by(lambda model=model: last(model, 2)) == refusal(first(stage)), stage


def what_is_shown() -> None:
    """Zero or what was exchanged before. Reading changes nothing, and the gradient stays the same object."""
    from shardbook import shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [0]), all_losses(plain, [1, 2])])
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        micro_batches(model, [1])
        for parameter in model.parameters():
            shown = gradient(parameter)
            assert shown.shape == parameter.shape
            assert not shown.any()
            assert not (2 * shown.detach() + shown.data).any()
            # It is one zero in memory, however often somebody reads it.
            assert 0 in shown.stride()
        model.zero_grad()
        toy_loss(model, rank, 0).backward()
        before = [gradient(parameter) for parameter in model.parameters()]
        values = [one.clone() for one in before]
        micro_batches(model, [1])
        for parameter, value in zip(model.parameters(), values, strict=True):
            assert torch.equal(gradient(parameter), value)
            assert type(gradient(parameter) * 1) is Tensor
            for copied in (copy.copy(gradient(parameter)), copy.deepcopy(gradient(parameter))):
                assert type(copied) is Tensor
                assert torch.equal(copied, value)
            # Whoever prints it is told.
            assert repr(gradient(parameter)).startswith("Waiting(")
        last(model, 2)
        for parameter, one in zip(model.parameters(), before, strict=True):
            assert parameter.grad is one
            assert type(one) is Tensor
            assert not vars(one)
        assert_same_gradients(model, plain)


def a_gradient_is_put_back() -> None:
    """A program may take the gradients away for a while. They are what they were."""
    from shardbook import shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [0]), all_losses(plain, [1, 2])])
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        toy_loss(model, rank, 0).backward()
        micro_batches(model, [1])
        taken = [parameter.grad for parameter in model.parameters()]
        for parameter in model.parameters():
            parameter.grad = None
        for parameter, one in zip(model.parameters(), taken, strict=True):
            parameter.grad = one
        last(model, 2)
        assert_same_gradients(model, plain)


class Other(Tensor):
    """A gradient of a class of its own, which it keeps."""


def a_gradient_of_another_class() -> None:
    from shardbook import shard

    plain = chain()
    fill_gradients(plain, [all_losses(plain, [2])])
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter).as_subclass(Other)
        micro_batches(model, [1])
        assert all(type(parameter.grad) is Other for parameter in model.parameters())
        model.zero_grad(set_to_none=False)
        last(model, 2)
        assert_same_gradients(model, plain)


def steps_in_its_backward_pass() -> None:
    from shardbook import shard, step_in_backward

    for stage in STAGES:
        model = shard(chain(), stage=stage)
        step_in_backward(model, lambda parameters: torch.optim.SGD(parameters, lr=0.5))
        before = [parameter.detach().clone() for parameter in model.parameters()]
        micro_batches(model, [1])
        CHANGES["in place"](list(model.parameters()))
        answer = said_by(lambda model=model: last(model, 2))
        # The unit whose gradients arrive first is the last one of the model.
        assert answer in [refusal(name) for name, _ in model.named_parameters()], (stage, answer)
        for parameter, value in zip(model.parameters(), before, strict=True):
            assert torch.equal(parameter, value), stage


def reads_of_a_step() -> None:
    """The host waits for the comparison after micro-batches that waited, and in no other step."""
    from shardbook import no_sync, shard
    from shardbook.zero.unused import Usage

    found, read = [0], Usage.read

    def counted(usage: Usage) -> list[int]:
        found[-1] += 1
        return read(usage)

    Usage.read = counted  # type: ignore[method-assign]
    model = shard(nn.Linear(4, 4), stage=3)
    for waits in (False, True, False):
        if waits:
            with no_sync(model):
                model(torch.ones(2, 4)).sum().backward()
        model(torch.ones(2, 4)).sum().backward()
        found.append(0)
    assert [number > 0 for number in found[:-1]] == [False, True, False]


CASES = [
    a_gradient_of_another_class,
    changed_where_it_is_zero,
    what_is_shown,
    a_gradient_is_put_back,
    steps_in_its_backward_pass,
    reads_of_a_step,
]


@pytest.mark.cases(now=2, ci=2)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_in_every_stage(case: Callable[[], None]) -> None:
    ranks.run(2, case)


def test_one_process_alone_refuses_it_too() -> None:
    ranks.run(1, changed_where_it_is_zero)


def test_hundreds_of_writes_before_do_not_matter() -> None:
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    for _ in range(300):
        gradient(parameter).add_(1)
    acts = {Found.KEPT: torch.norm, Found.DROPPED: Tensor.zero_, Found.CHANGED: Tensor.neg_}
    for found, act in acts.items():
        watch = Watch(parameter)
        act(gradient(parameter))
        assert watch.end(parameter) is found
