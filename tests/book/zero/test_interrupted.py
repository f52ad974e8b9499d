"""After a pass that did not end the model's own parameters are reached, and what it collected is dropped."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from itertools import product
from typing import Any

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
    fill_gradients,
    toy_loss,
    without_gradient,
)
from book.toys import assert_equal, chain, said_by
from book.zero.test_unused import Experts, choose
from book.zero.test_waiting import gradient
from tiers import rows

pytestmark = pytest.mark.full


class Failure(Exception):
    pass


@contextmanager
def failing(model: nn.Module, where: str, kind: type[BaseException]) -> Iterator[None]:
    """One of the hooks of a module raises in the block."""

    def fail(*_: Any) -> None:
        raise kind

    place = model.get_submodule("1.0")
    if where == "forward":
        handle = place.register_forward_pre_hook(fail)
    else:
        handle = place.register_forward_hook(lambda _, args, y: y.register_hook(fail) and None)
    try:
        yield
    finally:
        handle.remove()


def interrupted(model: nn.Module, where: str, kind: type[BaseException] = KeyboardInterrupt) -> None:
    """A pass that does not end. Nothing refers to the exception afterwards."""
    with failing(model, where, kind), pytest.raises(kind):
        toy_loss(model, dist.get_rank(), 1).backward()


def zeros(model: nn.Module) -> None:
    model.zero_grad(set_to_none=False)


def by_hand(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = None


def part_by_part(model: nn.Module) -> None:
    for part in model.children():
        for one in part.children() or [part]:
            one.zero_grad()
        part.zero_grad()


DROPS: dict[str, Callable[[nn.Module], None]] = {
    "zero_grad": nn.Module.zero_grad,
    "zeros": zeros,
    "by hand": by_hand,
    "part by part": part_by_part,
}


def dropped_after_a_failure(stage: int) -> None:
    """What was exchanged before, and what the failed pass has collected."""
    from shardbook import shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [2])])
    model = shard(chain(), stage=stage)
    for where, kind, how in product(("forward", "backward"), (Failure, KeyboardInterrupt), DROPS):
        # After an interrupt of a forward pass no hook runs, and a loop meets the whole parameters.
        if (where, kind, how) == ("forward", KeyboardInterrupt, "by hand"):
            continue
        toy_loss(model, rank, 0).backward()
        interrupted(model, where, kind)
        if how == "zero_grad":
            model.zero_grad()
        else:
            DROPS[how](model)
        toy_loss(model, rank, 2).backward()
        try:
            assert_same_gradients(model, plain)
        except AssertionError as error:
            raise AssertionError(f"{stage, where, kind, how}: {error}") from error
        model.zero_grad()


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("stage", rows(STAGES, now=[3]))
def test_old_gradients_are_dropped_after_a_pass_that_failed(stage: int) -> None:
    ranks.run(2, dropped_after_a_failure, stage)


def own_parameters_after_a_failed_backward_pass() -> None:
    """Whoever raises: a hook, an operation, a recomputation, a checkpoint of the other kind."""
    from shardbook import checkpoint, shard

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            raise Failure

    class Again(nn.Module):
        def __init__(self, reentrant: bool, kind: type[BaseException] = Failure) -> None:
            super().__init__()
            self.inner, self.reentrant, self.runs = nn.Linear(4, 4), reentrant, 0
            self.kind = kind

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.run, x, use_reentrant=self.reentrant)

        def run(self, x: Tensor) -> Tensor:
            self.runs += 1
            if self.runs > 1:
                raise self.kind
            return self.inner(x)  # type: ignore[no-any-return]

    class Operation(nn.Linear):
        def forward(self, x: Tensor) -> Any:
            return Fails.apply(super().forward(x))

    builds = [lambda: Operation(4, 4)]
    for reentrant, kind in product((False, True), (Failure, KeyboardInterrupt)):
        builds.append(partial(Again, reentrant, kind))
    for stage, build in product(STAGES, builds):
        model = shard(nn.Sequential(nn.Linear(4, 4), build(), nn.Linear(4, 4)), stage=stage)
        own = list(model.parameters())
        with suppress(Failure, KeyboardInterrupt):
            model(torch.ones(2, 4)).sum().backward()
        for parameter, one in zip(model.parameters(), own, strict=True):
            assert parameter is one, stage
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        assert "did not end" in said_by(optimizer.step), stage


class Interrupted(nn.Linear):
    """Its second run is interrupted."""

    runs = 0

    def forward(self, x: Tensor) -> Tensor:
        self.runs += 1
        if self.runs == 2:
            raise KeyboardInterrupt
        return super().forward(x)


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.unit = Interrupted(4, 4)

    def forward(self, x: Tensor) -> Any:
        from shardbook import checkpoint

        return checkpoint(self.unit, x, use_reentrant=False)


def own_parameters_after_an_interrupted_recomputation_of_a_unit() -> None:
    from shardbook import shard

    for stage in STAGES:
        model = shard(Around(), stage=stage, units=Interrupted)
        own = list(model.parameters())
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        for parameter, one in zip(model.parameters(), own, strict=True):
            assert parameter is one, stage


def own_parameters_after_two_passes_that_failed() -> None:
    """The second one is the backward pass of a penalty, and no hook has announced that of a unit."""
    from shardbook import shard, whole

    for stage in STAGES:
        model = shard(chain(), stage=stage)
        own = list(model.parameters())
        with whole(model):
            sums = [parameter.sum() for parameter in model.parameters()]
        interrupted(model, "forward")
        assert any(parameter is not one for parameter, one in zip(model.parameters(), own, strict=True))
        # Autograd runs the oldest node last.
        sums[0].register_hook(fails)
        with pytest.raises(Failure):
            torch.stack(sums).sum().backward()
        for parameter, one in zip(model.parameters(), own, strict=True):
            assert parameter is one, stage


def frozen_after_an_interrupt() -> None:
    """It lasts, as it does in a plain model."""
    from shardbook import shard

    for stage, where in product(STAGES, ("forward", "backward")):
        model = shard(chain(), stage=stage)
        own = dict(model.named_parameters())
        interrupted(model, where)
        model.get_submodule("1").requires_grad_(False)
        toy_loss(model, dist.get_rank(), 2).backward()
        for name, parameter in own.items():
            assert parameter.requires_grad is not name.startswith("1."), (stage, where, name)
            assert (parameter.grad is None) is name.startswith("1."), (stage, where, name)


class FreezesItself(nn.Module):
    """Its own `forward` trains the bias in the first pass only."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Any:
        y = self.inner(x)
        self.inner.bias.requires_grad_(False)
        return y


def frozen_while_it_is_whole() -> None:
    from shardbook import shard, whole

    plain = FreezesItself()
    for _ in range(2):
        plain(torch.ones(2, 4)).sum().backward()
    for stage in STAGES:
        model = shard(FreezesItself(), stage=stage)
        weight, bias = model.parameters()
        for _ in range(2):
            model(torch.ones(2, 4)).sum().backward()
        assert not bias.requires_grad, stage
        assert (bias.grad is None) is (plain.inner.bias.grad is None), stage
        # Of the two ways in which it can be changed the last one counts.
        with whole(model):
            model.requires_grad_(True)
            weight.requires_grad_(False)
        assert (weight.requires_grad, bias.requires_grad) == (False, True), stage


def refused_until_the_next_pass() -> set[str]:
    from shardbook import ShardedGradScaler, clip_grad_norm_, clip_grad_value_, shard

    said = set()
    for stage, where, kind in product(STAGES, ("forward", "backward"), (Failure, KeyboardInterrupt)):
        # A forward pass that fails with an error ends as if it had not been.
        if (where, kind) == ("forward", Failure):
            continue
        model = shard(chain(), stage=stage)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        state = model.state_dict()
        toy_loss(model, dist.get_rank(), 0).backward()
        interrupted(model, where, kind)
        scaler = ShardedGradScaler()
        scaler.scale(torch.ones(1))
        for act in (
            optimizer.step,
            partial(clip_grad_norm_, model, 1.0),
            partial(clip_grad_value_, model, 1.0),
            partial(scaler.unscale_, optimizer),
        ):
            said.add(said_by(act))
        again = model.state_dict()
        assert_equal(again, state)
        interrupted(model, where, kind)
        model.load_state_dict(state)
        assert_equal(model.state_dict(), state)
        model.zero_grad()
        toy_loss(model, dist.get_rank(), 2).backward()
        clip_grad_norm_(model, 1.0)
        optimizer.step()
    return said


def test_gradients_of_a_pass_that_failed_are_refused() -> None:
    for said in ranks.run(2, refused_until_the_next_pass):
        assert len(said) == 2
        assert all("in the middle of a forward or backward pass that did not end" in one for one in said)


class Stops(nn.Linear):
    """It leaves a tensor behind, and is interrupted."""

    def forward(self, x: Tensor) -> Tensor:
        self.left = super().forward(x).square().sum()
        raise KeyboardInterrupt


def what_an_interrupted_forward_pass_leaves_is_refused() -> None:
    """Nobody knows whether the weights are still those that it has computed with."""
    from shardbook import shard

    for stage in STAGES:
        model = shard(nn.Sequential(Stops(4, 4)), stage=stage, units=Stops)
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(2, 4))
        with pytest.raises(RuntimeError, match="0: parameters were changed between"):
            model[0].left.backward()


def another_graph_after_a_failure() -> None:
    """Both forward passes come first. The second backward pass adds nothing to what the first one left."""
    from shardbook import no_sync, shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [2])])
    for stage, waits in product(STAGES, (False, True)):
        model = shard(chain(), stage=stage)
        if waits:
            with no_sync(model):
                toy_loss(model, rank, 3).backward()
            # The change is refused only if what waits is still there.
            for parameter in model.parameters():
                gradient(parameter).mul_(2)
        with failing(model, "backward", Failure):
            one = toy_loss(model, rank, 1)
        other = toy_loss(model, rank, 2)
        with pytest.raises(Failure):
            one.backward()
        model.zero_grad()
        other.backward()
        assert_same_gradients(model, plain)
        torch.optim.SGD(model.parameters(), lr=0.5).step()


def a_pass_around_the_one_that_fails() -> None:
    """A backward pass inside of a forward pass fails and is given up. The forward pass goes on."""
    from shardbook import shard

    class Tries(nn.Linear):
        tries = True

        def forward(self, x: Tensor) -> Any:
            y = super().forward(x)
            if self.tries:
                # It fails when the gradients of the parameters are there.
                probe = x * 1
                probe.register_hook(fail)
                with suppress(Failure):
                    super().forward(probe).sum().backward()
            return y + super().forward(x)

    def fail(*_: Any) -> None:
        raise Failure

    for stage in STAGES:
        torch.manual_seed(0)
        models: list[Any] = [nn.Sequential(nn.Linear(4, 4), Tries(4, 4), nn.Linear(4, 4)) for _ in range(2)]
        models[1].load_state_dict(models[0].state_dict())
        models[0][1].tries = False
        models[0](torch.ones(2, 4)).sum().backward()
        model = shard(models[1], stage=stage)
        model(torch.ones(2, 4)).sum().backward()
        assert_same_gradients(model, models[0])


def zero_grad_in_a_block_of_whole_parameters() -> None:
    from shardbook import full_precision, shard, whole
    from shardbook.zero.policy import Policy

    for stage, policy in product(STAGES, (None, Policy(param_dtype=torch.bfloat16))):
        model = shard(chain(), stage=stage, policy=policy)
        for set_to_none, precise in product((True, False), repeat=2):
            toy_loss(model, dist.get_rank(), 0).backward()
            with full_precision(model) if precise else nullcontext(), whole(model):
                model.zero_grad(set_to_none)
            found = {None if p.grad is None else bool(p.grad.any()) for p in model.parameters()}
            assert found == {None if set_to_none else False}, (stage, policy, set_to_none)
        toy_loss(model, dist.get_rank(), 0).backward()
        with whole(model):
            model.get_submodule("1.0").zero_grad()
        dropped = {name for name, parameter in model.named_parameters() if parameter.grad is None}
        assert dropped == {"1.0.weight", "1.0.bias"}, (stage, policy)


def a_backward_pass_in_a_block_fails() -> None:
    """The parameters stay whole until the block ends."""
    from shardbook import shard, whole

    shape = chain()[4].weight.shape
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        with whole(model):
            interrupted(model, "backward", Failure)
            assert model[4].weight.shape == shape, stage
            assert torch.isfinite(model[4].weight.sum()), stage


def a_pass_that_fails_inside_of_another() -> None:
    """A hook of a backward pass runs another one, and gives it up. The outer one goes on, and is not used."""
    from shardbook import shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [2])])
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        with failing(model, "backward", Failure):
            other = toy_loss(model, rank, 1)

        def give_up(_: Tensor, other: Tensor = other) -> None:
            with suppress(Failure):
                other.backward()

        handle = model.get_submodule("3").register_forward_hook(
            lambda _, args, y, act=give_up: y.register_hook(act) and None
        )
        loss = toy_loss(model, rank, 1)
        handle.remove()
        loss.backward()
        assert "did not end" in said_by(optimizer.step), stage
        model.zero_grad()
        toy_loss(model, rank, 2).backward()
        assert_same_gradients(model, plain)
        optimizer.step()


class Keeps(nn.Linear):
    """A method of its own, as some models have it, and it drops nothing."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        pass


def a_zero_grad_of_its_own() -> None:
    from shardbook import shard

    for stage in STAGES:
        model = shard(nn.Sequential(Keeps(4, 4), nn.Linear(4, 4)), stage=stage)
        model(torch.ones(2, 4)).sum().backward()
        model[0].zero_grad()
        assert all(parameter.grad is not None for parameter in model.parameters()), stage
        model.zero_grad()
        assert all(parameter.grad is None for parameter in model.parameters()), stage


def sent_before_the_first_layer(model: Any, fails: bool = False) -> dict[str, int]:
    """The bytes that are sent by the time that the backward pass arrives at the first layer."""
    from shardbook.foundations.collectives import ledger

    sent: list[dict[str, int]] = []

    def arrive(_: Tensor) -> None:
        sent.append(dict(book.sent))
        if fails:
            raise Failure

    handle = model[0].register_forward_hook(lambda *passed: passed[-1].register_hook(arrive) and None)
    with ledger() as book, pytest.raises(Failure) if fails else nullcontext():
        model(torch.ones(2, 4)).sum().backward()
    handle.remove()
    model.zero_grad()
    (found,) = sent
    return found


def as_early_as_before() -> None:
    """The step after a failure gathers ahead, and exchanges gradients, while the backward pass goes on."""
    from shardbook import shard

    for stage in (2, 3):
        layers = [nn.Linear(4, 4) for _ in range(4)]
        model: Any = shard(nn.Sequential(*layers), stage=stage, units=nn.Linear)
        usual = sent_before_the_first_layer(model)
        assert usual["reduce-scatter"] > 0
        assert sent_before_the_first_layer(model, fails=True) == usual
        assert sent_before_the_first_layer(model) == usual, stage
        # These layers do not even begin their backward pass.
        handle = model[2].register_forward_hook(lambda *passed: passed[-1].register_hook(fails) and None)
        with pytest.raises(Failure):
            model(torch.ones(2, 4)).sum().backward()
        handle.remove()
        model.zero_grad()
        assert sent_before_the_first_layer(model) == usual, stage


def no_zero_is_left_for_what_was_dropped() -> None:
    """While a part waits, its gradient is shown as zero. The part is dropped, and no later pass uses it."""
    from shardbook import no_sync, shard

    warnings.filterwarnings("ignore", "the units run in another order")
    for stage in STAGES:
        model: Any = shard(Experts(), stage=stage, units=nn.Linear)
        with no_sync(model):
            choose([[(0, 1)]], model, 0, 0).backward()
        handle = model.entrance.register_forward_hook(
            lambda *passed: passed[-1].register_hook(fails) and None
        )
        with no_sync(model), pytest.raises(Failure):
            choose([[(0,)]], model, 0, 0).backward()
        handle.remove()
        choose([[(0,)]], model, 0, 0).backward()
        unused = [f"experts.{number}.{name}" for number in (1, 2) for name in ("weight", "bias")]
        assert without_gradient(model) == unused, stage


class ExpertsAbove(nn.Module):
    """In stages 2 and 3 the gradients of the experts are exchanged before those of the first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.experts = nn.Linear(4, 4), nn.Linear(4, 4), Experts()

    def forward(self, x: Tensor, chosen: tuple[int, ...]) -> Any:
        return self.experts(self.second(self.first(x)), chosen)


def no_use_is_left_of_what_was_exchanged() -> None:
    """An expert that only the failed pass has used keeps the gradient `None`."""
    from shardbook import shard

    for stage in STAGES:
        model = shard(ExpertsAbove(), stage=stage, units=Experts)
        handle = model.first.register_forward_hook(lambda *passed: passed[-1].register_hook(fails) and None)
        with pytest.raises(Failure):
            choose([[(0, 1)]], model, 0, 0).backward()
        handle.remove()
        model.zero_grad()
        choose([[(0,)]], model, 0, 0).backward()
        unused = [f"experts.experts.{number}.{name}" for number in (1, 2) for name in ("weight", "bias")]
        assert without_gradient(model) == unused, stage


def a_penalty_after_another_pass() -> None:
    """No unit runs between the two, and no hook announces the gradient of a sum."""
    from shardbook import shard, whole

    for stage, before in product(STAGES, ("a failure", "a pass", "nothing")):
        model, plain = shard(chain(), stage=stage), chain()
        if before == "a failure":
            interrupted(model, "backward")
        elif before == "a pass":
            toy_loss(model, dist.get_rank(), 1).backward()
        model.zero_grad()
        for each in (model, plain):
            with whole(model) if each is model else nullcontext():
                penalty = torch.stack([parameter.sum() for parameter in each.parameters()]).sum()
            penalty.backward()
        assert_same_gradients(model, plain)


def nothing_waits_after_a_failure() -> None:
    """What the failed pass had kept is dropped, so the next step compares nothing that waited."""
    from shardbook import Prefetch, no_sync, shard
    from shardbook.zero.scheduler import scheduler_of
    from shardbook.zero.unused import Usage

    for stage in STAGES[1:]:  # Stage 0 compares in each step.
        model = shard(chain(), stage=stage, prefetch=Prefetch(together=2**16))
        scheduler = scheduler_of(model)
        interrupted(model, "backward")
        assert scheduler.late
        with no_sync(model):
            interrupted(model, "backward")
        assert scheduler.kept
        assert scheduler.failed
        loss = toy_loss(model, dist.get_rank(), 1)
        for left in (scheduler.late, scheduler.kept, scheduler.passes, scheduler.failed):
            assert not left, stage
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Usage, "refuse_changes", fails)
            loss.backward()


def no_exchange_of_a_failure_is_waited_for() -> None:
    """On a mesh several are under way. Another pass gives them up, of this model or of any other."""
    from shardbook import shard, step_in_backward
    from shardbook.zero.scheduler import Scheduler, scheduler_of

    def assert_none(*_: Any) -> None:
        assert Scheduler.in_flight is None
        assert not Scheduler.going_on

    mesh = init_device_mesh("cpu", (2, 1))
    for stage in (2, 3):
        first, model, other = (shard(chain(), stage=stage, mesh=mesh) for _ in range(3))
        handle = first.get_submodule("3").register_forward_hook(
            lambda *passed: passed[-1].register_hook(assert_none) and None
        )
        loss = toy_loss(first, dist.get_rank(), 1)
        handle.remove()
        loss.backward(retain_graph=True)
        step_in_backward(model, partial(torch.optim.SGD, lr=0.1))
        units = scheduler_of(model).units
        for failed, following in (
            (first, loss.backward),
            (model, partial(toy_loss, other, dist.get_rank(), 1)),
            (model, partial(toy_loss, model, dist.get_rank(), 1)),
        ):
            interrupted(failed, "backward")
            assert Scheduler.in_flight is not None
            assert Scheduler.going_on
            assert failed is first or any(unit.usage for unit in units)
            following()
            assert_none()
        assert not any(unit.usage for unit in units)


class GoesOn(nn.Sequential):
    """Calls some of its layers, also after one of them was interrupted."""

    def forward(self, x: Tensor, *which: int) -> Tensor:
        for number in which:
            with suppress(KeyboardInterrupt):
                x = self[number](x)
        return x


def no_hooks_of_saved_tensors_are_left() -> None:
    """The interrupted layer is called again, or another one, in the model's forward pass or by itself."""
    from shardbook import shard
    from shardbook.zero.demand import here

    def interrupt(*_: Any) -> None:
        if armed:
            armed.pop()
            raise KeyboardInterrupt

    armed: list[bool] = []
    model: Any = shard(GoesOn(nn.Linear(4, 4), nn.Linear(4, 4)), units=nn.Linear, prefetch=0)
    model[1].register_forward_pre_hook(interrupt)
    x = torch.ones(2, 4)
    for following in (None, partial(model, x, 0), partial(model[0], x)):
        armed.append(True)
        model(x, 1) if following else model(x, 1, 1)
        if following:
            assert here.pairs
            following()
        assert not here.pairs


def fails(_: Any) -> None:
    raise Failure


CASES = [
    a_penalty_after_another_pass,
    nothing_waits_after_a_failure,
    no_exchange_of_a_failure_is_waited_for,
    no_hooks_of_saved_tensors_are_left,
    no_zero_is_left_for_what_was_dropped,
    as_early_as_before,
    own_parameters_after_a_failed_backward_pass,
    own_parameters_after_an_interrupted_recomputation_of_a_unit,
    own_parameters_after_two_passes_that_failed,
    frozen_after_an_interrupt,
    frozen_while_it_is_whole,
    what_an_interrupted_forward_pass_leaves_is_refused,
    another_graph_after_a_failure,
    a_pass_around_the_one_that_fails,
    a_pass_that_fails_inside_of_another,
    a_backward_pass_in_a_block_fails,
    zero_grad_in_a_block_of_whole_parameters,
    a_zero_grad_of_its_own,
    no_use_is_left_of_what_was_exchanged,
]


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("case", rows(CASES, now=CASES[::2]), ids=lambda case: case.__name__)
def test_in_every_stage(case: Callable[[], None]) -> None:
    ranks.run(2, case)
