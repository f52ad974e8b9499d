r"""# Clipping

> The norm of a gradient is one number for the whole model, however it is sharded.

One unusual batch can have a much larger gradient than others, and a step along it can
move the parameters to where the loss is higher. So the gradient is scaled down if its
norm is too large. Its direction stays.

A rank sees only its part of the gradient, and its norm is the norm of that part. If
each rank clipped by its own number, the parts would be scaled differently and the
direction would be lost, without any error. The squares add up, though. Each rank sums
its own and gathers the sums of all ranks, one number each. All of them then add the
same numbers in the same order, so every rank gets the same norm to the last bit.

$$\lVert g \rVert_p = \Bigl( \sum_r \sum_{i \in \mathrm{shard}_r} |g_i|^p \Bigr)^{1/p}$$

If one gradient is infinite or NaN, so is the norm, and then the finite gradients become
0. This matters where several optimizers share a model and [a scaler](sharded_scaler.py)
skips the step of one of them. The others then step as if their gradients were 0. With
NaN as the factor, all their weights would become NaN.

:notation $p$: `norm_type`, the order of the norm
:notation $r$: `rank`, the number of one rank
"""

# sidelit: hide
from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import reduce

import torch
from torch import Tensor, nn

from shardbook.foundations.collectives import all_gather, world
from shardbook.guards.optimizer_guard import refuse_waiting
from shardbook.parameters.flat import flat_of
from shardbook.training.step_in_backward import steps_in_backward
from shardbook.zero.conductor import conductor_of
from shardbook.zero.unit import Unit

__all__ = ["clip_grad_norm_", "clip_grad_value_"]
# sidelit: show


@torch.no_grad()
def clip_grad_norm_(
    model: nn.Module,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients so that their norm is at most `max_norm`.

    Collective: all ranks call it, between the backward pass and the optimizer's step.
    Works like `torch.nn.utils.clip_grad_norm_`, but takes the model, and a norm that is
    NaN makes no other gradient NaN.

    :param model: a model that was sharded
    :param max_norm: the largest norm that is left as it is
    :param norm_type: the order of the norm, positive; `inf` for the largest absolute
        value
    :param error_if_nonfinite: raise if the norm is infinite or not a number
    :param foreach: accepted as in PyTorch; it chooses kernels there and nothing here
    :returns: the norm before clipping, 0-dim, the same on every rank, in PyTorch's
        dtype: the narrowest that holds the values of all gradients, so FP32 for FP32
        gradients
    :raises RuntimeError: if the norm is not finite and `error_if_nonfinite` is set,
        which is so on every rank or on none; and on a rank whose gradients wait for
        their exchange or were used up [in the backward pass](step_in_backward.py)
    :raises Disagreement: on every rank, if one of them does not clip
    :raises ValueError: if the model is not sharded as a whole, or the order is not
        positive
    """
    norm = gradient_norm(model, float(norm_type))
    # The factor is computed from all digits, and the caller gets those of the
    # gradients.
    result = norm.to(dtype_of_all(model))
    if error_if_nonfinite:
        refuse_nonfinite(result, norm_type)
    limit(model, norm, max_norm)
    return result


@torch.no_grad()
def limit(model: nn.Module, norm: Tensor, max_norm: float) -> None:
    """Scale all gradients, whose norm is known, so that it is at most `max_norm`."""
    # As in PyTorch, the factor is at most 1, and it is always applied: to look first
    # whether it is 1 would make the host wait for the device.
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0).nan_to_num(nan=0.0)
    for gradient in gradients(model):
        gradient.mul_(factor.to(gradient.device, gradient.dtype))


def gradient_norm(model: nn.Module, order: float) -> Tensor:
    """The norm of the whole model's gradient.

    The terms are summed in FP64. So the result depends on how the model is sharded only
    in digits that FP32 does not have.
    """
    if not order > 0:
        raise ValueError(f"norm_type={order} is not a norm; choose a positive number")
    units = list(conductor_of(model).drivers)
    if not units:
        return torch.zeros((), dtype=torch.float64)
    total = sum_of_powers(model, order)
    # In stage 0 each rank has the whole gradient, and there is nothing to add.
    if units[0].stage:
        total = combine(order)(of_all_ranks(model, total.view(1), "clipping"))
    return total.pow(1 / exponent(order))


def sum_of_powers(model: nn.Module, order: float) -> Tensor:
    """This rank's own term: the sum of $|g_i|^p$ over its part of the gradient, 0-dim, FP64."""
    # A slice can be empty, and an empty vector has no largest element.
    found = [gradient for gradient in gradients(model, once=True) if gradient.numel()]
    units = list(conductor_of(model).drivers)
    zero = units[0].flats[0].full.new_zeros((), dtype=torch.float64)
    # The ranks exchange on the device, and [gradients may be on the host](offload.py).
    norms = [
        torch.linalg.vector_norm(gradient, order, dtype=torch.float64).to(zero.device)
        for gradient in found
    ]
    return combine(order)(torch.stack([zero, *norms]).pow(exponent(order)))


def combine(order: float) -> Callable[[Tensor], Tensor]:
    """What is done with the terms of the ranks: the largest norm has no sum."""
    return torch.max if math.isinf(order) else torch.sum


def exponent(order: float) -> float:
    """What each term is raised to."""
    return 1.0 if math.isinf(order) else order


def of_all_ranks(
    model: nn.Module, own: Tensor, kind: str, *, copies: bool = False
) -> Tensor:
    """The numbers of all ranks, on every rank. Collective.

    :param own: 1-D, as many numbers on every rank
    :param kind: what the ranks do, for the message if one of them does something else
    :param copies: on a mesh, also those of [other copies](groups.py)
    :returns: 1-D, the numbers of rank 0, then those of rank 1, and so on
    """
    units = list(conductor_of(model).drivers)
    groups = units[0].groups
    group = groups.everyone if copies else groups.shards
    found = own.new_empty(world(group)[1] * own.numel())
    # A rank that does not clip must not leave the others waiting.
    checked, first = units[0].order, units[0].sites[0].name
    checked.begin(kind)
    action = "compare" if copies else "gather"
    checked.before(action, "the norm of the gradients", first)
    # An all-reduce would not do for the largest value: between a number and NaN some
    # backends choose the number, and one rank's NaN would be lost.
    gathering = all_gather(found, own, group=group)
    checked.watch(gathering.works)
    gathering.wait()
    return found


def gradients(model: nn.Module, *, once: bool = False) -> Iterator[Tensor]:
    """This rank's parts of all gradients that there are.

    :param once: leave out what the first rank has, too. In stages 1 and 2 a parameter
        that [is trained only later](freezing.py) is whole on every rank, and so is its
        gradient.
    """
    refuse_unclippable(model)
    for unit in conductor_of(model).drivers:
        yield from gradients_of(unit, once=once)


def gradients_of(unit: Unit, *, once: bool = False) -> Iterator[Tensor]:
    """This rank's parts of the gradients of one unit."""
    for flat in unit.trainable:
        refuse_waiting(flat)
        if once and unit.stage and unit.rank and not flat.sliced:
            continue
        for parameter in flat.parameters:
            if parameter.grad is not None:
                yield parameter.grad


# sidelit: depth Limits for single elements, mixed dtypes, and models that cannot be clipped.


@torch.no_grad()
def clip_grad_value_(
    model: nn.Module, clip_value: float, foreach: bool | None = None
) -> None:
    """Limit each element of the gradients to the range from `-clip_value` to `clip_value`.

    Each element is limited by itself, so the ranks exchange nothing.

    :raises ValueError: if the model is not sharded as a whole
    :raises RuntimeError: if gradients wait for their exchange, or were used up
    """
    for gradient in gradients(model):
        gradient.clamp_(-clip_value, clip_value)


def dtype_of_all(model: nn.Module) -> torch.dtype:
    """The dtype that holds the values of all gradients; FP32 if there are none.

    A gradient is there on all ranks or on none, so this is the same on all of them.
    """
    dtypes = [gradient.dtype for gradient in gradients(model)]
    return reduce(torch.promote_types, dtypes) if dtypes else torch.float32


def refuse_unclippable(model: nn.Module) -> None:
    """Refuse a model whose gradients are used up already, or are not all means.

    :raises RuntimeError: if the model steps in its backward pass
    :raises ValueError: naming a parameter that is not sharded
    """
    if steps_in_backward(model):
        raise RuntimeError(
            "this model steps in its backward pass, so there are no gradients to clip; "
            "use an optimizer that steps afterwards"
        )
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and flat_of(parameter) is None:
            raise ValueError(
                f"{name} is not sharded, so its gradient is not the mean over the ranks; "
                "shard the whole model"
            )


def refuse_nonfinite(norm: Tensor, norm_type: float) -> None:
    """Refuse a norm that is infinite or NaN, for a caller that has asked for it.

    :raises RuntimeError: naming the norm
    """
    if not norm.isfinite():
        raise RuntimeError(
            f"the norm of order {norm_type} of the gradients is {norm.item()}; "
            "skip this step, or call without error_if_nonfinite"
        )
