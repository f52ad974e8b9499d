r"""# Stepping inside the backward pass

> Each unit has its own optimizer, which steps as soon as the unit's mean gradient arrives and then frees it.

When a backward pass in stage 2 or 3 has ended, a rank holds its part of all mean
gradients, $4\,\Psi/N_d$ bytes in FP32. The optimizer reads each of them once. An
elementwise optimizer, such as AdamW, needs no other parameter to update one of them. So
each unit can have an optimizer of its own, which steps as soon as the unit's mean
gradient has arrived, and then frees this gradient:

```python
model = shard(GPT(config))
step_in_backward(model, lambda parameters: torch.optim.AdamW(parameters, lr=3e-4))
for batch in batches:
    model(batch).backward()
```

So at no time does a rank hold more than one unit's part of the mean gradient, $4\,S_u$
bytes. The optimizer's temporaries shrink as well: an optimizer that updates all its
parameters at once allocates temporaries for all of them, and here these belong to a
single unit. The order of the steps does not matter for such an optimizer, so the
parameters are the same, bit for bit.

In stages 0 and 1 a rank collects the whole gradients of all units until the backward
pass ends, so stepping early saves little there.

A gradient must be final when it arrives. So anything that needs all gradients before
the step is impossible here: clipping by the global norm is refused, and no scaler can
skip the step. For the same reason the loss may not be [scaled](loss_scaling.py), since
the gradients could not be divided before the step. [Micro-batches](accumulate.py) have
to be added up under `no_sync`, because a step follows each exchange.

:notation $N_d$: `world_size`, the number of ranks
:notation $\Psi$: `numel`, the number of parameters of the model
:notation $S_u$: `shard_numel`, the length of one rank's part of unit $u$
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shardbook.zero.conductor import conductor_of
from shardbook.zero.unit import Unit

__all__ = [
    "refuse_late",
    "refuse_to_scale",
    "step_in_backward",
    "steps_in_backward",
]

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
    conductor = conductor_of(model)
    if steps_in_backward(model):
        raise ValueError(
            f"this {type(model).__name__} steps in its backward pass already; "
            "call step_in_backward once"
        )
    register_refusal()
    steppers = []
    for unit in conductor.drivers:
        parameters = [
            parameter for flat in unit.trainable for parameter in flat.parameters
        ]
        if parameters:
            steppers.append(Stepper(make_optimizer(parameters)))
            unit.after_reduce.append(steppers[-1])
            # Autograd's graph ends in the whole parameters, where `refuse_to_scale`
            # finds the mark.
            for whole in (whole for flat in unit.trainable for whole in flat.whole):
                setattr(whole, _STEPS_WITH, steppers[-1].optimizer)
    return tuple(stepper.optimizer for stepper in steppers)


def steps_in_backward(model: nn.Module) -> bool:
    """Whether a model steps in its backward pass, so that its gradients are gone when
    `backward` returns.
    """
    return any(
        isinstance(act, Stepper)
        for unit in conductor_of(model).drivers
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
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                setattr(parameter, _STEPS_WITH, optimizer)

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
