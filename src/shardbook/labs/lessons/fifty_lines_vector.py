"""The first check of lab 3: a vector and its parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from shardbook.labs.lessons.returned import called, expect_dtype, tensor
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell

__all__ = ["flatten_and_cut"]


@check
def flatten_and_cut(
    flatten: Callable[[Sequence[Tensor], int], Tensor],
    cut: Callable[[Tensor, int, int], Tensor],
) -> str:
    """Values in their order, zeros at the end, and parts with memory of their own."""
    five = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([5.0])]
    judge_vector(flatten, five, 3, [1, 2, 3, 4, 5, 0])
    judge_vector(flatten, five, 4, [1, 2, 3, 4, 5, 0, 0, 0])
    judge_vector(flatten, five, 5, [1, 2, 3, 4, 5])
    half = flatten([each.half() for each in five], 4)
    expect_dtype(
        "flatten",
        half,
        torch.float16,
        look=tell("`torch.cat` with zeros in FP32 turns everything into FP32."),
    )
    vector = torch.arange(6.0)
    for rank in range(3):
        part = tensor("cut", called("cut", cut, vector, rank, 3))
        judge_part(rank, part)
        expect_dtype("cut", part, vector.dtype)
        expect(
            part.untyped_storage().nbytes() == 8,
            tell("The part is a view of a longer vector, and keeps all of its memory."),
            look=tell("`clone()` gives it memory of its own."),
        )
    return tell("The parts of all ranks, one after the other, are the vector.")


def judge_vector(
    flatten: Any, tensors: list[Tensor], count: int, right: list[float]
) -> None:
    """Compare a vector with the right one."""
    found = called("flatten", flatten, tensors, count)
    expect(
        isinstance(found, Tensor) and found.ndim == 1,
        tell("flatten must return one tensor with one dimension."),
        look=tell(
            "Does each tensor become flat before `torch.cat`, and is there `return`?"
        ),
    )
    expect(
        len(found) % count == 0,
        tell(
            "flatten turns 5 values into {length}, which {count} ranks cannot share evenly.",
            length=len(found),
            count=count,
        ),
        look=tell(
            "`-len(vector) % ranks` zeros make its length a multiple of `ranks`."
        ),
    )
    expect(
        len(found) == len(right),
        tell(
            "For {count} ranks 5 values become {right}, and not {length}.",
            count=count,
            right=len(right),
            length=len(found),
        ),
        look=tell("Add as few zeros as possible, and none if the length fits already."),
    )
    expect(
        found.tolist() == right,
        tell(
            "The vector is {found}, and should be {right}.",
            found=found.tolist(),
            right=right,
        ),
        look=tell("The values come first, in their order, and the zeros come last."),
    )
    expect_dtype("flatten", found, tensors[0].dtype)


def judge_part(rank: int, part: Tensor) -> None:
    """Compare a part of the values 0 to 5 on 3 ranks with the right one."""
    right = [2.0 * rank, 2.0 * rank + 1]
    expect(
        part.tolist() != [rank, rank + 3.0],
        tell("Rank {rank} gets every third value.", rank=rank),
        look=tell(
            "An all-gather writes the parts one after the other. So each part is one piece."
        ),
    )
    expect(
        part.tolist() == right,
        tell(
            "Of the values 0 to 5, rank {rank} of 3 stores {right}, and not {found}.",
            rank=rank,
            right=right,
            found=part.tolist(),
        ),
        look=tell("Ranks are counted from 0, and `chunk` takes the number of pieces."),
    )
