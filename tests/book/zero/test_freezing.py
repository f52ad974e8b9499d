"""`requires_grad` may change after sharding, on all ranks alike, and the next forward pass obeys."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book.reference import (
    STAGES,
    all_losses,
    assert_same_gradients,
    assert_same_values,
    fill_gradients,
    without_gradient,
)
from book.toys import batch, chain, error

Change = Callable[[nn.Module], object]


def freeze(*layers: int, but: bool = False) -> Change:
    """Freeze some layers of a chain and train the others; `but` is for the opposite."""

    def change(model: nn.Module) -> None:
        for number, layer in enumerate(model.children()):
            layer.requires_grad_((number in layers) is but)

    return change


# One change before each step. Gradual unfreezing, freezing again, everything frozen but one bias.
CHANGES: list[Change] = [
    freeze(4, but=True),
    freeze(3, 4, but=True),
    freeze(),
    freeze(0, 1),
    lambda model: model.requires_grad_(False).get_parameter("4.bias").requires_grad_(),
    freeze(4),
]


def toy(model: nn.Module, rank: int, number: int) -> Tensor:
    return error(model, batch(rank, number))


def train(model: nn.Module, plain: nn.Module, changes: list[Change], *, micro: int = 1) -> None:
    """Both models go through the same changes of `requires_grad`; the optimizer has all parameters."""
    from shardbook import no_sync

    optimizers = [torch.optim.AdamW(each.parameters(), lr=0.1) for each in (plain, model)]
    for step, change in enumerate(changes):
        for each in (plain, model):
            change(each)
        numbers = range(step * micro, (step + 1) * micro)
        fill_gradients(plain, [all_losses(plain, numbers, toy)])
        for number in numbers:
            with no_sync(model) if number != numbers[-1] else nullcontext():
                toy(model, dist.get_rank(), number).backward()
        assert_same_gradients(model, plain)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert_same_values(model, plain)


def frozen_and_unfrozen() -> None:
    from shardbook import shard

    for stage in STAGES:
        for begins in (freeze(), freeze(0, 1, 2, 3)):
            plain, model = chain(), chain()
            begins(model)
            train(shard(model, stage=stage), plain, CHANGES)
        train(shard(chain(), stage=stage), chain(), CHANGES[:4], micro=2)


@pytest.mark.nightly
def test_layers_are_frozen_and_unfrozen_while_a_model_trains() -> None:
    ranks.run(2, frozen_and_unfrozen)


def generator_and_discriminator() -> None:
    """The discriminator is frozen while the generator trains; its own gradients stay as they were."""
    from shardbook import shard

    for stage in STAGES:
        pairs = []
        for sharded in (False, True):
            torch.manual_seed(0)
            models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(2)]
            if sharded:
                models = [shard(model, stage=stage) for model in models]
            optimizers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in models]
            for step in range(3):
                pair(models, optimizers, step)
            pairs.append(models)
        for plain, model in zip(*pairs, strict=True):
            assert_same_values(model, plain)


def pair(models: list[nn.Module], optimizers: list[torch.optim.Optimizer], step: int) -> None:
    """One step of both; all ranks read the same, so a mean over ranks changes nothing."""
    generator, discriminator = models
    noise = torch.randn(3, 4, generator=torch.Generator().manual_seed(step))
    discriminator.requires_grad_()
    fake = generator(noise)
    (discriminator(fake.detach()).square().mean() - discriminator(noise).mean()).backward()
    optimizers[1].step()
    optimizers[1].zero_grad()
    discriminator.requires_grad_(False)
    (-discriminator(fake).square().mean()).backward()
    assert len(without_gradient(discriminator)) == 4
    optimizers[0].step()
    optimizers[0].zero_grad()


@pytest.mark.nightly
def test_a_discriminator_is_frozen_while_its_generator_trains() -> None:
    ranks.run(2, generator_and_discriminator)


def what_is_frozen_is_not_sent() -> None:
    """Neither a unit before which nothing is trained, nor one through which the gradients of others pass."""
    from shardbook import shard
    from shardbook.foundations.collectives import ledger
    from shardbook.zero.scheduler import scheduler_of

    for stage in STAGES:
        model = shard(chain(), stage=stage)
        size = {unit.name: unit.nbytes for unit in scheduler_of(model).units}
        # Also in the first pass of all.
        some = freeze(1, 4), "023"
        for change, trained in (some, (freeze(), "01234"), (freeze(4, but=True), "4"), some):
            change(model)
            with ledger() as book:
                toy(model, 0, 0).backward()
            expected = sum(size[name] for name in trained) // 2
            assert book.sent["reduce-scatter"] == expected, (stage, trained)


@pytest.mark.full
def test_the_gradients_of_a_frozen_unit_are_not_sent() -> None:
    ranks.run(2, what_is_frozen_is_not_sent)


def without_gradients() -> None:
    """Under `no_grad` nothing is refused, and a change between forward and backward acts as in PyTorch."""
    from shardbook import clip_grad_norm_, clip_grad_value_, shard

    for stage in STAGES:
        plain, model = chain(), chain()
        freeze(0, 1)(model)
        model = shard(model, stage=stage)
        freeze(4)(model)
        with torch.no_grad():
            assert toy(model, 0, 0).item() == toy(plain, 0, 0).item()
        loss, expected = toy(model, dist.get_rank(), 0), toy(plain, dist.get_rank(), 0)
        for each in (plain, model):
            freeze(2, 3)(each)
        loss.backward()
        expected.backward()
        # In PyTorch, too, what is frozen after the forward pass gets no gradient.
        assert set(without_gradient(model)) >= {"2.weight", "3.0.weight"}
        freeze(3)(model)
        model.zero_grad()
        freeze(3)(plain)
        fill_gradients(plain, [all_losses(plain, [1], toy)])
        toy(model, dist.get_rank(), 1).backward()
        assert_same_gradients(model, plain)
        # A vector that was frozen at first is whole on every rank in stages 1 and 2, and counts once.
        norm = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        torch.testing.assert_close(clip_grad_norm_(model, 0.1).float(), norm)
        # The vector behind such a one in the same unit counts as always.
        layer, twin = nn.Linear(2, 64), nn.Linear(2, 64)
        layer.load_state_dict(twin.state_dict())
        layer.weight.requires_grad = False
        shard(layer, stage=stage)
        for each in (layer, twin):
            each.weight.requires_grad = True
            each(torch.ones(1, 2)).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.1)
        torch.testing.assert_close(clip_grad_norm_(layer, 0.1).float(), norm)
        # Every rank limits what it has whole, or they would step apart.
        torch.nn.utils.clip_grad_value_(twin.parameters(), 1e-3)
        clip_grad_value_(layer, 1e-3)
        assert_same_gradients(layer, twin)


@pytest.mark.full
def test_an_evaluation_ignores_requires_grad_and_clipping_counts_once() -> None:
    ranks.run(2, without_gradients)


def freezing(model: nn.Module, rank: int, number: int) -> Tensor:
    """Before the second micro-batch two layers are frozen."""
    (freeze(0, 1) if number else freeze())(model)
    return toy(model, rank, number)


def frozen_between_micro_batches() -> None:
    from shardbook import no_sync, shard

    for stage in STAGES:
        plain, model = chain(), shard(chain(), stage=stage)
        fill_gradients(plain, [all_losses(plain, [0, 1], freezing)])
        with no_sync(model):
            freezing(model, dist.get_rank(), 0).backward()
        freezing(model, dist.get_rank(), 1).backward()
        assert_same_gradients(model, plain)


@pytest.mark.full
def test_what_was_trained_before_it_was_frozen_keeps_its_gradient() -> None:
    ranks.run(2, frozen_between_micro_batches)


def only_one_rank_freezes(stage: int) -> list[str]:
    """It freezes one layer and trains another, so four parameters have changed."""
    from shardbook import Disagreement, shard

    model = chain()
    freeze(4)(model)
    shard(model, stage=stage)
    toy(model, 0, 0).backward()
    model.zero_grad()
    if dist.get_rank() == 1:
        freeze(2)(model)
    with pytest.raises(Disagreement) as caught:
        toy(model, 0, 1).backward()
    return [str(caught.value)]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("stage", [0, 3])
def test_a_rank_that_freezes_alone_is_named_with_the_parameter(stage: int) -> None:
    first, second = ranks.run(2, only_one_rank_freezes, stage)
    assert first == second
    assert "(requires_grad of 2.weight and 3 more changed" in first[0]
    assert "rank 1" in first[0]
    assert "with the same requires_grad" in first[0]


def changed_in_use() -> None:
    """A change lasts that is made while a unit is whole, to the one object of a parameter or to the other."""
    from shardbook import shard, whole

    for stage, trains, to_whole in product(STAGES, (False, True), (False, True)):
        model = shard(nn.Linear(4, 4), stage=stage)
        own = model.weight.requires_grad_(not trains)
        with whole(model):
            (model.weight if to_whole else own).requires_grad_(trains)
        assert own.requires_grad is trains, (stage, to_whole)


def test_what_is_frozen_in_use_stays_frozen() -> None:
    ranks.run(1, changed_in_use)


def used_outside(stage: int) -> str:
    from shardbook import shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False))
    shard(model, stage=stage)
    model.requires_grad_()
    with pytest.raises(RuntimeError) as caught:
        (model(torch.ones(1, 4)).sum() + model[1].weight.sum()).backward()
    return str(caught.value)


def test_what_is_trained_later_is_guarded_like_the_rest() -> None:
    (said,) = set(ranks.run(1, used_outside, 0))
    assert "1.weight was used outside of its unit's forward pass" in said


def stepping_in_backward() -> None:
    from shardbook import shard, step_in_backward

    for stage in STAGES:
        plain, model = chain(), chain()
        freeze(0, 1)(model)
        model = shard(model, stage=stage)
        step_in_backward(model, partial(torch.optim.AdamW, lr=0.1))
        optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1)
        for step, change in enumerate(CHANGES[:4]):
            for each in (plain, model):
                change(each)
            fill_gradients(plain, [all_losses(plain, [step], toy)])
            optimizer.step()
            toy(model, dist.get_rank(), step).backward()
            assert_same_values(model, plain)


@pytest.mark.full
def test_what_is_unfrozen_steps_in_the_backward_pass() -> None:
    ranks.run(2, stepping_in_backward)
