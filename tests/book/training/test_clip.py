"""Clipping over shards: the norm of the whole gradient, on every rank, in every stage."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ranks
from book.reference import STAGES, all_losses, assert_same_gradients, fill_gradients
from book.toys import batch, chain, error, optimizer_for, plain_gradients, whole_gradients

ORDERS = [1.0, 2.0, 3.0, 0.5, math.inf]


def norms_and_gradients() -> list[list[float]]:
    """The norms of all orders in all stages, and every clipped gradient against torch's."""
    from shardbook import clip_grad_norm_, shard

    plain = chain()
    fill_gradients(plain, [all_losses(plain, [0])])
    exact = [p.grad.double() for p in plain.parameters()]  # type: ignore[union-attr]
    found = [[torch.cat([g.flatten() for g in exact]).norm(p=order).item() for order in ORDERS]]
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        norms = []
        for order in ORDERS:
            fill_gradients(plain, [all_losses(plain, [0])])
            expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1, order)
            model.zero_grad()
            error(model, batch(dist.get_rank(), 0)).backward()
            norm = clip_grad_norm_(model, 0.1, order)
            assert norm.dtype is expected.dtype is torch.float32
            norms.append(norm.item())
            torch.testing.assert_close(norm.float(), expected, rtol=1e-5, atol=0)
            clipped = whole_gradients(model)
            for name, gradient in plain_gradients(plain).items():
                torch.testing.assert_close(clipped[name], gradient, rtol=1e-5, atol=1e-12)
        found.append(norms)
    return found


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_norm_is_torchs_on_every_rank_in_every_stage(world_size: int) -> None:
    exact = None
    for found in ranks.run(world_size, norms_and_gradients):
        exact = exact or found[0]
        for norms in found:
            # The terms are summed in fp64, and the norm is rounded once to the gradients' dtype.
            assert norms == pytest.approx(exact, rel=2**-23, abs=0)


DTYPES = {
    (torch.float32, torch.bfloat16): torch.float32,
    (torch.bfloat16, torch.bfloat16): torch.bfloat16,
    (torch.float16, torch.bfloat16): torch.float32,
    (torch.float64, torch.float32): torch.float64,
}


def norms_in_the_dtype_of_torch() -> list[float]:
    from shardbook import clip_grad_norm_, shard

    found = []
    for dtypes, expected in DTYPES.items():
        # One bias has fewer elements than there are ranks, so a rank holds none of it.
        layers = [nn.Linear(2, 3, dtype=dtypes[0]), nn.Linear(3, 1, dtype=dtypes[1])]
        plain = nn.Sequential(*layers)
        for parameter in plain.parameters():
            parameter.grad = torch.full_like(parameter, 3.0)
        by_torch = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        plain.zero_grad()
        model = shard(plain)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 3.0)
        norm = clip_grad_norm_(model, 1.0, foreach=True)
        assert norm.dtype == by_torch.dtype == expected, (dtypes, norm, by_torch)
        # Torch rounds the norm of each gradient to its own dtype first.
        assert norm.item() == pytest.approx(by_torch.item(), rel=2**-7)
        found.append(norm.item())
    return found


@pytest.mark.full
def test_the_norm_has_torchs_dtype_and_the_same_bits_on_every_rank() -> None:
    first, *others = ranks.run(3, norms_in_the_dtype_of_torch)
    assert others == [first, first]


def every_rank_has_the_same_norm() -> list[list[float]]:
    from shardbook import clip_grad_norm_, shard

    model = shard(chain())
    error(model, batch(dist.get_rank(), 0)).backward()
    return [clip_grad_norm_(model, math.inf, order).item() for order in ORDERS]


@pytest.mark.full
def test_the_norm_is_the_same_number_on_every_rank() -> None:
    first, *others = ranks.run(4, every_rank_has_the_same_norm)
    assert all(other == first for other in others)


def a_norm_below_the_limit() -> None:
    from shardbook import clip_grad_norm_, shard

    for stage in STAGES:
        model = shard(chain(), stage=stage)
        error(model, batch(dist.get_rank(), 0)).backward()
        before = whole_gradients(model)
        clip_grad_norm_(model, 1e6)
        after = whole_gradients(model)
        assert all(torch.equal(after[name], before[name]) for name in before)


def values_are_limited() -> None:
    from shardbook import clip_grad_value_, shard

    plain = chain()
    fill_gradients(plain, [all_losses(plain, [0])])
    torch.nn.utils.clip_grad_value_(plain.parameters(), 0.01)
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        error(model, batch(dist.get_rank(), 0)).backward()
        clip_grad_value_(model, 0.01)
        assert_same_gradients(model, plain)


def clipped_training_follows_unsharded_training() -> None:
    from shardbook import clip_grad_norm_, shard

    plain = chain()
    models = [shard(chain(), stage=stage) for stage in STAGES]
    optimizers = [optimizer_for("sgd", model.parameters()) for model in (plain, *models)]
    for step in range(4):
        fill_gradients(plain, [all_losses(plain, [step])])
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.2)
        for model in models:
            error(model, batch(dist.get_rank(), step)).backward()
            assert clip_grad_norm_(model, 0.2) > 0.2
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    expected = plain.state_dict()
    states = [model.state_dict() for model in models]
    for state in states:
        for name, value in state.items():
            torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)
            # All stages multiply by the same factor, so they stay equal to the bit.
            assert torch.equal(value, states[0][name])


def a_rank_whose_parts_are_empty() -> None:
    """A single small parameter lies on rank 0; the other rank has nothing to take a norm of."""
    from shardbook import clip_grad_norm_, shard

    for stage in STAGES[1:]:
        model = shard(nn.Linear(3, 1, bias=False), stage=stage)
        model(torch.tensor([[3.0, 0.0, 4.0]])).sum().backward()
        for order, norm in ((2.0, 5.0), (math.inf, 4.0)):
            assert clip_grad_norm_(model, 100.0, order).item() == norm


def gradients_that_have_a_graph() -> None:
    """As a program may set them. Nothing of the clipping is recorded in it."""
    from shardbook import clip_grad_norm_, clip_grad_value_, shard

    for stage in STAGES:
        model = shard(chain(), stage=stage)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter, requires_grad=True)
        assert not clip_grad_norm_(model, 1.0).requires_grad
        clip_grad_value_(model, 0.01)
        assert all(p.grad.is_leaf and p.grad.le(0.01).all() for p in model.parameters())


def large_elements() -> None:
    """The largest element needs no power, which FP64 could not hold."""
    from shardbook import clip_grad_norm_, shard

    for stage in STAGES:
        model = shard(nn.Linear(2, 1, dtype=torch.float64), stage=stage)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e200)
        assert clip_grad_norm_(model, 1.0, math.inf).item() == 1e200


def gradients_that_are_not_there() -> None:
    """No backward pass yet, nothing trainable, no parameter at all: the norm is zero, as torch says."""
    from shardbook import clip_grad_norm_, clip_grad_value_, shard

    for build in (chain, lambda: chain().requires_grad_(False), nn.Identity):
        for stage in STAGES:
            model = shard(build(), stage=stage)
            assert clip_grad_norm_(model, 1.0).item() == 0.0
            clip_grad_value_(model, 1.0)


CASES = [
    a_norm_below_the_limit,
    values_are_limited,
    clipped_training_follows_unsharded_training,
    a_rank_whose_parts_are_empty,
    gradients_that_have_a_graph,
    large_elements,
    gradients_that_are_not_there,
]


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_in_every_stage(case: Any) -> None:
    ranks.run(2, case)


def damaged() -> dict[str, Any]:
    """The norm of each order for each damage, without and with `error_if_nonfinite`."""
    from shardbook import clip_grad_norm_, shard

    found: dict[str, Any] = {}
    model = shard(chain())
    for where, value, order in DAMAGES:
        norms: list[Any] = []
        for strict in (False, True):
            model.zero_grad()
            error(model, batch(dist.get_rank(), 0)).backward()
            if dist.get_rank() == where:
                slices = [p.grad for p in model.parameters() if p.grad is not None and p.grad.numel()]
                slices[0][0] = value
            try:
                norms.append(str(clip_grad_norm_(model, 1.0, order, error_if_nonfinite=strict).item()))
            except RuntimeError as caught:
                norms.append(str(caught))
        found[f"{value} on rank {where}, order {order}"] = norms
    return found


DAMAGES = list(itertools.product([0, 1, 2], [math.nan, math.inf], [1.0, 2.0, math.inf]))


@pytest.mark.full
def test_what_is_not_finite_on_one_rank_is_known_on_every_rank() -> None:
    for found in ranks.run(3, damaged):
        assert found == {
            f"{value} on rank {where}, order {order}": [
                str(value),
                f"the norm of order {order} of the gradients is {value}; "
                "skip this step, or call without error_if_nonfinite",
            ]
            for where, value, order in DAMAGES
        }


def what_is_left_of_a_damage() -> None:
    from shardbook import clip_grad_norm_, shard

    for stage in STAGES:
        for value in (math.nan, math.inf, -math.inf):
            model = shard(chain(), stage=stage)
            error(model, batch(dist.get_rank(), 0)).backward()
            gradients = [p.grad for p in model.parameters() if p.grad is not None and p.grad.numel()]
            gradients[0].view(-1)[0] = value
            clip_grad_norm_(model, 1.0)
            assert gradients[0].view(-1)[0].isnan()
            assert not any(gradient.any() for gradient in (gradients[0].view(-1)[1:], *gradients[1:]))


@pytest.mark.full
def test_a_norm_that_is_not_finite_damages_no_other_gradient() -> None:
    ranks.run(2, what_is_left_of_a_damage)


def sent_for_a_norm() -> list[dict[str, int]]:
    from shardbook import clip_grad_norm_, clip_grad_value_, shard
    from shardbook.foundations.collectives import ledger

    found = []
    for stage in STAGES:
        model = shard(chain(), stage=stage)
        error(model, batch(dist.get_rank(), 0)).backward()
        with ledger() as book:
            clip_grad_norm_(model, 1.0)
            clip_grad_value_(model, 1.0)
        found.append(book.sent)
    return found


@pytest.mark.full
def test_a_norm_sends_one_number_to_each_other_rank_and_stage_0_sends_nothing() -> None:
    for stage_0, *others in ranks.run(3, sent_for_a_norm):
        assert stage_0 == {}
        assert others == [{"all-gather": 2 * 8}] * 3


class Late:
    """An exchange whose numbers are there once it has been waited for, as on a GPU."""

    works = ()

    def __init__(self, found: torch.Tensor, own: torch.Tensor, group: Any) -> None:
        self.found, self.own = found.zero_(), own

    def wait(self) -> None:
        self.found.copy_(self.own)


def two_numbers() -> None:
    from shardbook import shard
    from shardbook.training import clip

    own = torch.tensor([1.0, 2.0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clip, "all_gather", Late)
        assert torch.equal(clip.of_all_ranks(shard(chain()), own, "asking"), own)


def test_the_numbers_of_the_ranks_are_waited_for() -> None:
    ranks.run(1, two_numbers)


def one_does_not_clip() -> str:
    from shardbook import Disagreement, clip_grad_norm_, shard

    rank, model = dist.get_rank(), shard(chain(), units=())
    for step in range(2):
        error(model, batch(rank, step)).backward()
        clip_grad_norm_(model, 1.0)
    error(model, batch(rank, 2)).backward()
    with pytest.raises(Disagreement) as caught:
        clip_grad_norm_(model, 1.0) if rank == 0 else error(model, batch(rank, 3))
    return str(caught.value)


def test_a_rank_that_does_not_clip_is_named() -> None:
    """The others wait in an exchange by then, and learn of it all the same."""
    first, second = ranks.run(2, one_does_not_clip, timeout=30)
    assert first == second
    assert first.startswith("rank 1, after ")
    went = "rank 0 went on, as agreed before, to gather the norm of the gradients (parameter 0.weight) "
    assert f"{went}as exchange 1 of its clipping pass" in first


def refused_orders() -> list[str]:
    from shardbook import clip_grad_norm_, shard

    said, model = [], shard(chain())
    for order in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError) as caught:  # noqa: PT011
            clip_grad_norm_(model, 1.0, order)
        said.append(str(caught.value))
    return said


def test_a_norm_of_no_positive_order_is_refused() -> None:
    [said] = ranks.run(1, refused_orders)
    assert said == [
        f"norm_type={order} is not a norm; choose a positive number" for order in ("0.0", "-1.0", "nan")
    ]


def test_a_plain_model_is_refused() -> None:
    from shardbook import clip_grad_norm_, clip_grad_value_

    for clip in (clip_grad_norm_, clip_grad_value_):
        with pytest.raises(ValueError, match=r"this Linear is not sharded; call shard\(model\) first"):
            clip(nn.Linear(1, 1), 1.0)


def partly_sharded() -> list[str]:
    from shardbook import clip_grad_norm_, clip_grad_value_, shard

    said = []
    for model in (
        nn.Sequential(shard(nn.Linear(3, 3)), nn.Linear(3, 1)),
        nn.Sequential(shard(nn.Linear(3, 3)), shard(nn.Linear(3, 1))),
    ):
        for clip in (clip_grad_norm_, clip_grad_value_):
            with pytest.raises(ValueError) as caught:  # noqa: PT011
                clip(model, 1.0)
            said.append(str(caught.value))
    return said


def test_a_model_that_is_not_sharded_as_a_whole_is_refused() -> None:
    for said in ranks.run(2, partly_sharded):
        plain = (
            "1.weight is not sharded, so its gradient is not the mean over the ranks; shard the whole model"
        )
        apart = "2 parts of this Sequential were sharded apart; call shard once, on the whole model"
        assert said == [plain, plain, apart, apart]
