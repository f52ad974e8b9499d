"""Two layers split over two ranks by columns and by rows: every number, and what each all-reduce adds up."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import torch
from tools.record.frame import ranks
from torch import Tensor, nn

from shardbook.foundations.collectives import ledger, world
from shardbook.parallel import tensor_parallel
from shardbook.parallel.tensor_parallel import ColumnLinear, RowLinear, piece

RANKS = 2
X = [[1.0, 2.0]]
A = [[1.0, -2.0, 1.0, 2.0], [1.0, 1.0, -1.0, 0.0]]
B = [[1.0, 0.0], [2.0, 1.0], [0.0, 2.0], [1.0, 3.0]]
GRADIENT = [[1.0, 1.0]]


def record() -> Any:
    """The whole matrices, one rank's product with them, and the two halves."""
    return {
        "x": whole(torch.tensor(X)),
        "a": whole(torch.tensor(A)),
        "b": whole(torch.tensor(B)),
        "alone": ranks(1, on_a_rank)[0],
        "ranks": ranks(RANKS, on_a_rank),
    }


def on_a_rank() -> Any:
    """The forward and the backward pass of the pair of layers with this rank's halves."""
    rank, count = world()
    own = piece(len(B), rank, count)
    first, second = ColumnLinear(linear(A), own), RowLinear(linear(B), own)
    x = torch.tensor(X, requires_grad=True)
    sums: list[dict[str, Any]] = []
    with patch.object(tensor_parallel, "all_reduce", noted(sums)), ledger() as book:
        hidden = first(x)
        kept = torch.relu(hidden)
        y = second(kept)
        y.backward(torch.tensor(GRADIENT))
    assert x.grad is not None
    return {
        # PyTorch stores matrices transposed.
        "a": whole(first.weight.t()),
        "b": whole(second.weight.t()),
        "xa": whole(hidden),
        "hidden": whole(kept),
        "y": whole(y),
        "gradient": whole(x.grad),
        "sums": sums,
        "sent": book.sent,
    }


def linear(matrix: list[list[float]]) -> nn.Linear:
    """A layer with this matrix and no bias."""
    made = nn.Linear(len(matrix), len(matrix[0]))
    with torch.no_grad():
        made.weight.copy_(torch.tensor(matrix).t())
        made.bias.zero_()
    return made


def noted(sums: list[dict[str, Any]]) -> Any:
    """The library's all-reduce, which notes what this rank brings and what it gets."""
    add_up = tensor_parallel.all_reduce

    def all_reduce(part: Tensor, *, group: Any = None) -> None:
        before = whole(part)
        add_up(part, group=group)
        sums.append({"before": before, "after": whole(part)})

    return all_reduce


def whole(matrix: Tensor) -> list[list[int]]:
    """The numbers of a matrix, which are whole ones."""
    return [[int(number) for number in row] for row in matrix.tolist()]
