"""What training with master weights must give, computed by hand on one process.

The masters are those of a plain model in FP32. Before each step a copy of it is cast, the gradients of all
ranks are computed with that copy, summed in rank order, averaged, cast, and given to the masters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from book.reference import (
    Loss,
    add_up,
    assert_same_gradients,
    assert_same_values,
    backwards,
    ordered_mean,
    toy_loss,
    zeros_where_unused,
)
from book.toys import batch, error, optimizer_for


class Norm(nn.Module):
    """A layer norm in FP32 inside of a 16-bit model."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.float())
        return y.to(x.dtype)


def low_copy(model: nn.Module, dtype: torch.dtype, *, norms: bool = True) -> nn.Module:
    """A copy that computes in `dtype`, but for its layer norms if these stay."""
    low = copy.deepcopy(model)
    for owner in list(low.modules()):
        for name, child in list(owner.named_children()):
            if norms and isinstance(child, nn.LayerNorm):
                setattr(owner, name, Norm(child))
    kept = {p for module in low.modules() if isinstance(module, Norm) for p in module.parameters()}
    for parameter in low.parameters():
        if parameter not in kept:
            parameter.data = parameter.data.to(dtype)
    return low


def fill_masters(
    plain: nn.Module,
    rounds: Sequence[Sequence[int]],
    low: Callable[[nn.Module], nn.Module],
    *,
    loss: Loss = toy_loss,
    wire: torch.dtype | None = None,
    world_size: int | None = None,
    rows: int = 1,
) -> list[list[list[float]]]:
    """Fill `.grad` of the masters, one exchange a round; return all losses."""
    world_size = world_size or dist.get_world_size()
    model = low(plain)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    masters = [parameter for parameter in plain.parameters() if parameter.requires_grad]
    values = []
    for numbers in rounds:
        sums, found = zip(
            *[
                add_up(model, trainable, [partial(loss, model, rank, n) for n in numbers], wire)
                for rank in range(world_size)
            ],
            strict=True,
        )
        values.append(list(found))
        columns = world_size // rows
        for index, master in enumerate(masters):
            mine = zeros_where_unused([one[index] for one in sums], trainable[index])
            if not mine:
                continue
            sent = [one.to(wire or trainable[index].dtype) for one in mine]
            means = [ordered_mean(sent[row * columns : (row + 1) * columns]) for row in range(rows)]
            mean = ordered_mean(means).to(master.dtype)
            master.grad = mean if master.grad is None else master.grad + mean
    return values


def assert_masters_train_alike(
    plain: nn.Module,
    models: Sequence[nn.Module],
    low: Callable[[nn.Module], nn.Module],
    *,
    optimizer: str = "adamw",
    steps: int = 2,
    micro: int = 1,
    once: bool = True,
    **options: Any,
) -> None:
    """Sharded models have the losses, the gradients and at the end the values of the masters, bit for bit."""
    rank = dist.get_rank()
    optimizers = [optimizer_for(optimizer, model.parameters()) for model in (plain, *models)]
    for step in range(steps):
        numbers = range(step * micro, (step + 1) * micro)
        rounds = [list(numbers)] if once else [[number] for number in numbers]
        losses = fill_masters(plain, rounds, low, **options)
        for model in models:
            found = backwards(model, numbers, options.get("loss", toy_loss), once=once)
            assert found == [value for round_ in losses for value in round_[rank]]
            assert_same_gradients(model, plain)
        for each in optimizers:
            each.step()
            each.zero_grad()
    for model in models:
        assert_same_values(model, plain)


def plain_error(model: nn.Module, rank: int, number: int) -> float:
    """The loss of a batch, without gradients."""
    with torch.no_grad():
        return error(model, batch(rank, number)).item()
