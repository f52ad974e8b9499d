r"""# Gradient clipping

> The ranks combine the norms of their parts, so that all of them clip by the norm of the whole gradient.

One unusual batch can have a much larger gradient than others, and a step along it can
raise the loss. So *clipping* scales the gradient down if its norm is too large, and
keeps its direction.

A rank has only its part of the gradient. Suppose the parts on two ranks have the norms
3 and 4, and the limit is 1. If each rank divided by its own norm, the two parts would
be scaled by different factors, and the direction would be lost without an error. But
squares can be added: the norm of the whole gradient is $\sqrt{3^2 + 4^2} = 5$. So each
rank adds up its own squares, and gathers the sums of all ranks, one number each. Since
all ranks add the same numbers in the same order, every rank gets the same norm to the
last bit.

$$\lVert g \rVert_p = \Bigl( \sum_r \sum_{i \in \mathrm{shard}_r} |g_i|^p \Bigr)^{1/p}$$

If one gradient is infinite or NaN, so is the norm, and then clipping sets the finite
gradients to 0. This matters where several optimizers share a model and [a
scaler](loss_scaling.py#module/loss-scaling-over-ranks) skips the step of one of them.
The other optimizers then step with gradients of 0. If the factor were NaN, all their
weights would become NaN.

:notation $p$: `norm_type`, the order of the norm
:notation $r$: `rank`, the number of one rank
:notation $g$: the gradient of all parameters
:notation $g_i$: one element of it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import reduce

import torch
from torch import Tensor, nn

from shardbook.foundations.collectives import all_gather, world
from shardbook.training.accumulate import steps_in_backward
from shardbook.zero.flat import flat_of
from shardbook.zero.optimizer_guard import refuse_waiting
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import Unit

__all__ = ["clip_grad_norm_", "clip_grad_value_"]


@torch.no_grad()
def clip_grad_norm_(
    model: nn.Module,
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale all gradients so that their norm is at most `max_norm`.

    Collective: all ranks call this function, between the backward pass and the
    optimizer's step. It works like `torch.nn.utils.clip_grad_norm_`, with two
    differences: it takes the model, and a norm that is NaN makes no other gradient NaN.

    :param model: a model that was sharded
    :param max_norm: the largest norm that is not scaled down
    :param norm_type: the order of the norm, positive; `inf` for the largest absolute
        value
    :param error_if_nonfinite: whether an infinite norm or NaN raises an error
    :param foreach: accepted because PyTorch has it; without effect here
    :returns: the norm before clipping, 0-dim, the same on every rank, in the same dtype
        as PyTorch's: the narrowest that holds the values of all gradients, so FP32 for
        FP32 gradients
    :raises RuntimeError: on every rank, if the norm is not finite and
        `error_if_nonfinite` is set; on a rank whose gradients still wait for their
        exchange; or if the model [steps in its backward
        pass](accumulate.py#module/stepping-inside-the-backward-pass)
    :raises Disagreement: on every rank, if one rank does not clip
    :raises ValueError: if the model is not sharded as a whole, or the order is not
        positive
    """
    norm = gradient_norm(model, float(norm_type))
    # The factor is computed from the FP64 norm, but the caller gets the norm in the
    # dtype of the gradients.
    result = norm.to(dtype_of_all(model))
    if error_if_nonfinite:
        refuse_nonfinite(result, norm_type)
    limit(model, norm, max_norm)
    return result


def limit(model: nn.Module, norm: Tensor, max_norm: float) -> None:
    """Scale all gradients so that their norm, now `norm`, is at most `max_norm`."""
    # As in PyTorch, the factor is at most 1, and the multiplication always takes place.
    # A test whether the factor is 1 would make the host wait for the device.
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0).nan_to_num(nan=0.0)
    for gradient in gradients(model):
        gradient.mul_(factor.to(gradient.device, gradient.dtype))


def gradient_norm(model: nn.Module, order: float) -> Tensor:
    """Compute the norm of the whole model's gradient.

    The terms are summed in FP64. So another number of ranks changes only digits that
    FP32 does not have.
    """
    if not order > 0:
        raise ValueError(f"norm_type={order} is not a norm; choose a positive number")
    units = list(scheduler_of(model).units)
    if not units:
        return torch.zeros((), dtype=torch.float64)
    total = sum_of_powers(model, order)
    # In stage 0 each rank has the whole gradient, so no exchange is needed.
    if units[0].stage:
        total = combine(order)(of_all_ranks(model, total.view(1), "clipping"))
    return total.pow(1 / exponent(order))


def sum_of_powers(model: nn.Module, order: float) -> Tensor:
    """Compute this rank's term: the sum of $|g_i|^p$ over its part of the gradient,
    0-dim, FP64.
    """
    # A slice can be empty, and an empty vector has no largest element.
    found = [gradient for gradient in gradients(model, once=True) if gradient.numel()]
    units = list(scheduler_of(model).units)
    zero = units[0].flats[0].full.new_zeros((), dtype=torch.float64)
    # The ranks exchange on the device, and [gradients may be on the host](offload.py).
    norms = [
        torch.linalg.vector_norm(gradient, order, dtype=torch.float64).to(zero.device)
        for gradient in found
    ]
    return combine(order)(torch.stack([zero, *norms]).pow(exponent(order)))


def combine(order: float) -> Callable[[Tensor], Tensor]:
    """How the terms of the ranks are combined: by their sum, or by their maximum for
    the norm of order `inf`.
    """
    return torch.max if math.isinf(order) else torch.sum


def exponent(order: float) -> float:
    """The power to which each term is raised."""
    return 1.0 if math.isinf(order) else order


def of_all_ranks(
    model: nn.Module, own: Tensor, kind: str, *, copies: bool = False
) -> Tensor:
    """Gather numbers from all ranks, on every rank. Collective.

    :param own: 1-D, this rank's numbers, equally many on every rank
    :param kind: the action of the ranks, for the error if one of them does something
        else
    :param copies: on a mesh, whether the numbers of [other
        replicas](collectives.py#module/ranks-that-share-a-model) are gathered, too
    :returns: 1-D, the numbers of rank 0, then those of rank 1, and so on
    """
    units = list(scheduler_of(model).units)
    groups = units[0].groups
    group = groups.everyone if copies else groups.shards
    found = own.new_empty(world(group)[1] * own.numel())
    # A rank that does not clip must not leave the others waiting.
    checked, first = units[0].order, units[0].sites[0].name
    checked.begin(kind)
    action = "compare" if copies else "gather"
    checked.before(action, "the norm of the gradients", first)
    # An all-reduce would be wrong for the largest value: between a number and NaN some
    # backends choose the number, so the NaN of one rank would be lost.
    gathering = all_gather(found, own, group=group)
    checked.watch(gathering.works)
    gathering.wait()
    return found


def gradients(model: nn.Module, *, once: bool = False) -> Iterator[Tensor]:
    """This rank's parts of all existing gradients.

    :param once: whether a gradient that every rank has whole is left out on all ranks
        but the first. In stages 1 and 2 such a gradient belongs to a parameter that
        [was frozen at first](flat.py).
    """
    refuse_unclippable(model)
    for unit in scheduler_of(model).units:
        yield from gradients_of(unit, once=once)


def gradients_of(unit: Unit, *, once: bool) -> Iterator[Tensor]:
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

    Each element is limited separately, so the ranks need no exchange.

    :raises ValueError: if the model is not sharded as a whole
    :raises RuntimeError: if gradients still wait for their exchange, or the model steps
        in its backward pass
    """
    for gradient in gradients(model):
        gradient.clamp_(-clip_value, clip_value)


def dtype_of_all(model: nn.Module) -> torch.dtype:
    """The dtype that holds the values of all gradients; FP32 if there are none.

    A gradient exists on all ranks or on none, so all ranks get the same dtype.
    """
    dtypes = [gradient.dtype for gradient in gradients(model)]
    return reduce(torch.promote_types, dtypes) if dtypes else torch.float32


def refuse_unclippable(model: nn.Module) -> None:
    """Refuse a model whose gradients are gone already, or are not all means over the
    ranks.

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
    """Refuse a norm that is infinite or NaN, if the caller has set
    `error_if_nonfinite`.

    :raises RuntimeError: naming the norm
    """
    if not norm.isfinite():
        raise RuntimeError(
            f"the norm of order {norm_type} of the gradients is {norm.item()}; "
            "skip this step, or call without error_if_nonfinite"
        )
