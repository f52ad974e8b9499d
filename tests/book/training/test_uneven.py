"""Ranks with unequal numbers of batches train as the sum over those that still have data says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import ranks
from book.toys import Batch, assert_equal, batch, chain, error
from shardbook import clip_grad_norm_, join, no_sync, shard
from shardbook.foundations.collectives import ledger
from shardbook.training.accumulate import device_of


def batches_of(rank: int, lengths: tuple[int, ...]) -> list[Batch]:
    return [batch(rank, step) for step in range(lengths[rank])]


def reference(lengths: tuple[int, ...], *, divide_by_all: bool, shortest: bool) -> dict[str, Tensor]:
    """A plain model: in each step the gradients of the ranks that still have a batch, added in rank order."""
    model = chain()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(min(lengths) if shortest else max(lengths)):
        active = [rank for rank, length in enumerate(lengths) if step < length]
        weight = 1.0 if divide_by_all else len(lengths) / len(active)
        sums: Any = None
        for rank in range(len(lengths)):
            model.zero_grad()
            # Who is through adds nothing.
            if rank in active:
                (weight * error(model, batch(rank, step))).backward()
            gradients = [
                torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()
            ]
            sums = gradients if sums is None else [a + b for a, b in zip(sums, gradients, strict=True)]
        for parameter, total in zip(model.parameters(), sums, strict=True):
            parameter.grad = total / len(lengths)
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def all_ways(lengths: tuple[int, ...]) -> None:
    rank = dist.get_rank()
    for stage in range(4):
        for divide_by_all in (True, False):
            for shortest in (True, False):
                model = shard(chain(), stage=stage)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                steps = 0
                own = batches_of(rank, lengths)
                options = {"divide_by_initial_world_size": divide_by_all, "shortest": shortest}
                for data, weight in join(iter(own), **options):
                    (weight * error(model, data)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    steps += 1
                assert steps == (min if shortest else max)(lengths), (steps, stage, options)
                expected = reference(lengths, divide_by_all=divide_by_all, shortest=shortest)
                assert_equal(dict(model.state_dict()), expected)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("lengths", [pytest.param((3, 1), marks=pytest.mark.full), (1, 4, 2)])
def test_training_equals_the_sum_over_the_ranks_that_have_data(lengths: tuple[int, ...]) -> None:
    ranks.run(len(lengths), all_ways, lengths)


def the_rest() -> str:
    rank = dist.get_rank()
    # Nothing anywhere is no step at all.
    assert list(join([])) == []
    with pytest.raises(ValueError, match="ranks have no batch") as caught:
        list(join([1] if rank else []))
    assert list(join("ab" if rank else "a")) == (
        [("a", 1.0), ("b", 1.0)] if rank else [("a", 1.0), ("a", 0.0)]
    )
    assert list(join([rank], group=dist.new_group([0, 1]))) == [(rank, 1.0)]
    # Micro-batches, clipping and a scheduler are the loop's own, so they stay in step.
    model = shard(chain(), units=nn.Linear)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    norms = []
    for data, weight in join(batches_of(rank, (1, 3))):
        with no_sync(model):
            (weight * error(model, data)).backward()
        (weight * error(model, data)).backward()
        norms.append(clip_grad_norm_(model, 0.1).item())
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    every: list[Any] = [None, None]
    dist.all_gather_object(every, norms)
    assert every[0] == every[1]
    assert len(norms) == 3
    with ledger() as sent:
        assert len(list(join(range(2 + rank)))) == 3
    # One number in each step, and one that says that all are through.
    assert [(call.collective, call.payload) for call in sent.calls] == [("all-reduce", 8)] * 4
    return str(caught.value)


def test_the_rest_of_a_loop_stays_in_step() -> None:
    for sentence in ranks.run(2, the_rest):
        assert sentence == (
            "1 of 2 ranks have no batch at all, so they have none to repeat; give each rank at least one"
        )


def test_a_batch_is_drawn_only_when_its_step_begins() -> None:
    ranks.run(1, lazily)


def lazily() -> None:
    drawn: list[int] = []

    def source() -> Iterator[int]:
        for number in range(3):
            drawn.append(number)
            yield number

    steps = join(source())
    assert drawn == []
    assert next(steps) == (0, 1.0)
    assert drawn == [0]


class Array:
    """As NumPy's: a comparison gives one truth value for each element, and so none for all."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth value of an array is ambiguous")

    __ne__ = __eq__
    __hash__ = None  # type: ignore[assignment]


def arrays() -> None:
    own = Array()
    assert [batch is own for batch, _ in join([own] * (1 + dist.get_rank()))] == [True, True]


def test_batches_are_not_compared() -> None:
    ranks.run(2, arrays)


@pytest.mark.parametrize(
    ("backends", "device"),
    [
        ("cpu:gloo", "cpu"),
        ("cuda:nccl", "cuda"),
        ("cuda:nccl,cpu:gloo", "cpu"),
        ("xpu:xccl,cuda:nccl", "xpu"),
    ],
)
def test_the_number_of_ranks_with_data_lies_where_the_backend_exchanges_it(
    backends: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dist, "get_backend_config", lambda group: backends)
    assert device_of(None) == torch.device(device)
