"""Several models, losses and optimizers with one scaler, and a scale that stays the same."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ranks
from shardbook.precision.loss_scaling import GradScaler


def two_models() -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)) for _ in range(2)]


def losses_of(models: list[nn.Module], inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Two losses, each of which depends on both models."""
    one, two = (model(inputs) for model in models)
    return (one + two - 1).square().mean(), (one - two + 2).square().mean()


def train(
    models: list[nn.Module], scaler: Any, rank: int = 0, *, together: bool = False
) -> list[list[float]]:
    """Three steps of the loop in the text; returns both models' values, or what this rank has of them."""
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(3):
        inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(10 * step + rank))
        first, second = losses_of(models, inputs)
        if together:
            scaler.scale(first + second).backward()
        else:
            scaler.scale(first).backward(retain_graph=True)
            scaler.scale(second).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update()
    return [parameter.detach().flatten().tolist() for model in models for parameter in model.parameters()]


def flattened(values: list[list[float]]) -> list[float]:
    return [number for each in values for number in each]


def test_two_losses_through_one_graph_train_as_without_a_scaler() -> None:
    # A power of two changes exponents only, so the results are equal to the bit.
    plain = train(two_models(), GradScaler(enabled=False))
    assert train(two_models(), GradScaler(init_scale=2.0**10)) == plain
    # One backward pass of the sum adds the same gradients, and rounds elsewhere.
    summed = train(two_models(), GradScaler(init_scale=2.0**10), together=True)
    assert flattened(summed) == pytest.approx(flattened(plain), rel=1e-4, abs=1e-6)


def test_an_overflow_of_one_optimizer_holds_back_that_one_only() -> None:
    models, scaler = two_models(), GradScaler(init_scale=8.0)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    before = [[p.detach().clone() for p in model.parameters()] for model in models]
    first, second = losses_of(models, torch.ones(2, 4))
    scaler.scale(first).backward(retain_graph=True)
    scaler.scale(second).backward()
    next(models[1].parameters()).grad.view(-1)[0] = math.inf  # type: ignore[union-attr]
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    moved = [
        any(not torch.equal(*pair) for pair in zip(old, model.parameters(), strict=True))
        for old, model in zip(before, models, strict=True)
    ]
    assert moved == [True, False]
    assert scaler.get_scale() == 4.0


def test_a_constant_scale_skips_and_stays() -> None:
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.25)
    scaler, seen = GradScaler(init_scale=1024.0, growth_interval=1), []
    for factor in (1.0, math.inf, 1.0):
        scaler.scale(weight.sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update(1024.0)
        optimizer.zero_grad()
        seen.append((weight.item(), scaler.get_scale()))
    assert seen == [(0.75, 1024.0), (0.75, 1024.0), (0.5, 1024.0)]


def reference() -> list[Tensor]:
    """Both models after three steps with the mean of what two ranks read, without a scaler."""
    models = two_models()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    for step in range(3):
        for rank in range(2):
            inputs = torch.randn(6, 4, generator=torch.Generator().manual_seed(10 * step + rank))
            (sum(losses_of(models, inputs)) / 2).backward()  # type: ignore[union-attr]
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [value for model in models for value in model.state_dict().values()]


def sharded_models_train_alike() -> None:
    import torch.distributed as dist

    from shardbook import shard
    from shardbook.precision.loss_scaling import ShardedGradScaler

    for stage in range(4):
        models = [shard(model, stage=stage) for model in two_models()]
        train(models, ShardedGradScaler(init_scale=2.0**10), dist.get_rank())
        found = [value for model in models for value in model.state_dict().values()]
        for value, wanted in zip(found, reference(), strict=True):
            torch.testing.assert_close(value, wanted)


@pytest.mark.full
def test_two_sharded_models_share_a_graph_and_a_scaler_in_every_stage() -> None:
    ranks.run(2, sharded_models_train_alike)
