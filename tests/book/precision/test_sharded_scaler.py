"""Loss scaling over ranks: an overflow on one rank is an overflow on all, in every stage."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book.reference import STAGES, assert_same_values, backwards, fill_gradients
from book.toys import assert_equal, batch, chain, error, optimizer_for
from tiers import rows

Selector = Callable[[nn.Module], list[list[nn.Parameter]]]


def everything(model: nn.Module) -> list[list[nn.Parameter]]:
    return [list(model.parameters())]


def apart(model: nn.Module) -> list[list[nn.Parameter]]:
    """Three optimizers. The last has a single small parameter, of which most ranks hold nothing."""
    named = dict(model.named_parameters())
    small = [named.pop("1.0.bias")]
    first = [named.pop(name) for name in list(named) if name.startswith(("0.", "1."))]
    return [first, list(named.values()), small]


def frozen() -> nn.Sequential:
    model = chain()
    model[0].requires_grad_(False)
    model[3].requires_grad_(False)
    return model


# In which steps something overflows, and where: one element of an activation's gradient in one rank's
# backward pass, or one element of an optimizer's mean gradient on one of the ranks that hold any of it.
STEPS, INSIDE_OF_RANK, IN_OPTIMIZER = 8, {1: 0, 2: -1}, {5: 0, 6: -1}


def overflowing_loss(
    model: nn.Sequential, rank: int, number: int, *, scaler: Any, step: int, first: int
) -> Tensor:
    """A scaled loss. In some steps, on one rank, the backward pass of the `first` micro-batch overflows."""
    where = INSIDE_OF_RANK.get(step)
    if where is None or number != first or rank != where % dist.get_world_size():
        loss: Tensor = scaler.scale(error(model, batch(rank, number)))
        return loss

    def damage(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[3] = math.inf if where else math.nan
        return gradient

    def watch(module: Any, inputs: Any, output: Tensor) -> None:
        output.register_hook(damage)

    handle = model[1].register_forward_hook(watch)
    loss = scaler.scale(error(model, batch(rank, number)))
    handle.remove()
    return loss


def spoil(groups: list[list[nn.Parameter]], step: int, *, sharded: bool) -> None:
    """Let one element of one optimizer's mean gradient overflow, on one of the ranks that hold any of it."""
    if step not in IN_OPTIMIZER:
        return
    here = [p.grad for p in groups[IN_OPTIMIZER[step]] if p.grad is not None and p.grad.numel()]
    if sharded:
        sizes: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(sizes, len(here))
        if dist.get_rank() != max(rank for rank, size in enumerate(sizes) if size):
            return
    here[0].view(-1)[0] = -math.inf


def follows_one_process(
    build: Callable[[], nn.Sequential],
    select: Selector,
    *,
    kind: str = "adamw",
    micro: int = 1,
    once: bool = True,
    rows: int = 1,
    stages: tuple[int, ...] = STAGES,
) -> None:
    """Sharded models have the scales and the values of a plain model with PyTorch's scaler, bit for bit."""
    from shardbook import shard
    from shardbook.precision.loss_scaling import ShardedGradScaler

    size = dist.get_world_size()
    mesh = torch.distributed.init_device_mesh("cpu", (rows, size // rows)) if rows > 1 else None
    settings: dict[str, Any] = {"init_scale": 2.0**10, "growth_interval": 2}
    for stage in stages:
        plain, model = build(), shard(build(), stage=stage, mesh=mesh)
        scalers: list[Any] = [torch.amp.GradScaler("cpu", **settings), ShardedGradScaler(**settings)]
        chosen = [select(each) for each in (plain, model)]
        optimizers = [[optimizer_for(kind, group) for group in groups] for groups in chosen]
        scales = []
        for step in range(STEPS):
            numbers = range(step * micro, (step + 1) * micro)
            losses = [
                partial(overflowing_loss, scaler=scaler, step=step, first=numbers[0]) for scaler in scalers
            ]
            rounds = [numbers] if once else [[number] for number in numbers]
            fill_gradients(
                plain,
                [
                    [[partial(losses[0], plain, r, n) for n in round_] for r in range(size)]
                    for round_ in rounds
                ],
                rows=rows if stage else 1,
            )
            backwards(model, numbers, losses[1], once=once)
            for scaler, groups, which, sharded in zip(
                scalers, chosen, optimizers, (False, True), strict=True
            ):
                spoil(groups, step, sharded=sharded)
                for optimizer in which:
                    scaler.step(optimizer)
                    optimizer.zero_grad()
                scaler.update()
            assert scalers[1].state_dict() == scalers[0].state_dict()
            assert_same_values(model, plain)
            scales.append(scalers[0].get_scale())
        # The scale has fallen and grown, so the losses above did overflow and did not.
        assert len({a < b for a, b in itertools.pairwise(scales) if a != b}) == 2


def one_optimizer() -> None:
    follows_one_process(chain, everything)


def several_optimizers() -> None:
    follows_one_process(chain, apart)


def frozen_parameters() -> None:
    follows_one_process(frozen, everything, kind="sgd")


def added_up_before_the_exchange() -> None:
    follows_one_process(chain, apart, micro=3)


def added_up_after_the_exchange() -> None:
    follows_one_process(chain, everything, micro=2, once=False)


def rows_of_a_mesh() -> None:
    follows_one_process(chain, apart, rows=2)


SKIPS = [
    one_optimizer,
    several_optimizers,
    frozen_parameters,
    added_up_before_the_exchange,
    added_up_after_the_exchange,
]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(
    "case",
    rows(SKIPS, now=[several_optimizers, added_up_after_the_exchange]),
    ids=lambda case: case.__name__,
)
def test_every_rank_skips(case: Callable[[], None]) -> None:
    ranks.run(2, case)


@pytest.mark.nightly
@pytest.mark.parametrize("case", [several_optimizers, rows_of_a_mesh], ids=lambda case: case.__name__)
def test_every_one_of_four_ranks_skips(case: Callable[[], None]) -> None:
    ranks.run(4, case)


# What goes wrong with a scaler that asks nobody


def line() -> nn.Linear:
    """The gradient of each weight is its input. Of the 64, the first half lies on rank 0 of two."""
    model = nn.Linear(64, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model


def two_steps(kind: str) -> list[tuple[float, list[float]]]:
    """The scale and two weights, after a step that overflows at the first weight and after a second one."""
    import shardbook

    kinds = {"plain": partial(torch.amp.GradScaler, "cpu"), "sharded": shardbook.ShardedGradScaler}
    model, scaler = shardbook.shard(line()), kinds[kind]()
    optimizer, found = torch.optim.SGD(model.parameters(), lr=1.0), []
    for first in (math.inf, 1.0):
        inputs = torch.ones(1, 64)
        inputs[0, 0] = first
        scaler.scale(model(inputs).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append((scaler.get_scale(), model.state_dict()["weight"][0, [1, 63]].tolist()))
    return found


def test_without_agreement_half_a_step_is_taken_and_later_gradients_are_wrong() -> None:
    """The figures of the chapter's table."""
    on_0, on_1 = ranks.run(2, two_steps, "plain")
    assert on_0 == [(2.0**15, [0.0, -1.0]), (2.0**15, [-1.5, -1.75])]
    assert on_1 == [(2.0**16, [0.0, -1.0]), (2.0**16, [-1.5, -1.75])]
    for found in ranks.run(2, two_steps, "sharded"):
        assert found == [(2.0**15, [0.0, 0.0]), (2.0**15, [-1.0, -1.0])]


# Fused optimizers, FP16, clipping


def fused() -> list[list[float]]:
    """Overflows on one rank, on both, and on none, with an optimizer that reads the flag itself."""
    from shardbook import shard
    from shardbook.precision.loss_scaling import ShardedGradScaler

    found = []
    for stage in STAGES:
        model, scaler = shard(line(), stage=stage), ShardedGradScaler()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.0, fused=True)
        moved = []
        for damaged in ([0], [0, 63], [63], []):
            inputs = torch.ones(1, 64)
            inputs[0, damaged] = math.nan
            scaler.scale(model(inputs).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            moved.append(round(model.state_dict()["weight"][0, 5].item(), 4))
        found.append([*moved, scaler.get_scale()])
    return found


def test_a_fused_optimizer_skips_on_every_rank() -> None:
    """It asks whether the flag is 1. The sum of two flags would be 2, and it would step."""
    for found in ranks.run(2, fused):
        assert found == [[0.0, 0.0, 0.0, -1.0, 2.0**13]] * len(STAGES)


def in_half_precision() -> list[float]:
    """From a scale that is much too large down to one that trains, and each rank overflows by itself."""
    from shardbook import clip_grad_norm_, shard
    from shardbook.precision.loss_scaling import ShardedGradScaler

    def loss(model: nn.Module, rank: int, number: int, *, scaler: Any) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            scaled: Tensor = scaler.scale(error(model, batch(rank, number)))
        return scaled

    settings: dict[str, Any] = {"init_scale": 2.0**22, "growth_interval": 3}
    plain, model = chain(), shard(chain())
    scalers: list[Any] = [torch.amp.GradScaler("cpu", **settings), ShardedGradScaler(**settings)]
    optimizers = [optimizer_for("sgd", each.parameters()) for each in (plain, model)]
    losses = [partial(loss, scaler=scaler) for scaler in scalers]
    scales = []
    for step in range(12):
        fill_gradients(plain, [[[partial(losses[0], plain, rank, step)] for rank in range(2)]])
        backwards(model, [step], losses[1])
        for scaler, optimizer in zip(scalers, optimizers, strict=True):
            scaler.unscale_(optimizer)
        # The norm is NaN or infinite on every rank where one of them overflows.
        norm = clip_grad_norm_(model, 1e3)
        for scaler, optimizer in zip(scalers, optimizers, strict=True):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scalers[1].state_dict() == scalers[0].state_dict()
        assert_same_values(model, plain)
        scales.append(scalers[1].get_scale())
        assert norm.isfinite().item() == (len(scales) > 1 and scales[-1] >= scales[-2])
    return scales


@pytest.mark.full
def test_half_precision_training_follows_one_process() -> None:
    first, second = ranks.run(2, in_half_precision)
    assert first == second
    assert first[0] < 2.0**22
    assert any(a < b for a, b in itertools.pairwise(first))


def under_a_policy() -> None:
    """Units that compute in FP16 overflow by themselves, and all stages do so alike."""
    from shardbook import Policy, shard
    from shardbook.precision.loss_scaling import ShardedGradScaler

    half: dict[str, Any] = {"param_dtype": torch.float16, "output_dtype": torch.float32}
    for policy in (Policy(**half), Policy(**half, reduce_dtype=torch.float32), Policy(**half, offload=True)):
        found = []
        for stage in STAGES:
            model, scaler = (
                shard(chain(), stage=stage, policy=policy),
                ShardedGradScaler("cpu", 2.0**24, 2.0, 0.25),
            )
            optimizer, scales = optimizer_for("adamw", model.parameters()), []
            for step in range(8):
                scaler.scale(error(model, batch(dist.get_rank(), step))).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scales.append(scaler.get_scale())
            values = {name: value.clone() for name, value in model.state_dict().items()}
            assert all(value.isfinite().all() for value in values.values())
            assert not torch.equal(values["4.bias"], chain().state_dict()["4.bias"])
            found.append((scales, values))
        for scales, values in found:
            assert scales == found[0][0]
            assert 2.0**4 < scales[-1] == scales[-2] < scales[0] < 2.0**24
            assert_equal(values, found[0][1])


# What it costs


def sent_by_a_step() -> list[dict[str, int]]:
    from shardbook import shard
    from shardbook.foundations.collectives import ledger
    from shardbook.precision.loss_scaling import ShardedGradScaler

    found = []
    for stage in STAGES:
        model, scaler = shard(chain(), stage=stage), ShardedGradScaler()
        optimizers = [optimizer_for("sgd", group) for group in apart(model)]
        scaler.scale(error(model, batch(dist.get_rank(), 0))).backward()
        with ledger() as book:
            scaler.unscale_(optimizers[0])
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
        # A rank that is alone has nobody to ask.
        asked = 3 * (dist.get_world_size() > 1)
        assert [(call.collective, call.payload) for call in book.calls] == [("all-reduce", 4)] * asked
        found.append(book.sent)
    return found


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(("world_size", "sent"), [(1, [0]), (2, [4, 4]), (4, [4, 4, 8, 8])])
def test_one_number_for_each_optimizer(world_size: int, sent: list[int]) -> None:
    for bytes_, found in zip(sent, ranks.run(world_size, sent_by_a_step), strict=True):
        assert found == [{"all-reduce": 3 * bytes_} if bytes_ else {}] * len(STAGES)


def rounds_of_a_step() -> list[int]:
    """How often the ranks have asked each other through the store, after each step."""
    from shardbook import clip_grad_norm_, shard
    from shardbook.precision.loss_scaling import ShardedGradScaler
    from shardbook.zero.scheduler import scheduler_of

    model, scaler = shard(chain()), ShardedGradScaler(init_scale=2.0**126, growth_interval=2)
    rendezvous, rounds = scheduler_of(model).order.rendezvous, []
    optimizers = [optimizer_for("sgd", group) for group in apart(model)]
    for step in range(6):
        scaler.scale(error(model, batch(dist.get_rank(), step))).backward()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        clip_grad_norm_(model, 1.0)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        model.zero_grad()
        assert rendezvous is not None
        rounds.append(rendezvous.rounds)
    return rounds


def test_after_the_first_steps_nobody_asks_through_the_store() -> None:
    """Whether a step is skipped does not change the order of the exchanges."""
    for first, second, *others in ranks.run(2, rounds_of_a_step):
        assert 0 < first <= second
        assert others == [second] * 4


# What is refused


def one_rank_does_not_unscale() -> str:
    from shardbook import Disagreement, shard
    from shardbook.precision.loss_scaling import ShardedGradScaler

    model, scaler = shard(chain()), ShardedGradScaler()
    optimizer = optimizer_for("sgd", model.parameters())
    for step in range(3):
        scaler.scale(error(model, batch(dist.get_rank(), step))).backward()
        if step < 2:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    with pytest.raises(Disagreement) as caught:
        scaler.step(optimizer) if dist.get_rank() == 0 else model(batch(0, 0)[0])
    return str(caught.value)


@pytest.mark.full
def test_a_rank_that_does_not_unscale_leaves_nobody_waiting() -> None:
    first, second = ranks.run(2, one_rank_does_not_unscale)
    assert first == second
    assert "rank 0 went on, as agreed before, to compare the overflow flags (parameter 0.weight)" in first
    assert "of its unscaling pass" in first


def refusals() -> list[str]:
    from shardbook import no_sync, shard
    from shardbook.precision.loss_scaling import ShardedGradScaler

    said = []
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    together, single = shard(chain()), shard(line(), mesh=alone)
    scaler = ShardedGradScaler()
    plain = nn.Linear(1, 1)
    scaler.scale(plain(torch.ones(1))).sum().backward()
    both = [*together.parameters(), *single.parameters()]
    for parameters in (plain.parameters(), both):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            scaler.step(torch.optim.SGD(parameters))
        said.append(str(caught.value))
    scaler = ShardedGradScaler()
    optimizers = [torch.optim.SGD(model.parameters()) for model in (together, single)]
    scaler.scale(error(together, batch(0, 0))).backward()
    scaler.scale(single(torch.ones(64))).sum().backward()
    scaler.step(optimizers[0])
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        scaler.step(optimizers[1])
    said.append(str(caught.value))
    scaler.update(2.0)
    with no_sync(together):
        scaler.scale(error(together, batch(0, 0))).backward()
    with pytest.raises(RuntimeError) as waiting:
        scaler.unscale_(optimizers[0])
    said.append(str(waiting.value))
    return said


def test_refusals_say_what_to_do() -> None:
    for rank, said in enumerate(ranks.run(2, refusals)):
        other = f"this SGD has parameters on ranks [{rank}], and the scaler serves ranks [0, 1]"
        assert said == [
            "this SGD has no sharded parameter, so the scaler cannot know which ranks to ask; "
            "shard the model, or use GradScaler for this optimizer",
            f"{other}; use one scaler for each group of ranks",
            f"{other}; use one scaler for each group of ranks",
            "the gradient of 0.weight has not been averaged yet; "
            "run a backward pass to its end, outside of no_sync()",
        ]


def parts_in_the_scaler_of_one_process() -> None:
    from shardbook import GradScaler, shard

    for stage in STAGES:
        model, scaler = shard(line(), stage=stage), GradScaler()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scaler.scale(model(torch.ones(1, 64)).sum()).backward()
        if stage:
            with pytest.raises(
                ValueError, match=r"^this SGD trains this rank's part .*; use ShardedGradScaler"
            ):
                scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        assert model.state_dict()["weight"].unique().item() == (0.0 if stage else -1.0)


def steps_in_the_backward_pass() -> None:
    from shardbook import GradScaler, ShardedGradScaler, shard, step_in_backward
    from shardbook.checkpointing.checkpointing import checkpoint

    said = (
        "^this model steps in its backward pass, before a scaler can divide its gradients; train it without"
    )
    for stage, kind in itertools.product(STAGES, (GradScaler, ShardedGradScaler)):
        model, scaler, plain = shard(line(), stage=stage), kind(init_scale=8.0), nn.Linear(1, 1)
        (optimizer,) = step_in_backward(model, partial(torch.optim.SGD, lr=1.0))
        inputs = torch.ones(1, 64, requires_grad=True)
        loss = model(inputs).sum()
        with pytest.raises(RuntimeError, match=said):
            scaler.scale([loss])
        assert not model.state_dict()["weight"].any()
        # Another model's loss is scaled all the same, and of many paths to a node one is searched.
        loss = plain(torch.ones(1)).sum()
        for _ in range(64):
            loss = loss + loss
        scaler.scale(loss).backward()
        # A reentrant checkpoint hides the parameters.
        scaler.scale(checkpoint(model, inputs, use_reentrant=True).sum()).backward()
        assert model.state_dict()["weight"].unique().item() == -8.0
        if kind is ShardedGradScaler:
            with pytest.raises(RuntimeError, match=said):
                scaler.step(optimizer)
        # Without a scaler nobody minds.
        kind(enabled=False).scale(model(inputs).sum()).backward()
        assert model.state_dict()["weight"].unique().item() == -9.0


def one_of_two_optimizers_overflows() -> None:
    from shardbook import ShardedGradScaler, clip_grad_norm_, shard

    for stage, damage in itertools.product(STAGES, (math.nan, math.inf)):
        model, scaler = shard(chain(), stage=stage), ShardedGradScaler()
        first, second = everything(model[1])[0], everything(model[3])[0]
        optimizers = [torch.optim.SGD(group, lr=0.1) for group in (first, second)]
        states = [model.state_dict()]
        for step in range(2):
            scaler.scale(error(model, batch(dist.get_rank(), step))).backward()
            for parameter in first:
                # In stage 0 all ranks have the same gradients.
                if not step and (dist.get_rank() == 1 or not stage) and parameter.numel():
                    parameter.grad.view(-1)[-1] = damage
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            clip_grad_norm_(model, 1.0)
            for optimizer in optimizers:
                scaler.step(optimizer)
            scaler.update()
            model.zero_grad()
            states.append(model.state_dict())
        before, skipped, after = states
        assert_equal(dict(before), dict(skipped))
        assert all(value.isfinite().all() for value in after.values())
        for name in ("1.0.weight", "3.0.weight"):
            assert not torch.equal(after[name], skipped[name])


def two_models() -> None:
    """Models that were sharded apart, in one optimizer and in two."""
    from shardbook import shard
    from shardbook.precision.loss_scaling import ShardedGradScaler

    for joined in (True, False):
        models, scaler = [shard(chain(seed)) for seed in range(2)], ShardedGradScaler()
        groups = [list(model.parameters()) for model in models]
        optimizers = [torch.optim.SGD(group) for group in ([[*groups[0], *groups[1]]] if joined else groups)]
        for step in range(4):
            for index, model in enumerate(models):
                factor = math.inf if (step, index, dist.get_rank()) == (2, 1, 0) else 1.0
                scaler.scale(error(model, batch(dist.get_rank(), step)) * factor).backward()
            before = [model.state_dict()["4.bias"].clone() for model in models]
            for optimizer in optimizers:
                scaler.step(optimizer)
                optimizer.zero_grad()
            scaler.update()
            after = [model.state_dict()["4.bias"] for model in models]
            moved = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
            assert moved == [step != 2 or not joined, step != 2]
        assert scaler.get_scale() == 2.0**15


def not_enabled() -> None:
    from shardbook import shard
    from shardbook.foundations.collectives import ledger
    from shardbook.precision.loss_scaling import ShardedGradScaler

    model, scaler = shard(line()), ShardedGradScaler(enabled=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler.scale(model(torch.ones(1, 64)).sum()).backward()
    with ledger() as book:
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    assert book.calls == []
    assert torch.equal(model.state_dict()["weight"], -torch.ones(1, 64))


CASES = [
    two_models,
    not_enabled,
    under_a_policy,
    parts_in_the_scaler_of_one_process,
    steps_in_the_backward_pass,
    one_of_two_optimizers_overflows,
]


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_on_two_ranks(case: Callable[[], None]) -> None:
    ranks.run(2, case)
