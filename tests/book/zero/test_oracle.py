"""Sharded training equals plain training, bit for bit: gradients, losses and final parameters.

The conditions are those that the book states: fp32, unfused optimizers, one reduction a round.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ranks
from book.toys import (
    assert_equal,
    batch,
    chain,
    error,
    optimizer_for,
    plain_gradients,
    reference_step,
    whole_gradients,
)
from tiers import rows

STEPS = 4


def sharded_equals_reference(optimizer: str, accumulate: int) -> None:
    from shardbook import shard

    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain = chain()
    # Other ranks start elsewhere: rank 0's values must win.
    sharded = shard(chain(seed=rank))
    optimizers = [optimizer_for(optimizer, model.parameters()) for model in (plain, sharded)]
    for step in range(STEPS):
        numbers = [step * accumulate + micro for micro in range(accumulate)]
        rounds = [
            [partial(error, plain, batch(other, number)) for other in range(world_size)] for number in numbers
        ]
        losses = reference_step(plain, rounds)
        for micro, number in enumerate(numbers):
            loss = error(sharded, batch(rank, number))
            loss.backward()
            assert loss.item() == losses[micro * world_size + rank]
        assert_equal(whole_gradients(sharded), plain_gradients(plain))
        for each in optimizers:
            each.step()
            each.zero_grad()
    assert_equal(dict(sharded.state_dict()), dict(plain.state_dict()))


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("world_size", rows([1, 2, 3, 4], now=[1, 3]))
@pytest.mark.parametrize(("optimizer", "accumulate"), [("sgd", 1), ("adamw", 1), ("sgd", 3)])
def test_sharded_training_equals_a_reference_that_sums_in_rank_order(
    world_size: int, optimizer: str, accumulate: int
) -> None:
    ranks.run(world_size, sharded_equals_reference, optimizer, accumulate)


def sharded_equals_ddp(optimizer: str) -> None:
    from shardbook import shard

    plain = chain()
    ddp = DistributedDataParallel(plain)
    sharded = shard(chain())
    optimizers = [optimizer_for(optimizer, model.parameters()) for model in (plain, sharded)]
    for step in range(STEPS):
        data = batch(dist.get_rank(), step)
        losses = [error(model, data) for model in (ddp, sharded)]
        for loss in losses:
            loss.backward()
        assert losses[0].item() == losses[1].item()
        assert_equal(whole_gradients(sharded), plain_gradients(plain))
        for each in optimizers:
            each.step()
            each.zero_grad()
    assert_equal(dict(sharded.state_dict()), dict(plain.state_dict()))


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_at_two_ranks_sharded_training_equals_ddp(optimizer: str) -> None:
    ranks.run(2, sharded_equals_ddp, optimizer)


def gpt_equals_reference() -> None:
    from shardbook import shard
    from shardbook.models.gpt import GPT, Block, Config

    rank, world_size = dist.get_rank(), dist.get_world_size()
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(GPT(Config(layers=3, width=24, heads=2, context=6, vocabulary=16)))
    plain, sharded = models[0], shard(models[1], units=Block)
    optimizers = [optimizer_for("adamw", model.parameters()) for model in (plain, sharded)]
    for step in range(STEPS):
        reference_step(plain, [[partial(error, plain, batch(other, step)) for other in range(world_size)]])
        error(sharded, batch(rank, step)).backward()
        assert_equal(whole_gradients(sharded), plain_gradients(plain))
        for each in optimizers:
            each.step()
            each.zero_grad()
    assert_equal(dict(sharded.state_dict()), dict(plain.state_dict()))


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_gpt_with_blocks_as_units_and_the_rest_as_root(world_size: int) -> None:
    ranks.run(world_size, gpt_equals_reference)


def layer_equals_reference() -> None:
    from shardbook import Zero3Layer, Zero3Sequential

    rank, world_size = dist.get_rank(), dist.get_world_size()
    plain = chain()
    for sharded in (Zero3Layer(chain(seed=rank)), Zero3Sequential(*chain(seed=rank))):
        reference_step(plain, [[partial(error, plain, batch(other, 0)) for other in range(world_size)]])
        error(sharded, batch(rank, 0)).backward()
        found = {name.removeprefix("module."): value for name, value in whole_gradients(sharded).items()}
        assert_equal(found, plain_gradients(plain))


def test_a_layer_alone_and_a_sequential_of_layers() -> None:
    ranks.run(3, layer_equals_reference)


def frozen_subset_equals_reference() -> None:
    from shardbook import shard

    rank, world_size = dist.get_rank(), dist.get_world_size()

    def build() -> nn.Module:
        model = chain()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("1." in name or name.endswith("bias"))
        return model

    plain, sharded = build(), shard(build())
    optimizers = [optimizer_for("adamw", model.parameters()) for model in (plain, sharded)]
    for step in range(STEPS):
        reference_step(plain, [[partial(error, plain, batch(other, step)) for other in range(world_size)]])
        error(sharded, batch(rank, step)).backward()
        for parameter in sharded.parameters():
            assert (parameter.grad is not None) == parameter.requires_grad
        for each in optimizers:
            each.step()
            each.zero_grad()
    assert_equal(dict(sharded.state_dict()), dict(plain.state_dict()))


def test_frozen_parameters_stay_and_have_no_gradient() -> None:
    ranks.run(2, frozen_subset_equals_reference)
