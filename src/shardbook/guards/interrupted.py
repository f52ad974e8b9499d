r"""# Interrupted forward and backward passes

> After an interrupted pass, `zero_grad` still works and no optimizer uses the unfinished gradients.

While a unit computes, [the attributes of its modules are the whole
parameters](unit.py#Unit.show). If an exception ends the pass, they may still be so when
the program continues:

```python
try:
    model(batch).sum().backward()
except KeyboardInterrupt:
    model.zero_grad()
```

The gradients belong to the model's own parameters, the slices. But here `zero_grad`
would find the whole parameters, which have no gradients, and would reset nothing. The
next step would add its gradients to the old ones, without an error.

How the library detects a failed pass depends on the pass and on the exception:

| pass | exception | detected by |
|---|---|---|
| forward | an error | [the hook after the forward pass](hooks.py), which runs even then |
| forward | an interrupt from the keyboard | nothing, until the next forward pass |
| backward | any | [the callback of its end](#Ending), which autograd drops without a call |

As soon as the failure is detected, the attributes become the model's own parameters
again. In the second row that is too late, so there `zero_grad` itself reaches the
model's own parameters.

The gradients that a failed backward pass has collected are incomplete. They are dropped
before [the next forward pass](fresh_start.py#recover), or before the next backward pass
if that comes first. Until then no optimizer may step with them, and no norm is
computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import nn

from shardbook.foundations.torch_private import own_parameters
from shardbook.parameters.flat import Flat
from shardbook.parameters.parameter_sites import Site

__all__ = ["Ending", "let_zero_grad_reach", "only_failed", "refuse_interrupted"]


class Ending:
    """The callback that autograd calls at the end of a backward pass.

    If the pass fails, autograd drops the callback without a call. On a CPU that happens
    before the exception reaches the program.

    :param conductor: [the conductor of the pass](conductor.py#Conductor)
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
    """Record that a backward pass has failed, and restore the attributes of the units
    that it has reached to the model's own parameters.

    No exchange is waited for and no memory is freed, because an exchange without a
    partner would never end. If the backward pass is inside such a unit's forward pass,
    that unit continues to compute.
    """
    conductor.failed.add(task)
    for driver in conductor.passes[task]:
        computes = driver.in_backward is None and driver.uses.under_way()
        if not driver.unit.held and not computes:
            driver.unit.show(False)


def only_failed(conductor: Any) -> bool:
    """Whether all backward passes that are under way have failed, and there are some."""
    return bool(conductor.passes) and conductor.failed >= conductor.passes.keys()


def refuse_interrupted(flat: Flat) -> None:
    """Refuse to use gradients in the middle of a pass, or after one that failed.

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
    """Make `zero_grad` of a model and its submodules reach the model's own parameters,
    even while the attributes are the whole ones.
    """
    sites = [site for unit in units for site in unit.sites]
    for module in model.modules():
        vars(module)["zero_grad"] = zero_grad_of(module, sites)


def zero_grad_of(module: nn.Module, sites: Sequence[Site]) -> Callable[..., None]:
    """The new `zero_grad` method of a module."""

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
