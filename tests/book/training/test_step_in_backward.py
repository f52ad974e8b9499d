"""Stepping inside the backward pass: the same parameters, and never all gradients at once."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ranks
from book.toys import assert_equal, batch, chain, error, optimizer_for, reference_step
from shardbook.training.accumulate import no_sync, step_in_backward, steps_in_backward
from shardbook.zero.model import shard
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import Unit
from tiers import rows

STEPS = 3


def lean(kind: str, stage: int = 3) -> nn.Module:
    model = shard(chain(), stage=stage)
    step_in_backward(model, partial(optimizer_for, kind))
    return model


def assert_no_gradients(model: nn.Module) -> None:
    assert [name for name, parameter in model.named_parameters() if parameter.grad is not None] == []


# --- the same parameters ---


def equals_a_step_afterwards(kind: str, stage: int) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain, model = chain(), lean(kind, stage)
    optimizer = optimizer_for(kind, plain.parameters())
    for step in range(STEPS):
        losses = reference_step(
            plain, [[partial(error, plain, batch(other, step)) for other in range(world_size)]]
        )
        optimizer.step()
        value = error(model, batch(rank, step))
        value.backward()
        assert value.item() == losses[rank]
        assert_no_gradients(model)
    assert_equal(dict(model.state_dict()), dict(plain.state_dict()))


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("kind", "world_size"), rows([("sgd", 2), ("adamw", 2), ("adamw", 3)], now=[("adamw", 2)])
)
def test_it_equals_a_step_after_the_backward_pass(kind: str, world_size: int, stage: int) -> None:
    ranks.run(world_size, equals_a_step_afterwards, kind, stage)


class Detour(nn.Module):
    """A model whose second layer is used only where it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: torch.Tensor, skip: bool) -> torch.Tensor:
        for layer in [self.layers[0], *([] if skip else [self.layers[1]]), self.layers[2]]:
            x = layer(x)
        return x


def detour_error(model: nn.Module, rank: int, skip: bool) -> torch.Tensor:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(rank))
    value: torch.Tensor = model(x, skip).square().mean()
    return value


def a_skipped_unit_is_not_stepped(stage: int) -> None:
    # That the order changes is told, and is what is wanted here.
    warnings.filterwarnings("ignore", "the units run in another order")
    plain, model = Detour(), shard(Detour(), units=nn.Linear, stage=stage)
    step_in_backward(model, partial(optimizer_for, "adamw"))
    optimizer = optimizer_for("adamw", plain.parameters())
    for skip in (False, True, True):
        reference_step(plain, [[partial(detour_error, plain, other, skip) for other in range(2)]])
        optimizer.step()
        detour_error(model, dist.get_rank(), skip).backward()
        assert_no_gradients(model)
    assert_equal(dict(model.state_dict()), dict(plain.state_dict()))


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_unit_that_no_rank_uses_is_not_stepped(stage: int) -> None:
    ranks.run(2, a_skipped_unit_is_not_stepped, stage)


def both(model: nn.Module, rank: int, parts: list[int]) -> torch.Tensor:
    return torch.stack([error(model, batch(rank, part)) for part in parts]).sum()


def micro_batches_step_once() -> None:
    rank = dist.get_rank()
    plain, model = chain(), lean("sgd")
    optimizer = optimizer_for("sgd", plain.parameters())
    for parts in ([0, 1], [2, 3]):
        reference_step(plain, [[partial(both, plain, other, parts) for other in range(2)]])
        optimizer.step()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with no_sync(model):
            error(model, batch(rank, parts[0])).backward()
        assert all(map(torch.equal, before, model.parameters()))
        error(model, batch(rank, parts[1])).backward()
        assert_no_gradients(model)
    # The plain model adds the two gradients of a parameter in another order.
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()), rtol=0, atol=1e-6)


def test_micro_batches_under_no_sync_make_one_step() -> None:
    ranks.run(2, micro_batches_step_once)


# --- never all gradients at once ---


def bytes_of_gradients() -> tuple[list[int], list[int]]:
    """What the slices' gradients hold each time a unit's mean has arrived; and each unit's own share."""
    model = lean("adamw")
    units = list(scheduler_of(model).units)
    seen: dict[Unit, int] = {}

    def look(unit: Unit) -> None:
        storages = {
            parameter.grad.untyped_storage()._cdata: parameter.grad.untyped_storage().nbytes()
            for parameter in model.parameters()
            if parameter.grad is not None
        }
        seen[unit] = sum(storages.values())

    for unit in units:
        unit.after_reduce.insert(0, look)
    error(model, batch(dist.get_rank(), 0)).backward()
    return [seen[unit] for unit in units], [4 * unit.flats[0].layout.shard_numel for unit in units]


def test_only_one_unit_has_its_mean_gradient_at_a_time() -> None:
    for found, expected in ranks.run(2, bytes_of_gradients):
        assert len(found) == 5
        assert found == expected


# --- what is refused ---


def refusals() -> list[str]:
    model = lean("sgd")
    assert steps_in_backward(model)
    assert not steps_in_backward(shard(chain()))
    said = []
    with pytest.raises(ValueError, match="call step_in_backward once") as twice:
        step_in_backward(model, partial(optimizer_for, "sgd"))
    said.append(str(twice.value))
    error(model, batch(0, 0)).backward()
    with pytest.raises(RuntimeError, match="remove it, and accumulate under no_sync") as late:
        optimizer_for("adamw", model.parameters()).step()
    said.append(str(late.value))
    value = error(model, batch(0, 1))
    value.backward(retain_graph=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(RuntimeError, match="call backward before the optimizer steps") as again:
        value.backward()
    said.append(str(again.value))
    assert all(map(torch.equal, before, model.parameters()))
    # The next step works.
    error(model, batch(0, 2)).backward()
    assert not all(map(torch.equal, before, model.parameters()))
    return said


def test_what_cannot_work_is_refused_in_one_sentence() -> None:
    for said in ranks.run(2, refusals):
        assert len(said) == 3
        for sentence in said:
            assert "\n" not in sentence
            assert len(sentence) < 160
