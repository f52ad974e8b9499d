"""Gradients: added up over micro-batches, exchanged in a chosen dtype, and never there for what is unused or
frozen.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import ranks
from book.live import LiveStorages
from book.reference import (
    STAGES,
    all_losses,
    assert_same_gradients,
    assert_same_values,
    assert_train_alike,
    backwards,
    compared_bytes,
    fill_gradients,
    padded_bytes,
    storages,
)
from book.toys import batch, chain, error, optimizer_for
from tiers import rows

MICRO = 3


def accumulates_like_the_reference() -> None:
    from shardbook import shard

    for once in (True, False):
        models = [shard(chain(), stage=stage) for stage in STAGES]
        assert_train_alike(chain(), models, optimizer="sgd", micro=MICRO, once=once)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("world_size", rows([1, 2, 3], now=[2]))
def test_micro_batches_add_up_like_the_reference_with_one_exchange_or_one_for_each(world_size: int) -> None:
    ranks.run(world_size, accumulates_like_the_reference)


def accumulates_like_ddp() -> None:
    from shardbook import shard

    plain = chain()
    ddp = DistributedDataParallel(plain)
    rank = dist.get_rank()
    with ddp.no_sync():
        for number in range(MICRO - 1):
            error(ddp, batch(rank, number)).backward()
    error(ddp, batch(rank, MICRO - 1)).backward()
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        backwards(model, range(MICRO))
        assert_same_gradients(model, plain)


def no_sync_adds_to_what_was_exchanged_before() -> None:
    """A step of two exchanges: the first micro-batch alone, the others together."""
    from shardbook import shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [0]), all_losses(plain, [1, 2])])
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        error(model, batch(rank, 0)).backward()
        backwards(model, [1, 2])
        assert_same_gradients(model, plain)


def evaluation_between_two_micro_batches() -> None:
    from shardbook import no_sync, shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [0, 1])])
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        with no_sync(model):
            error(model, batch(rank, 0)).backward()
        with torch.no_grad():
            error(model, batch(rank, 5))
        error(model, batch(rank, 1)).backward()
        assert_same_gradients(model, plain)


class Optional(nn.Module):
    """Three layers, of which the second can be left out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.third = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, use_second: bool) -> Tensor:
        x = self.first(x)
        y: Tensor = self.third(self.second(x) if use_second else x)
        return y


def some_use(use: Callable[[int, int], bool], model: nn.Module, rank: int, number: int) -> Tensor:
    """A loss in which a rank uses the second layer in some micro-batches."""
    y: Tensor = model(torch.full((3, 4), 0.1 * (rank + 2 * number + 1)), use(rank, number))
    return y.square().sum()


def compare_optional(use: Callable[[int, int], bool], micro: int, units: Any) -> None:
    from shardbook import shard

    plain = Optional()
    loss = partial(some_use, use)
    fill_gradients(plain, [all_losses(plain, range(micro), loss)])
    for stage in STAGES:
        model = shard(Optional(), stage=stage, units=units, prefetch=0)
        backwards(model, range(micro), loss)
        assert_same_gradients(model, plain)


def a_unit_that_only_the_first_micro_batch_uses() -> None:
    compare_optional(lambda rank, number: number == 0, MICRO, nn.Linear)


def a_unit_that_no_rank_uses() -> None:
    compare_optional(lambda rank, number: False, 1, nn.Linear)


def parameters_of_a_unit_that_no_rank_uses() -> None:
    compare_optional(lambda rank, number: False, 1, ())


def parameters_of_a_unit_that_one_rank_does_not_use() -> None:
    compare_optional(lambda rank, number: rank != 1, 1, ())


def parameters_that_each_rank_uses_in_another_micro_batch() -> None:
    compare_optional(lambda rank, number: rank == number, MICRO, ())


class Skips(nn.Module):
    """A layer that one rank passes by, as training with random depth does."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear, self.skips = nn.Linear(4, 4), False

    def forward(self, x: Tensor) -> Tensor:
        return x if self.skips else self.linear(x)


def a_unit_that_returns_its_input_on_one_rank() -> None:
    from shardbook import shard

    def build() -> nn.Module:
        return nn.Sequential(*map(Skips, range(3)), nn.Linear(4, 2))

    def loss(model: Any, rank: int, number: int) -> Tensor:
        model[1].skips = rank == 1
        y: Tensor = model(torch.full((3, 4), 0.1 * (rank + number + 1)))
        return y.square().sum()

    torch.manual_seed(0)
    plain, rank = build(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [0], loss)])
    for stage in STAGES:
        torch.manual_seed(0)
        model = shard(build(), stage=stage)
        loss(model, rank, 0).backward()
        assert_same_gradients(model, plain)


def zero_grad_drops_what_waits() -> None:
    """A step that is given up after a micro-batch leaves nothing for the next step."""
    from shardbook import no_sync, shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [1, 2])])
    for stage in STAGES:
        for set_to_none in (True, False):
            model = shard(chain(), stage=stage)
            optimizer = optimizer_for("sgd", model.parameters())
            with no_sync(model):
                error(model, batch(rank, 0)).backward()
            optimizer.zero_grad(set_to_none=set_to_none)
            backwards(model, [1, 2])
            assert_same_gradients(model, plain)


def zero_grad_in_a_no_sync_step() -> None:
    """`zero_grad` before each micro-batch keeps the last one only, as in a plain program."""
    from shardbook import no_sync, shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [2])])
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        for number in range(2):
            model.zero_grad()
            with no_sync(model):
                error(model, batch(rank, number)).backward()
        model.zero_grad()
        error(model, batch(rank, 2)).backward()
        assert_same_gradients(model, plain)


def zero_grad_after_a_nested_no_sync() -> None:
    """The inner block ends inside of the outer one, and what waits can still be dropped."""
    from shardbook import no_sync, shard

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [2])])
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        with no_sync(model):
            with no_sync(model):
                error(model, batch(rank, 0)).backward()
            error(model, batch(rank, 1)).backward()
        model.zero_grad()
        error(model, batch(rank, 2)).backward()
        assert_same_gradients(model, plain)


def a_step_that_fails_after_a_micro_batch() -> None:
    """Whether forward or backward fails: after `zero_grad` the next step is like any other."""
    from shardbook import no_sync, shard

    def fail(*_: Any) -> None:
        raise ArithmeticError

    plain, rank = chain(), dist.get_rank()
    fill_gradients(plain, [all_losses(plain, [1, 2])])
    for stage in STAGES:
        for where in ("forward", "backward"):
            model: Any = shard(chain(), stage=stage)
            with no_sync(model):
                error(model, batch(rank, 0)).backward()
            register = model[1][1].register_forward_hook
            handle = register(
                fail if where == "forward" else lambda *args: args[2].register_hook(fail) and None
            )
            with pytest.raises(ArithmeticError), no_sync(model):
                error(model, batch(rank, 0)).backward()
            handle.remove()
            model.zero_grad()
            backwards(model, [1, 2])
            assert_same_gradients(model, plain)


def weights_changed_by_hand_while_gradients_wait() -> None:
    """An epoch ends within an accumulation, and averaged weights are tried out."""
    from shardbook import Policy, no_sync, shard

    policies = (None, Policy(param_dtype=torch.bfloat16), Policy(offload=True))
    for stage, policy, called, gives_up in product(STAGES, policies, ("model", "unit"), (True, False)):
        model: Any = shard(
            nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), stage=stage, units=nn.Linear, policy=policy
        )
        x = torch.ones(2, 4)
        with no_sync(model):
            model(x).sum().backward()
        if gives_up:
            model.zero_grad()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
            dtype = policy.param_dtype if policy else None
            y = model(x) if called == "model" else model[1](x.to(dtype))
        assert torch.equal(y, torch.zeros_like(y)), (stage, policy, called, gives_up)


def weights_swapped_for_an_evaluation_while_gradients_wait() -> None:
    """Through `.data`, which PyTorch does not count."""
    from shardbook import Policy, no_sync, shard

    policies = (None, Policy(param_dtype=torch.bfloat16), Policy(offload=True))
    for stage, policy in product(STAGES, policies):
        model: Any = shard(chain(), stage=stage, policy=policy)
        data, rank = batch(0, 0), dist.get_rank()
        with torch.no_grad():
            usual = error(model, data)
        with no_sync(model):
            error(model, batch(rank, 1)).backward()
        saved = [parameter.detach().clone() for parameter in model.parameters()]
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.data.zero_()
            assert torch.equal(model(data[0]), torch.zeros_like(model(data[0])))
            for parameter, value in zip(model.parameters(), saved, strict=True):
                parameter.data.copy_(value)
        assert torch.equal(error(model, data), usual), (stage, policy)


def sums_keep_the_digits_of_fp32() -> None:
    """A BF16 number of 256 does not change if 1 is added."""
    from shardbook import Policy, no_sync, shard

    formats = (torch.float32, Policy(param_dtype=torch.bfloat16)), (torch.bfloat16, None)
    for stage, (dtype, policy) in product(STAGES, formats):
        model = shard(nn.Linear(1, 1, bias=False, dtype=dtype), stage=stage, policy=policy)
        for number, value in enumerate((256, 1, 1)):
            with no_sync(model) if number < 2 else nullcontext():
                model(torch.full((1, 1), value, dtype=dtype)).sum().backward()
        (parameter,) = model.parameters()
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, torch.full_like(parameter, 258))


def stored_in_the_middle_of_a_backward_pass(model: Any) -> int:
    """The bytes that are alive while the gradient of what the first of two layers returned is there."""
    stored: list[int] = []
    with LiveStorages() as live:
        hook = model[0].register_forward_hook(
            lambda *passed: passed[-1].register_hook(lambda _: stored.append(live.bytes())) and None
        )
        model(torch.ones(1, 64)).sum().backward()
        hook.remove()
    (found,) = stored
    return found


def only_what_waits_takes_the_room_of_fp32() -> None:
    """A step without micro-batches collects its gradients in 16 bits, whatever the step before it did."""
    from shardbook import Policy, no_sync, shard

    for stage in STAGES:
        plain = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
        model = shard(plain, stage=stage, policy=Policy(param_dtype=torch.bfloat16))
        before = [stored_in_the_middle_of_a_backward_pass(model) for _ in range(2)]
        model.zero_grad()
        with no_sync(model):
            waiting = stored_in_the_middle_of_a_backward_pass(model)
        stored_in_the_middle_of_a_backward_pass(model)
        model.zero_grad()
        assert stored_in_the_middle_of_a_backward_pass(model) == before[1] < waiting, stage


CASES = [
    only_what_waits_takes_the_room_of_fp32,
    weights_changed_by_hand_while_gradients_wait,
    weights_swapped_for_an_evaluation_while_gradients_wait,
    sums_keep_the_digits_of_fp32,
    a_step_that_fails_after_a_micro_batch,
    accumulates_like_ddp,
    no_sync_adds_to_what_was_exchanged_before,
    evaluation_between_two_micro_batches,
    a_unit_that_only_the_first_micro_batch_uses,
    a_unit_that_no_rank_uses,
    parameters_of_a_unit_that_no_rank_uses,
    parameters_of_a_unit_that_one_rank_does_not_use,
    parameters_that_each_rank_uses_in_another_micro_batch,
    a_unit_that_returns_its_input_on_one_rank,
    zero_grad_drops_what_waits,
    zero_grad_in_a_no_sync_step,
    zero_grad_after_a_nested_no_sync,
]


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("case", rows(CASES, now=CASES[::2]), ids=lambda case: case.__name__)
def test_in_every_stage(case: Callable[[], None]) -> None:
    ranks.run(2, case)


def step_too_early() -> set[str]:
    from shardbook import clip_grad_norm_, clip_grad_value_, no_sync, shard

    said = set()
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        optimizer = optimizer_for("adamw", model.parameters())
        with no_sync(model):
            error(model, batch(dist.get_rank(), 0)).backward()
        for attempt in (
            optimizer.step,
            partial(clip_grad_norm_, model, 1.0),
            partial(clip_grad_value_, model, 1.0),
        ):
            with pytest.raises(RuntimeError) as caught:
                attempt()
            said.add(str(caught.value))
        # The last micro-batch makes it good.
        error(model, batch(dist.get_rank(), 1)).backward()
        optimizer.step()
    return said


@pytest.mark.full
def test_neither_an_optimizer_nor_clipping_may_act_on_gradients_that_wait() -> None:
    for said in ranks.run(2, step_too_early):
        assert said == {
            "the gradient of 0.weight has not been averaged yet; "
            "run a backward pass to its end, outside of no_sync()"
        }


def not_sharded() -> str:
    from shardbook import no_sync

    with pytest.raises(ValueError) as caught, no_sync(nn.Linear(1, 1)):  # noqa: PT011
        pass
    return str(caught.value)


def test_no_sync_of_a_plain_model_is_refused() -> None:
    assert not_sharded() == "this Linear is not sharded; call shard(model) first"


def only_a_part() -> list[str]:
    """What takes a model says of one of its units, and of a module inside of a unit, to pass the model."""
    from shardbook import clip_grad_norm_, full_precision, no_sync, shard

    model: Any = shard(chain())
    said = []
    for enter in (lambda: no_sync(model[1]), lambda: full_precision(model[1][0])):
        with pytest.raises(ValueError) as caught, enter():  # noqa: PT011
            pass
        said.append(str(caught.value))
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        clip_grad_norm_(model[1], 1.0)
    return [*said, str(caught.value)]


def test_a_part_of_a_sharded_model_is_refused() -> None:
    says = "this {} is a part of a sharded model; pass the model that shard returned"
    parts = ("Sequential", "Linear", "Sequential")
    assert ranks.run(1, only_a_part) == [[says.format(part) for part in parts]]


def sent_for_micro_batches() -> list[dict[str, Any]]:
    from shardbook import shard
    from shardbook.foundations.collectives import ledger

    found = []
    for frozen in (False, True):
        for stage in STAGES:
            plain = chain()
            if frozen:
                plain[1].requires_grad_(False)
                plain[3][0].requires_grad_(False)
            model = shard(plain, stage=stage)
            sizes = {kind: padded_bytes(model, trainable=kind) for kind in (True, False)}
            found.append({"stage": stage, "trainable": sizes[True], "frozen": sizes[False]})
            found[-1]["compared"] = compared_bytes(model)
            for once in (True, False):
                with ledger() as book:
                    backwards(model, range(MICRO), once=once)
                found[-1]["once" if once else "each"] = book.sent
    return found


@pytest.mark.full
def test_bytes_of_a_step_with_several_micro_batches() -> None:
    world_size = 3
    for found in ranks.run(world_size, sent_for_micro_batches):
        for step in found:
            trainable = step["trainable"] * (world_size - 1) // world_size
            frozen = step["frozen"] * (world_size - 1) // world_size
            k = MICRO
            # Stages 1 and 2 gather before each pass in which a rank may have stepped, stage 3 twice in each.
            gathered = {
                0: (trainable, k * trainable),
                1: (trainable, k * trainable),
                2: (trainable, k * trainable),
                3: (2 * k * (trainable + frozen),) * 2,
            }[step["stage"]]
            one = {"reduce-scatter": trainable, "all-reduce": step["compared"]}
            assert step["once"] == {"all-gather": gathered[0], **one}
            each = {name: k * nbytes for name, nbytes in one.items()}
            assert step["each"] == {"all-gather": gathered[1], **each}


def low_rank(seed: int = 0) -> nn.Module:
    """A frozen base and small layers beside it that are trained."""
    torch.manual_seed(seed)
    return nn.Sequential(*[Adapted() for _ in range(3)], nn.Linear(64, 16).requires_grad_(False))


class Adapted(nn.Module):
    """A frozen layer and the product of two narrow ones beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(64, 64).requires_grad_(False)
        self.down, self.up = nn.Linear(64, 2, bias=False), nn.Linear(2, 64, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.base(x) + self.up(self.down(x))
        return y


def adapter_loss(model: nn.Module, rank: int, number: int) -> Tensor:
    y: Tensor = model(torch.linspace(0, 1 + rank + number, 64).view(1, 64))
    return y.square().mean()


def adapters() -> list[dict[str, int]]:
    """Train the adapters like the reference; return the bytes of all that a step made, by stage."""
    from shardbook import shard

    rank, found = dist.get_rank(), []
    for stage in STAGES:
        plain, model = low_rank(), shard(low_rank(), stage=stage)
        optimizers = [torch.optim.AdamW(each.parameters(), foreach=False) for each in (plain, model)]
        for step in range(2):
            adapter_loss(model, rank, step).backward()
            fill_gradients(plain, [all_losses(plain, [step], adapter_loss)])
            assert_same_gradients(model, plain)
            if step == 0:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        assert_same_values(model, plain)
        for parameter in model.parameters():
            assert (parameter.grad is None) is not parameter.requires_grad
        state = [v for s in optimizers[1].state.values() for key, v in s.items() if key != "step"]
        found.append(
            {
                "gradients": storages(p.grad for p in model.parameters() if p.grad is not None),
                "moments": sum(value.nbytes for value in state),
                "padded": padded_bytes(model, trainable=True),
                "numel": 4 * sum(p.numel() for p in model.parameters() if p.requires_grad),
            }
        )
    return found


@pytest.mark.full
def test_frozen_parameters_cost_neither_gradients_nor_optimizer_state() -> None:
    for found in ranks.run(2, adapters):
        for stage, sizes in zip(STAGES, found, strict=True):
            assert sizes["gradients"] == sizes["padded"] // (2 if stage else 1)
            assert sizes["moments"] == 2 * sizes["numel"]


WIRE = [None, torch.bfloat16, torch.float16, torch.float32, torch.float64]


def a_dtype_on_the_wire() -> list[dict[str, Any]]:
    from shardbook import Policy, shard
    from shardbook.foundations.collectives import ledger

    rank, found = dist.get_rank(), []
    for dtype in (torch.float32, torch.bfloat16):
        for wire in WIRE:
            plain = chain().to(dtype)
            fill_gradients(plain, [all_losses(plain, [0, 1]), all_losses(plain, [2])], dtype=wire)
            for stage in STAGES:
                model = shard(chain().to(dtype), stage=stage, policy=Policy(reduce_dtype=wire))
                with ledger() as book:
                    backwards(model, [0, 1])
                error(model, batch(rank, 2)).backward()
                assert all(parameter.grad.dtype is dtype for parameter in model.parameters())
                assert_same_gradients(model, plain)
                elements = padded_bytes(model) // dtype.itemsize
                sent = book.sent
                assert sent.pop("all-reduce") == compared_bytes(model)
                found.append((stage, elements, (wire or dtype).itemsize, dtype.itemsize, sent))
    return found


@pytest.mark.nightly
@pytest.mark.parametrize("world_size", rows([2, 3], now=[2]))
def test_a_dtype_on_the_wire_rounds_like_the_reference_and_sends_its_own_bytes(world_size: int) -> None:
    for found in ranks.run(world_size, a_dtype_on_the_wire):
        for stage, elements, wire, own, sent in found:
            moved = elements * (world_size - 1) // world_size
            gathered = {0: wire, 1: own, 2: own, 3: 4 * own}[stage] * moved
            assert sent == {"reduce-scatter": wire * moved, "all-gather": gathered}


def bad_policies() -> list[str]:
    from shardbook import Policy

    said = []
    for wrong in (torch.int32, "bfloat16"):
        with pytest.raises(TypeError) as caught:
            Policy(reduce_dtype=wrong)  # type: ignore[arg-type]
        said.append(str(caught.value))
    return said


def test_a_policy_whose_dtype_cannot_hold_a_mean_is_refused() -> None:
    assert bad_policies() == [
        f"reduce_dtype={wrong} cannot hold a mean; "
        "choose a floating-point dtype of 16 bits or more, such as torch.float32"
        for wrong in ("torch.int32", "'bfloat16'")
    ]
