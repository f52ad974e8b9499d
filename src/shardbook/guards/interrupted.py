r"""# Passes that did not end

> After an interrupted pass the gradients of the model can still be dropped, and unfinished ones are not used.

While a unit computes, [its modules name the whole parameters](unit.py#Unit.show). If an
exception ends the pass, they may still do so when the program goes on:

```python
try:
    model(batch).sum().backward()
except KeyboardInterrupt:
    model.zero_grad()
```

Gradients belong to the model's own parameters. Here `zero_grad` would find the whole
ones, which have no gradients, and would drop nothing. The next step would add its
gradients to the old ones, and no error would be raised.

How a pass that fails is noticed depends on the pass and on the exception:

| pass | exception | noticed by |
|---|---|---|
| forward | an error | [the hook after the forward pass](hooks.py), which runs all the same |
| forward | an interrupt from the keyboard | nobody, until the next forward pass |
| backward | any | [the callback of its end](#Ending), which is dropped without a call |

When it is noticed, the modules name the model's own parameters again. In the second row
they cannot, so there `zero_grad` itself reaches the model's own.

The gradients that a backward pass has collected before it failed are incomplete. They
are dropped before [the next forward pass](fresh_start.py#recover), or before
the next backward pass if that comes first. Until then no optimizer may step, and no
norm is taken of them.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

from shardbook.foundations.torch_private import own_parameters
from shardbook.parameters.flat import Flat
from shardbook.parameters.parameter_sites import Site

__all__ = ["Ending", "let_zero_grad_reach", "only_failed", "refuse_interrupted"]
# sidelit: show


class Ending:
    """What autograd calls at the end of a backward pass. If the pass fails, autograd
    drops it without a call, on a CPU before the exception arrives at the program.

    :param conductor: [who conducts the pass](conductor.py#Conductor)
    :param task: the number of the pass
    """

    def __init__(self, conductor: Any, task: int) -> None:
        self.conductor = conductor
        self.task = task

    def __call__(self) -> None:
        self.conductor.backward_ended(self.task)

    def __del__(self) -> None:
        if self.task in self.conductor.passes:
            give_up(self.conductor, self.task)


def give_up(conductor: Any, task: int) -> None:
    """Note that a backward pass has failed, and let the modules of the units that it has
    reached name the model's own parameters.

    Nothing is waited for and no memory is given back, because an exchange that has no
    partner would never end. If such a unit's forward pass is around the backward pass,
    it goes on computing.
    """
    conductor.failed.add(task)
    for driver in conductor.passes[task]:
        computes = driver.in_backward is None and driver.uses.under_way()
        if not driver.unit.held and not computes:
            driver.unit.show(False)


def only_failed(conductor: Any) -> bool:
    """Whether there are failed backward passes that nobody has cleared away, and no others."""
    return bool(conductor.passes) and conductor.failed >= conductor.passes.keys()


def refuse_interrupted(flat: Flat) -> None:
    """Stop whoever would use gradients in the middle of a pass, or after one that failed.

    :raises RuntimeError: naming the first parameter
    """
    driver = flat.driver()
    if driver is None:
        return
    conductor = driver.conductor
    if driver.unit.shown or conductor.failed & conductor.passes.keys():
        raise RuntimeError(
            f"{flat.layout.slots[0].names[0]} is in the middle of a forward or "
            "backward pass that did not end, or of a block of whole(model); call the "
            "model once more, or leave the block, before its gradients are used"
        )


def let_zero_grad_reach(model: nn.Module, units: Iterable[Any]) -> None:
    """Let `zero_grad` of a model and of its parts reach the model's own parameters, also
    while the modules name the whole ones.
    """
    sites = [site for unit in units for site in unit.sites]
    for module in model.modules():
        vars(module)["zero_grad"] = zero_grad_of(module, sites)


def zero_grad_of(module: nn.Module, sites: Sequence[Site]) -> Callable[..., None]:
    """The method in its new form."""

    def zero_grad(*args: Any, **kwargs: Any) -> None:
        type(module).zero_grad(module, *args, **kwargs)
        inside = set(module.modules())
        others = [
            site.parameter
            for site in sites
            if site.module in inside
            and own_parameters(site.module).get(site.attribute) is not site.parameter
        ]
        nn.ParameterList(others).zero_grad(*args, **kwargs)

    return zero_grad
