"""Every program of `book.programs` trains as PyTorch alone does, without the book."""

from __future__ import annotations

from functools import partial
from unittest.mock import patch

import pytest
from torch import Tensor

import ranks
from book import plainly
from book.plainly import Program, bound, compared
from book.programs import RUNS, crossed

pytestmark = pytest.mark.full

ALL: dict[str, Program] = {**RUNS, "3-crossed": partial(crossed, 3)}
# The book's clipping measures the norm in FP64, and PyTorch's in FP32.
OTHER_BITS = {f"{stage}-{name}" for stage in range(4) for name in ("clipped", "scaled", "crossed")}
LOWER = [name for name in RUNS if name[0] in "012"]
OTHERS = [name for name in RUNS if name not in LOWER]


def compare(names: list[str]) -> dict[str, tuple[bool, float]]:
    return {name: compared(ALL[name], "cpu") for name in names}


def refuse_differences(found: dict[str, tuple[bool, float]]) -> None:
    assert {name: far for name, (_, far) in found.items() if far > bound(name)} == {}
    assert {name for name, (same_bits, _) in found.items() if not same_bits} <= OTHER_BITS


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize(
    "names", [pytest.param(OTHERS, id="3"), pytest.param(LOWER, id="0 to 2", marks=pytest.mark.full)]
)
def test_every_program_trains_as_a_plain_model(names: list[str]) -> None:
    for found in ranks.run(2, compare, names, timeout=300):
        refuse_differences(found)


@pytest.mark.nightly
def test_one_rank_trains_as_a_plain_model_and_so_do_four_on_a_mesh() -> None:
    two_ranks = ("repeated", "failed_on_a_mesh")
    for found in ranks.run(1, compare, [name for name in RUNS if not name.endswith(two_ranks)], timeout=300):
        refuse_differences(found)
    for found in ranks.run(4, compare, ["3-crossed"]):
        refuse_differences(found)


def with_a_lost_gradient() -> dict[str, float]:
    """How far each kind of program is from a plain one that leaves out what the last rank has computed."""

    def without_the_last(sent: list[Tensor]) -> Tensor:
        return mean(sent[:-1] or sent)

    mean = plainly.ordered_mean
    with patch.object(plainly, "ordered_mean", without_the_last):
        return {
            name: compared(ALL[name], "cpu")[1]
            for name in ("3-plain", "0-offloaded", "3-low", "3-accumulated")
        }


@pytest.mark.nightly
def test_a_lost_gradient_is_far_outside_of_the_bound() -> None:
    for found in ranks.run(2, with_a_lost_gradient):
        for name, far in found.items():
            assert far > 2 * bound(name), name
