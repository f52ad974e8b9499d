"""Ranks that disagree: the same sentence on every rank, and nobody waits."""

from __future__ import annotations

import doctest
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import ranks
from book.toys import batch, chain, error, linears


def wider(model: nn.Sequential) -> None:
    model[1][2] = nn.Linear(13, 9)


def another_dtype(model: nn.Sequential) -> None:
    model[2].to(torch.float64)


def frozen(model: nn.Sequential) -> None:
    model[3][2].bias.requires_grad_(False)


def one_parameter_less(model: nn.Sequential) -> None:
    model[4].bias = None


def one_parameter_more(model: nn.Sequential) -> None:
    model[4].extra = nn.Parameter(torch.ones(3))


def another_order(model: nn.Sequential) -> None:
    model[2], model[1] = model[1], model[2]


def on_two_devices(model: nn.Sequential) -> None:
    model[4].to("meta")


def tied(model: nn.Sequential) -> None:
    model[4].weight = model[0].weight


DISAGREEMENTS: list[tuple[Callable[[nn.Sequential], None], str]] = [
    (wider, "rank 2 differs from rank 0: 1.2.weight in 1 has shape (9, 13) instead of (8, 13)"),
    (another_dtype, "rank 2 differs from rank 0: 2.weight in 2 has dtype float64 instead of float32"),
    (frozen, "rank 2 differs from rank 0: 3.2.bias in 3 has requires_grad False instead of True"),
    (one_parameter_less, "rank 2 differs from rank 0: 4.bias in 4 is missing"),
    (one_parameter_more, "rank 2 differs from rank 0: 4.extra in 4 is one parameter too many"),
    (another_order, "rank 2 differs from rank 0: 1.weight in 1 stands where 1.0.weight in 1 is expected"),
    (on_two_devices, "rank 2 differs from rank 0: 4.weight in 4 has device meta instead of cpu"),
    (tied, "rank 2 differs from rank 0: 4.weight in the root is tied to 0.weight, on rank 0 to nothing"),
]


def one_rank_differs(change: Callable[[nn.Sequential], None], wrap: str) -> str:
    import shardbook

    model: Any = chain()
    if dist.get_rank() == 2:
        change(model)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        getattr(shardbook, wrap)(model)
    # The process group still works, so a program may catch the error and go on.
    model = shardbook.shard(chain())
    error(model, batch(dist.get_rank(), 0)).backward()
    return str(caught.value)


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize(
    ("change", "sentence"), DISAGREEMENTS, ids=lambda value: getattr(value, "__name__", "")
)
def test_every_rank_says_which_rank_and_parameter(
    change: Callable[[nn.Sequential], None], sentence: str
) -> None:
    for said in ranks.run(3, one_rank_differs, change, "shard", timeout=30):
        assert said.startswith(sentence)


def test_a_single_layer_checks_too() -> None:
    for said in ranks.run(3, one_rank_differs, wider, "Zero3Layer", timeout=30):
        assert "1.2.weight in the root has shape (9, 13) instead of (8, 13)" in said


def another_buffer(model: nn.Sequential) -> None:
    model[2].register_buffer("mask", torch.ones(3))


def neighbours_tied(model: nn.Sequential) -> None:
    model[1].weight = model[0].weight


def no_such_unit(model: nn.Sequential) -> None:
    for name in ("0", "1", "2"):
        setattr(model, name, nn.Identity())


def one_of_two_differs(change: Callable[[nn.Sequential], None], units: Any) -> str:
    from shardbook import shard

    model = linears()
    model[2].register_buffer("mask", torch.ones(2))
    if dist.get_rank() == 1:
        change(model)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        shard(nn.Sequential(model), units=units)
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "units", "sentence"),
    [
        (another_buffer, None, "0.2.mask in the root has shape (3,) instead of (2,)"),
        (neighbours_tied, None, "0.1.weight in 0 is tied to 0.0.weight, on rank 0 to nothing"),
        (no_such_unit, nn.Linear, "selects no module; name a class that the model contains"),
    ],
)
def test_ranks_that_differ_elsewhere_than_in_a_shape_do_not_hang(
    change: Callable[[nn.Sequential], None], units: Any, sentence: str
) -> None:
    for said in ranks.run(2, one_of_two_differs, change, units, timeout=30):
        assert sentence in said


@pytest.mark.parametrize(
    "chapter",
    ["foundations.agreement", "zero.construct", "zero.model", "zero.scheduler", "zero.parameter_sites"],
)
def test_the_examples_in_the_text(chapter: str) -> None:
    results = doctest.testmod(importlib.import_module(f"shardbook.{chapter}"))
    assert results.attempted > 0
    assert results.failed == 0
