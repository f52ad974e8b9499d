r"""# Gradient accumulation and other training loops

> A step may add up several batches, a rank may run out of batches, and an optimizer may
> step inside the backward pass.

In each step of the usual training loop a rank runs one batch, the ranks exchange the
gradients, and the optimizer steps. Three functions change this loop:

| if | use |
|---|---|
| a batch is cut into micro-batches | [`no_sync`](#no_sync) |
| ranks have unequal numbers of batches | [`join`](#module/unequal-numbers-of-batches-on) |
| gradients take too much memory | [`step_in_backward`](#module/stepping-inside-the-backward-pass) |

If a batch does not fit into memory, you can cut it into micro-batches, and add up their
gradients before the optimizer steps. By default each backward pass exchanges its own
gradients, and the mean is [added](flat.py#Flat.accumulate) to the
mean of the earlier micro-batches. So 4 micro-batches send 4 times the gradients of one
step. Alternatively, each rank first adds up its own gradients, and the ranks exchange
the sum once:

```python
count = len(micro_batches)
for inputs, targets in micro_batches[:-1]:
    with no_sync(model):
        (loss_fn(model(inputs), targets) / count).backward()
inputs, targets = micro_batches[-1]
(loss_fn(model(inputs), targets) / count).backward()
optimizer.step()
```

Each loss is divided by the number of micro-batches. Most losses are means over their
batch, so the gradients of 4 micro-batches add up to 4 times the gradient of the whole
batch. If the micro-batches differ in size, weight each loss by its share of the batch
instead.

A gradient that is not exchanged yet is whole: a unit needs $4\,\Psi_u$ bytes for it
instead of $4\,\Psi_u/N_d$. Under a [16-bit policy](policy.py) the number is the same,
because waiting gradients are added up in FP32: in BF16 [a sum of ones stops at
256](rounding.py).

Under `no_sync` stages 1 and 2 gather the parameters once, for the first micro-batch,
since no optimizer may step while gradients wait. These stages gather again only if the
program [changes the parameters](scheduler.py#expire) in another way, which has to happen
on all ranks. [How often a unit is gathered](unit.py#module/how-often-a-unit-is) without
`no_sync`, in stage 3 and in a pipeline stands in one table.

`no_sync` also changes the order of the additions. `DistributedDataParallel` under its
own `no_sync` adds up first and averages once, as this block does. So on two ranks the
results of both are equal bit for bit. With an exchange for each micro-batch the last
bits may differ.

:notation $N_d$: `world_size`, the number of ranks that share the unit
:notation $\Psi_u$: `numel`, the number of parameters of the unit
:notation $g_r$: the gradient of rank $r$
:notation $\Psi$: `numel`, the number of parameters of the model
:notation $S_u$: `shard_numel`, the length of one rank's part of unit $u$
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shardbook.foundations.collectives import all_reduce, world
from shardbook.zero.scheduler import scheduler_of
from shardbook.zero.unit import Unit

__all__ = [
    "join",
    "no_sync",
    "refuse_late",
    "refuse_to_scale",
    "step_in_backward",
    "steps_in_backward",
]


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """A block in which backward passes keep their whole gradients on this rank.

    The next backward pass outside the block adds its own gradients and exchanges the
    sum. An optimizer that steps before this exchange is
    [refused](optimizer_guard.py#before_step). As in an unsharded program,
    [`zero_grad`](flat.py#Flat.watch) drops the sum. If the program
    changes a waiting gradient in any other way, the exchange [refuses it](waiting.py)
    with a RuntimeError on every rank. Either all ranks enter the block or none.

    :param model: the whole sharded model, because its units exchange together
    :raises ValueError: if the model is not sharded, or is only a part of a sharded one
    """
    scheduler = scheduler_of(model)
    before, scheduler.syncing = scheduler.syncing, False
    try:
        yield
    finally:
        scheduler.syncing = before


# ## Unequal numbers of batches on the ranks
#
# > A rank without further batches repeats its last one with weight zero, until all ranks have finished.
#
# All ranks run each forward and backward pass of a sharded model together. If rank 0
# has three batches and rank 1 has two, rank 0 would
# [wait](watchdog.py#module/a-rank-that-leaves) in its third step for a rank that never
# comes. Either rank 0 leaves out its last batch, or rank 1 takes part in the third step
# without a batch of its own. `join` offers both, in the training loop itself:
#
# ```python
# for batch, weight in join(batches):
#     loss = weight * loss_fn(model(batch))
#     loss.backward()
#     clip_grad_norm_(model, 1.0)
#     optimizer.step()
#     optimizer.zero_grad()
# ```
#
# | | step 1 | step 2 | step 3 |
# |---|---|---|---|
# | rank 0 | batch 1, weight 1 | batch 2, weight 1 | batch 3, weight 1 |
# | rank 1 | batch 1, weight 1 | batch 2, weight 1 | batch 2, weight 0 |
#
# Before each step the ranks count how many of them still have a batch, by an all-reduce
# of one number of eight bytes. A rank without a batch repeats its last one, so it makes
# the same exchanges as the others, clips by the same norm, and steps its optimizer. Its
# loss has weight zero, so its gradient is zero. In step 3 above the mean gradient is
#
# $$\frac{1}{N_d}\,(g_0 + 0 \cdot g_1)$$
#
# PyTorch's `Join` with `DistributedDataParallel` also divides by all ranks. With
# `divide_by_initial_world_size=False` both divide by the number of ranks that have a
# batch, and the mean is larger.
#
# PyTorch's `Join` is a context around the loop: a rank that has left the loop repeats the
# exchanges of the others inside the context. In this way only exchanges can be repeated.
# But a sharded rank also has to clip, to change its learning rate, and to step the
# optimizer for its own slices. So here all ranks run the loop to its end.
#
# A repeated batch still has three effects. It counts in the running statistics of a batch
# norm on its rank. A parameter that only this batch uses gets a gradient of zero instead
# of none. And zero times an infinite loss is NaN.


# sidelit: hide
B = TypeVar("B")
# sidelit: show


def join(
    batches: Iterable[B],
    *,
    group: Any = None,
    divide_by_initial_world_size: bool = True,
    shortest: bool = False,
) -> Iterator[tuple[B, float]]:
    """Iterate over unequal numbers of batches on all ranks together.

    All ranks run the loop to its end. If a program leaves the loop by `break`, all
    ranks have to do so in the same step.

    :param batches: the batches of this rank, such as a `DataLoader`
    :param group: the ranks that share the model; `None` means all
    :param divide_by_initial_world_size: `True` averages the gradients over all ranks,
        so a rank without a batch counts as a gradient of zero; `False` averages over
        the ranks that have a batch
    :param shortest: whether the loop ends as soon as one rank has no more batches; the
        remaining batches of the others are left out
    :returns: in each step a batch and the factor for its loss
    :raises ValueError: on every rank, if some ranks have batches and others have none
        at all
    :raises RuntimeError: if there is no process group
    """
    _, world_size = world(group)
    remaining, nothing = iter(batches), object()
    last: Any = nothing
    while True:
        batch = next(remaining, nothing)
        active = count(batch is not nothing, group)
        if not active or (shortest and active < world_size):
            return
        if last is nothing and active < world_size:
            raise ValueError(
                f"{world_size - active} of {world_size} ranks have no batch at all, so "
                "they have none to repeat; give each rank at least one"
            )
        weight = 1.0 if divide_by_initial_world_size else world_size / active
        last = last if batch is nothing else batch
        yield last, 0.0 if batch is nothing else weight


def count(here: bool, group: Any) -> int:
    """Count the ranks on which a condition holds."""
    number = torch.tensor([int(here)], device=device_of(group))
    all_reduce(number, group=group)
    return int(number.item())


def device_of(group: Any) -> torch.device:
    """A device whose tensors the backend of a group can exchange."""
    kinds = [pair.split(":")[0] for pair in dist.get_backend_config(group).split(",")]
    return torch.device("cpu" if "cpu" in kinds else kinds[0])


# ## Stepping inside the backward pass
#
# > Each unit has its own optimizer, which steps as soon as the unit's mean gradient
# > arrives and then frees it.
#
# When a backward pass in stage 2 or 3 has ended, a rank holds its part of all mean
# gradients, $4\,\Psi/N_d$ bytes in FP32. The optimizer reads each of them once. An
# elementwise optimizer, such as AdamW, needs no other parameter to update one of them. So
# each unit can have an optimizer of its own, which steps as soon as the unit's mean
# gradient has arrived, and then frees this gradient:
#
# ```python
# model = shard(GPT(config))
# step_in_backward(model, lambda parameters: torch.optim.AdamW(parameters, lr=3e-4))
# for batch in batches:
#     model(batch).backward()
# ```
#
# So at no time does a rank hold more than one unit's part of the mean gradient, $4\,S_u$
# bytes. The optimizer's temporaries shrink as well: an optimizer that updates all its
# parameters at once allocates temporaries for all of them, and here these belong to a
# single unit. The order of the steps does not matter for such an optimizer, so the
# parameters are the same, bit for bit.
#
# In stages 0 and 1 a rank collects the whole gradients of all units until the backward
# pass ends, so stepping early saves little there.
#
# A gradient must be final when it arrives. So anything that needs all gradients before
# the step is impossible here: clipping by the global norm is refused, and no scaler can
# skip the step. For the same reason the loss may not be [scaled](loss_scaling.py), since
# the gradients could not be divided before the step. [Micro-batches](accumulate.py) have
# to be added up under `no_sync`, because a step follows each exchange.


# sidelit: hide
MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]
# sidelit: show


def step_in_backward(
    model: nn.Module, make_optimizer: MakeOptimizer
) -> tuple[Optimizer, ...]:
    """Give each unit an optimizer that steps during the backward pass.

    :param model: a model that was sharded, at any stage
    :param make_optimizer: a function that makes an optimizer for the parameters of one
        unit
    :returns: the optimizers, in the order of the units, so that you can change their
        learning rate or save their state
    :raises ValueError: if the model is not sharded, or steps in its backward pass
        already
    """
    scheduler = scheduler_of(model)
    if steps_in_backward(model):
        raise ValueError(
            f"this {type(model).__name__} steps in its backward pass already; "
            "call step_in_backward once"
        )
    register_refusal()
    steppers = []
    for unit in scheduler.units:
        parameters = [
            parameter for flat in unit.trainable for parameter in flat.parameters
        ]
        if parameters:
            steppers.append(Stepper(make_optimizer(parameters)))
            unit.after_reduce.append(steppers[-1])
            # Autograd's graph ends in the whole parameters, where `refuse_to_scale`
            # finds the mark. The model's own have [the same
            # attributes](whole_parameter.py#match).
            for whole in (whole for flat in unit.trainable for whole in flat.whole):
                setattr(whole, _STEPS_WITH, steppers[-1].optimizer)
    return tuple(stepper.optimizer for stepper in steppers)


def steps_in_backward(model: nn.Module) -> bool:
    """Whether a model steps in its backward pass, so that its gradients are gone when
    `backward` returns.
    """
    return any(
        isinstance(act, Stepper)
        for unit in scheduler_of(model).units
        for act in unit.after_reduce
    )


class Stepper:
    """The optimizer of one unit, called each time the unit's mean gradient has arrived.

    By then the unit's own backward pass has ended, and the unit is freed. A second
    backward pass through the same graph would mix activations from before the step with
    parameters from after it, so it [is refused](hooks.py#Hooks.before_backward).
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer

    def __call__(self, unit: Unit) -> None:
        """Step, and drop the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad()


_STEPS_WITH = "_shardbook_steps_with"


# sidelit: depth A second optimizer after the backward pass, and scaled losses.


@cache
def register_refusal() -> None:
    """Register a check of every optimizer before its step. One hook serves all models."""
    register_optimizer_step_pre_hook(refuse_second_optimizer)


def refuse_second_optimizer(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    """Refuse an optimizer that steps after the backward pass. It would find no
    gradients and silently do nothing, although the program may rely on it to apply the
    sum of several micro-batches.

    :raises RuntimeError: naming the optimizer
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if getattr(parameter, _STEPS_WITH, optimizer) is not optimizer:
                raise RuntimeError(
                    f"this {type(optimizer).__name__} comes too late, the parameters "
                    "step in the backward pass; remove it, and accumulate under no_sync()"
                )


def refuse_to_scale(loss: Tensor) -> None:
    """Refuse to [scale a loss](loss_scaling.py) whose backward pass contains optimizer
    steps.

    The inside of a [reentrant checkpoint](reentrant.py) is not in autograd's graph, so
    parameters there are not found.

    :raises RuntimeError: if the loss depends on such parameters; at this point no
        parameter has moved yet
    """
    # If no model of the process steps in its backward pass, the search through the
    # graph is skipped.
    if not register_refusal.cache_info().currsize:
        return
    nodes: list[Any] = [loss.grad_fn]
    seen: set[Any] = {None}
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            if hasattr(getattr(node, "variable", None), _STEPS_WITH):
                raise RuntimeError(NEVER_SCALED)
            nodes.extend(before for before, _ in node.next_functions)


def refuse_late(optimizer: Optimizer) -> None:
    """Refuse to divide an optimizer's gradients after they were used.

    :raises RuntimeError: if its parameters step in the backward pass
    """
    for group in optimizer.param_groups:
        if any(hasattr(parameter, _STEPS_WITH) for parameter in group["params"]):
            raise RuntimeError(NEVER_SCALED)


NEVER_SCALED = (
    "this model steps in its backward pass, before a scaler can divide its gradients; "
    "train it without a scaler, or with an optimizer that steps afterwards"
)
