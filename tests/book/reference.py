"""What the gradients of a step must be, computed on one process by a plain model and in a stated order.

It goes further than `toys.reference_step`: micro-batches that are added up before an exchange, ranks in rows
and columns, and a dtype on the wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from book.toys import (
    assert_equal,
    batch,
    error,
    optimizer_for,
    plain_gradients,
    reference_step,
    whole_gradients,
)

if TYPE_CHECKING:
    from shardbook.foundations.collectives import Ledger

Losses = Sequence[Callable[[], Tensor]]
STAGES = (0, 1, 2, 3)


def fill_gradients(
    model: nn.Module, rounds: Sequence[Sequence[Losses]], *, rows: int = 1, dtype: torch.dtype | None = None
) -> list[list[list[float]]]:
    """Fill `.grad` of a plain model as the ranks would have done together; return all losses.

    A round ends with an exchange. In each, every rank has the losses of its micro-batches, whose gradients it
    adds up first. The ranks stand in `rows` rows. The sum runs along each row in rank order and is divided,
    and then down each column. Whatever is sent is sent in `dtype`.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    values: list[list[list[float]]] = []
    totals: list[Tensor | None] = [None] * len(trainable)
    for ranks_of_round in rounds:
        sums, found = zip(
            *[add_up(model, trainable, losses, dtype) for losses in ranks_of_round], strict=True
        )
        values.append(list(found))
        columns = len(sums) // rows
        for index, parameter in enumerate(trainable):
            mine = zeros_where_unused([one[index] for one in sums], parameter)
            # What no rank has used keeps the gradient that it had.
            if not mine:
                continue
            wire = [one.to(dtype or parameter.dtype) for one in mine]
            means = [ordered_mean(wire[row * columns : (row + 1) * columns]) for row in range(rows)]
            mean = ordered_mean(means).to(parameter.dtype)
            total = totals[index]
            totals[index] = mean if total is None else total + mean
    for parameter, total in zip(trainable, totals, strict=True):
        parameter.grad = total
    return values


def add_up(
    model: nn.Module, trainable: Sequence[nn.Parameter], losses: Losses, dtype: torch.dtype | None
) -> tuple[list[Tensor | None], list[float]]:
    """One rank's gradients, summed over its micro-batches in the wider of two dtypes and at least in FP32,
    `None` for what it has not used, and its losses.
    """
    values: list[float] = []
    sums: list[Tensor | None] = [None] * len(trainable)
    for compute in losses:
        model.zero_grad()
        loss = compute()
        loss.backward()
        values.append(loss.item())
        for index, parameter in enumerate(trainable):
            if parameter.grad is not None:
                wide = torch.promote_types(parameter.dtype, dtype or torch.float32)
                wide = torch.promote_types(wide, torch.float32)
                gradient, before = parameter.grad.to(wide, copy=True), sums[index]
                sums[index] = gradient if before is None else before + gradient
    model.zero_grad()
    return sums, values


def zeros_where_unused(gradients: Sequence[Tensor | None], parameter: Tensor) -> list[Tensor]:
    """All ranks' gradients of a parameter: zero where a rank has not used it, none at all if no rank has."""
    if all(gradient is None for gradient in gradients):
        return []
    return [torch.zeros_like(parameter) if gradient is None else gradient for gradient in gradients]


def ordered_mean(tensors: Sequence[Tensor]) -> Tensor:
    """The sum in order, at least in fp32, then divided, then as narrow as before."""
    dtype = tensors[0].dtype
    total = tensors[0].to(torch.promote_types(dtype, torch.float32), copy=True)
    for tensor in tensors[1:]:
        total = total + tensor
    return (total / len(tensors)).to(dtype)


Loss = Callable[[nn.Module, int, int], Tensor]


def toy_loss(model: nn.Module, rank: int, number: int) -> Tensor:
    """What a rank computes for the micro-batch with this number."""
    return error(model, batch(rank, number))


def all_losses(
    model: nn.Module, numbers: Sequence[int], loss: Loss = toy_loss, members: Sequence[int] | None = None
) -> list[Losses]:
    """For each rank, the losses of its micro-batches with these numbers."""
    members = range(dist.get_world_size()) if members is None else members
    return [[partial(loss, model, rank, number) for number in numbers] for rank in members]


def backwards(
    model: nn.Module, numbers: Sequence[int], loss: Loss = toy_loss, *, once: bool = True
) -> list[float]:
    """This rank's backward passes of some micro-batches, exchanged once at the end or each by itself."""
    from shardbook import no_sync

    values = []
    for number in numbers:
        with no_sync(model) if once and number != numbers[-1] else nullcontext():
            value = loss(model, dist.get_rank(), number)
            value.backward()
            values.append(value.item())
    return values


def assert_train_alike(
    plain: nn.Module,
    models: Sequence[nn.Module],
    *,
    loss: Loss = toy_loss,
    optimizer: str = "adamw",
    steps: int = 2,
    micro: int = 1,
    once: bool = True,
    members: Sequence[int] | None = None,
    rows: int = 1,
    dtype: torch.dtype | None = None,
) -> None:
    """Sharded models have the losses, the gradients and at the end the values of the reference, bit for bit.

    :param micro: the micro-batches of a step, which are exchanged `once` or each by itself
    :param members: the ranks that train together, all by default; they stand in `rows` rows
    """
    members = range(dist.get_world_size()) if members is None else members
    place = members.index(dist.get_rank())
    optimizers = [optimizer_for(optimizer, model.parameters()) for model in (plain, *models)]
    for step in range(steps):
        numbers = range(step * micro, (step + 1) * micro)
        rounds = [numbers] if once else [[number] for number in numbers]
        losses = fill_gradients(
            plain,
            [all_losses(plain, round_, loss, members) for round_ in rounds],
            rows=rows,
            dtype=dtype,
        )
        for model in models:
            found = backwards(model, numbers, loss, once=once)
            assert found == [value for round_ in losses for value in round_[place]]
            assert_same_gradients(model, plain)
        for each in optimizers:
            each.step()
            each.zero_grad()
    for model in models:
        assert_same_values(model, plain)


def compare(
    build: Callable[[], nn.Module],
    loss: Callable[[nn.Module, int], Tensor],
    *,
    backward: Callable[[Tensor], None] = Tensor.backward,
    units: Any = None,
) -> nn.Module:
    """One step of a sharded model has the gradients of the reference; returns the sharded model."""
    from shardbook import shard

    plain, sharded = build(), shard(build(), units=units)
    reference_step(plain, [[partial(loss, plain, rank) for rank in range(dist.get_world_size())]])
    backward(loss(sharded, dist.get_rank()))
    assert without_gradient(sharded) == without_gradient(plain)
    assert_equal(whole_gradients(sharded), plain_gradients(plain))
    assert_all_sharded(sharded)
    return sharded


def assert_all_sharded(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        assert parameter.dim() == 1, f"{name} is still whole"


def assert_same_gradients(sharded: nn.Module, plain: nn.Module) -> None:
    """Bit for bit, and missing for the same parameters; collective."""
    assert without_gradient(sharded) == without_gradient(plain)
    expected = plain_gradients(plain)
    found = whole_gradients(sharded)
    assert_equal({name: found[name] for name in found if name in expected}, expected)


def without_gradient(model: nn.Module) -> list[str]:
    """The parameters whose gradient is `None`."""
    return [name for name, parameter in model.named_parameters() if parameter.grad is None]


def assert_same_values(sharded: nn.Module, plain: nn.Module) -> None:
    """Bit for bit, keys included; collective."""
    assert_equal(dict(sharded.state_dict()), dict(plain.state_dict()))


def second_step(model: nn.Module, optimizer: str) -> Ledger:
    """What this rank sends and moves in a step, after one in which the order of the units was recorded."""
    from shardbook.foundations.collectives import ledger

    stepping = optimizer_for(optimizer, model.parameters())
    for number in range(2):
        with ledger() as book:
            toy_loss(model, dist.get_rank(), number).backward()
            stepping.step()
            stepping.zero_grad()
    return book


def storages(tensors: Any) -> int:
    """The bytes of all storages under some tensors, each counted once."""
    return sum({t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}.values())


def compared_bytes(model: nn.Module) -> int:
    """What a rank sends to find out which parameters any rank has used."""
    from shardbook.zero.scheduler import scheduler_of

    scheduler = scheduler_of(model)
    size = dist.get_world_size(scheduler.order.group)
    units = list(scheduler.units)
    everything = units[0].stage == 0
    numbers = 2 * everything + sum(
        len(flat.layout.slots) for unit in units for flat in unit.flats if everything or flat.layout.trainable
    )
    padded = -(-numbers // (2 * size)) * 2 * size
    return 2 * (size - 1) * 4 * padded // size


def padded_bytes(model: nn.Module, *, trainable: bool | None = None) -> int:
    """The bytes of all flat vectors of a sharded model, each with its padding."""
    from shardbook.zero.scheduler import scheduler_of

    return sum(
        flat.layout.padded * flat.layout.dtype.itemsize
        for unit in scheduler_of(model).units
        for flat in unit.flats
        if trainable is None or flat.layout.trainable == trainable
    )
