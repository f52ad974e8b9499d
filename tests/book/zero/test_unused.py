"""A parameter that no rank has used in a step keeps the gradient `None`, and optimizers pass it by."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

import ranks
from book.reference import (
    STAGES,
    all_losses,
    assert_same_gradients,
    assert_same_values,
    compared_bytes,
    fill_gradients,
    without_gradient,
)
from shardbook.foundations import collectives
from shardbook.zero import unused

# Which experts a rank uses in a step: the last one idles at first, then one rank uses it, then nobody again.
CHOICES = [[(0,), (0, 1)], [(0, 1), (0, 2)], [(1,), (1,)], [(0,), (2,)]]
Choices = list[list[tuple[int, ...]]]


class Experts(nn.Module):
    """A mixture whose experts are chosen by whoever calls it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.entrance = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, chosen: tuple[int, ...]) -> Tensor:
        x = self.entrance(x)
        return x + sum((self.experts[number](x) for number in chosen), start=torch.zeros(()))


def choose(choices: Choices, model: nn.Module, rank: int, number: int) -> Tensor:
    generator = torch.Generator().manual_seed(10 * number + rank)
    chosen = choices[number % len(choices)]
    y: Tensor = model(torch.randn(3, 4, generator=generator), chosen[rank % len(chosen)])
    return y.square().mean()


def decaying(model: nn.Module) -> torch.optim.Optimizer:
    """Weight decay shrinks whatever has a gradient, and momentum moves it on."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)


def train(
    model: nn.Module,
    choices: Choices = CHOICES,
    *,
    micro: int = 1,
    rows: int = 1,
    set_to_none: bool = True,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = decaying,
) -> None:
    """Train a sharded model beside a plain one, and compare gradients and values after each step."""
    from shardbook import no_sync

    plain = Experts()
    loss = partial(choose, choices)
    optimizers = [optimizer(each) for each in (plain, model)]
    for step in range(len(choices)):
        numbers = range(step, step + micro)
        before = [parameter.grad for parameter in plain.parameters()]
        fill_gradients(plain, [all_losses(plain, numbers, loss)], rows=rows)
        if not set_to_none and step:
            for parameter, old in zip(plain.parameters(), before, strict=True):
                parameter.grad = old if parameter.grad is None else parameter.grad
        for number in numbers:
            with no_sync(model) if number != numbers[-1] else nullcontext():
                loss(model, dist.get_rank(), number).backward()
        assert_same_gradients(model, plain)
        for each in optimizers:
            each.step()
            each.zero_grad(set_to_none=set_to_none)
        assert_same_values(model, plain)


def in_every_stage() -> None:
    from shardbook import Policy, shard

    for stage in STAGES:
        for policy in (None, Policy(reduce_dtype=torch.float64), Policy(offload=True)):
            train(shard(Experts(), stage=stage, units=(), policy=policy))
        train(shard(Experts(), stage=stage, units=()), micro=2)
        train(shard(Experts(), stage=stage, units=()), set_to_none=False)


@pytest.mark.nightly
def test_an_idle_expert_is_not_moved_by_decay_or_momentum() -> None:
    ranks.run(2, in_every_stage)


class Late:
    """An exchange whose result is there when somebody has waited for it, and no earlier."""

    every: ClassVar[list[Tensor]] = []

    def __init__(self, numbers: Tensor, *, group: Any) -> None:
        self.numbers, self.result = numbers, numbers.clone()
        self.pending = collectives.all_reduce_max(self.result, group=group)
        self.works = self.pending.works
        self.every.append(numbers)

    def wait(self) -> None:
        self.pending.wait()
        if self.numbers.untyped_storage().nbytes():
            self.numbers.copy_(self.result)


def the_answer_comes_late() -> None:
    from shardbook import shard

    unused.all_reduce_max = Late  # type: ignore[assignment, misc]
    # PyTorch fills new memory then, so that no number is right by chance.
    torch.use_deterministic_algorithms(True)
    for stage in STAGES:
        train(shard(Experts(), stage=stage, units=()))
    assert Late.every
    # Whoever still refers to the numbers keeps no memory.
    assert {numbers.untyped_storage().nbytes() for numbers in Late.every} == {0}


def test_the_answer_is_waited_for_and_then_freed() -> None:
    ranks.run(2, the_answer_comes_late)


def layers_dropped_by_each_rank() -> None:
    """In stage 0 the ranks may run different units, in any order."""
    from shardbook import shard

    for micro in (1, 2):
        train(shard(Experts(), stage=0, units=nn.Linear), micro=micro)
    draw = torch.Generator().manual_seed(0)
    drawn = [
        [tuple(torch.randperm(3, generator=draw)[: int(torch.randint(4, (), generator=draw))].tolist())] * 2
        for _ in range(4)
    ]
    for step in drawn:
        step[1] = step[1][::-1]
    train(shard(Experts(), stage=0, units=nn.Linear), drawn)


@pytest.mark.full
def test_in_stage_0_each_rank_drops_layers_of_its_own() -> None:
    ranks.run(2, layers_dropped_by_each_rank)


def on_a_mesh() -> None:
    from shardbook import shard

    choices = [[(0,), (0,), (0,), (0, 2)], [(0, 1), (0,), (0,), (0,)], [(0,)] * 4]
    for stage in STAGES:
        mesh = init_device_mesh("cpu", (2, 2))
        train(shard(Experts(), stage=stage, units=(), mesh=mesh), choices, rows=2 if stage else 1)


@pytest.mark.full
def test_one_use_in_any_copy_of_the_model_is_a_use() -> None:
    ranks.run(4, on_a_mesh)


def stepping_in_backward() -> None:
    from shardbook import shard, step_in_backward

    for stage in STAGES:
        for units in ((), nn.Linear) if stage == 0 else ((),):
            plain, model = Experts(), shard(Experts(), stage=stage, units=units)
            step_in_backward(model, lambda parameters: torch.optim.AdamW(parameters, lr=0.1))
            optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1)
            for step in range(len(CHOICES)):
                loss = partial(choose, CHOICES)
                fill_gradients(plain, [all_losses(plain, [step], loss)])
                optimizer.step()
                loss(model, dist.get_rank(), step).backward()
                assert_same_values(model, plain)


def stepping_with_zero() -> None:
    """With `unused="zero"` a unit that steps in the backward pass decays its idle parameters."""
    from shardbook import shard, step_in_backward

    warnings.filterwarnings("ignore", "the units run in another order")
    make = partial(torch.optim.SGD, lr=0.1, weight_decay=0.5)
    for stage in STAGES:
        plain, model = Experts(), shard(Experts(), stage=stage, units=nn.Linear, unused="zero")
        step_in_backward(model, make)
        # The second expert is used in the first step alone.
        optimizer, loss = make(plain.parameters()), partial(choose, [[(0, 1)], [(0,)], [(0,)]])
        for step in range(3):
            fill_gradients(plain, [all_losses(plain, [step], loss)])
            for parameter in plain.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            loss(model, dist.get_rank(), step).backward()
            assert_same_values(model, plain)


@pytest.mark.full
def test_what_steps_in_the_backward_pass_decays_idle_experts_on_request() -> None:
    ranks.run(2, stepping_with_zero)


@pytest.mark.full
def test_what_steps_in_the_backward_pass_leaves_idle_experts_alone() -> None:
    ranks.run(2, stepping_in_backward)


def zero_on_request() -> None:
    from shardbook import shard

    for stage in STAGES:
        warnings.filterwarnings("ignore", "the units run in another order")
        for units in ((), nn.Linear):
            # A word from a file of options is no constant of the program.
            model = shard(Experts(), stage=stage, units=units, unused="-zero"[1:])
            model.experts[1].requires_grad_(False)  # type: ignore[union-attr,operator]
            choose([[(0,)]], model, 0, 0).backward()
            assert without_gradient(model) == ["experts.1.weight", "experts.1.bias"]
            unused = [parameter.grad for parameter in model.experts[2].parameters()]  # type: ignore[union-attr,operator]
            assert all(gradient is not None and not gradient.any() for gradient in unused)
    with pytest.raises(ValueError, match="unused='never' is not a choice; choose 'none' or 'zero'"):
        shard(Experts(), unused="never")


def test_unused_zero_gives_them_the_gradient_zero() -> None:
    ranks.run(2, zero_on_request)


def reads(stage: int) -> tuple[list[int], bool]:
    """How often the host reads the answer in a step, and whether the bytes are those of the formula."""
    from shardbook import shard
    from shardbook.foundations.collectives import ledger
    from shardbook.zero.unused import Usage

    found, read = [0], Usage.read

    def counted(usage: Usage) -> list[int]:
        found[-1] += 1
        return read(usage)

    Usage.read = counted  # type: ignore[method-assign]
    model = shard(Experts(), stage=stage, units=())
    for chosen in ((0, 1, 2), (0, 1)):
        with ledger() as book:
            choose([[chosen]], model, 0, 0).backward()
        found.append(0)
    return found[:-1], book.sent["all-reduce"] == compared_bytes(model)


@pytest.mark.parametrize("stage", [0, 3])
def test_a_rank_that_has_used_everything_does_not_read_what_others_have(stage: int) -> None:
    for (all_used, some_unused), as_computed in ranks.run(3, reads, stage):
        assert as_computed
        assert (all_used > 0) is (stage == 0)
        assert some_unused > 0


def compared_for_units_that_step() -> tuple[int, int]:
    from shardbook import shard
    from shardbook.foundations.collectives import ledger
    from shardbook.training.accumulate import step_in_backward
    from shardbook.zero.scheduler import scheduler_of

    model = shard(Experts(), stage=0, units=nn.Linear)
    step_in_backward(model, partial(torch.optim.SGD, lr=0.1))
    with ledger() as book:
        choose([[(0, 1)]], model, 0, 0).backward()
    # Of a unit that no rank has used nothing is exchanged.
    exchanged = [unit.name for unit in scheduler_of(model).exchanged]
    assert exchanged == ["entrance", "experts.0", "experts.1"]
    return book.sent["all-reduce"], compared_bytes(model)


def test_in_stage_0_units_that_step_in_the_backward_pass_are_compared_once_all_together() -> None:
    for sent, formula in ranks.run(2, compared_for_units_that_step):
        assert sent == formula


def left_out_step() -> list[str]:
    """After hundreds of steps."""
    from shardbook import Disagreement, shard
    from shardbook.zero.scheduler import scheduler_of

    model = shard(Experts(), stage=0, units=nn.Linear)
    for unit in scheduler_of(model).units:
        for flat in unit.flats:
            flat.changes += 300
    optimizer = decaying(model.experts)  # type: ignore[arg-type]
    for _ in range(2):
        choose([[(0,)]], model, 0, 0).backward()
    if dist.get_rank() == 0:
        optimizer.step()
    said = []
    for _ in range(2):
        with pytest.raises(Disagreement) as caught:
            choose([[(0,)]], model, 0, 0).backward()
        said.append(str(caught.value))
    return said


def test_in_stage_0_a_rank_that_leaves_out_a_step_is_named() -> None:
    sentence = (
        "rank 1 has changed experts.0.weight in 300 steps or loads, rank 0 in 301, so their parameters "
        "differ; call optimizer.step() and load_state_dict() equally often on every rank"
    )
    assert ranks.run(2, left_out_step) == [[sentence] * 2] * 2


def idle_under_a_scaler() -> None:
    """Clipping and unscaling pass an idle expert by."""
    from shardbook import ShardedGradScaler, clip_grad_norm_, shard

    for stage in STAGES:
        plain, model = Experts(), shard(Experts(), stage=stage, units=())
        loss = partial(choose, [[(0,), (1,)]])
        fill_gradients(plain, [all_losses(plain, [0], loss)])
        optimizer, scaler = decaying(model), ShardedGradScaler(init_scale=4.0)
        scaler.scale(loss(model, dist.get_rank(), 0)).backward()
        scaler.unscale_(optimizer)
        assert_same_gradients(model, plain)
        expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        torch.testing.assert_close(clip_grad_norm_(model, 0.1).float(), expected)
        scaler.step(optimizer)
        assert without_gradient(model) == ["experts.2.weight", "experts.2.bias"]


def test_scaler_and_clipping_pass_idle_experts_by() -> None:
    ranks.run(2, idle_under_a_scaler)


def two_means_in_one_pass() -> float:
    """The gradient of a parameter that this rank has used in the second of two exchanges only."""
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    model = shard(nn.Linear(1, 1, bias=False), stage=0)
    (flat,) = next(iter(scheduler_of(model).units)).flats
    model.weight.grad = torch.full((1, 1), 1e8)
    for value, used in ((1.0, False), (-1e8, True)):
        if used:
            flat.used.add(0)
        flat.accumulate(torch.full((flat.layout.padded,), value))
    flat.decide([0])
    return float(model.weight.grad.item())


def test_means_are_added_in_the_order_of_their_exchanges_whoever_has_used_the_parameter() -> None:
    assert (1e8 + 1 - 1e8, torch.tensor(1e8).add(1).sub(1e8).item()) == (1.0, 0.0)
    assert ranks.run(1, two_means_in_one_pass) == [0.0]


def test_many_units_are_told_apart_by_two_names_their_number_and_a_checksum() -> None:
    names = [f"blocks.{number}" for number in range(9)]
    said = unused.in_short(names)
    assert re.fullmatch(r"blocks\.0, blocks\.1 and 7 more units \([0-9a-f]{8}\)", said)
    assert unused.in_short([*names[:-1], "blocks.9"]) != said
    assert unused.in_short(list(names)) == said


def test_the_checksum_of_the_steps_weighs_each_vector_and_fits_its_number() -> None:
    def checksum(*changes: int) -> int:
        return unused.steps_taken([SimpleNamespace(changes=each) for each in changes])  # type: ignore[misc]

    assert checksum(5, 7) == 5 + 2 * 7
    assert checksum(2**30) == 2**30
    assert checksum(2**31 + 5) == 5


def compared_names() -> list[str]:
    from shardbook import shard
    from shardbook.zero.scheduler import scheduler_of

    found = []
    for size in (5, 6, 7):
        model = shard(nn.Sequential(*[nn.Linear(1, 1) for _ in range(size)]))
        order = scheduler_of(model).order

        def before(action: str, what: str, *_: Any) -> None:
            found.extend([what] if action == "compare" else [])

        order.before = before  # type: ignore[assignment]
        model(torch.ones(1, 1)).sum().backward()
    return found


def test_up_to_five_units_are_told_by_their_names() -> None:
    ((five, six, seven),) = ranks.run(1, compared_names)
    assert five == "the used parameters of 4, 3, 2, 1, 0"
    assert six.startswith("the used parameters of 5, 4 and 4 more units")
    assert seven.startswith("the used parameters of 6, 5 and 5 more units")
