r"""# The hooks of a layer

> Four moments of a module's life decide when its unit is whole.

[A unit](unit.py) has three states. This chapter attaches a unit to a module and says
when it changes state. Four moments decide: before and after the module's forward pass,
before and after its backward pass. Each is a hook from outside, so the module's own
code stays as it is.

| moment | what the unit does | how we learn of it |
|---|---|---|
| before forward | gathers | a forward pre-hook |
| after forward | frees | a forward hook, which also runs after an exception |
| before backward | gathers again | a hook on the module's output |
| after backward | frees, reduces its gradients | a hook on the module's input |

The hooks are the same in all stages. They free a unit after its forward pass although
the backward pass needs it again. In stages 0 to 2 that gives no memory back, and the
second gather fetches nothing. In [stage 3](zero3.py) to keep the unit would make the
memory grow with the number of layers, and that is what sharding is to prevent.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from shardbook.schedule import Conductor, in_backward
from shardbook.unit import Unit

__all__ = ["Hooks"]
# sidelit: show


class Hooks:
    """The four moments of one unit.

    :param unit: the unit to drive
    :param module: the module whose passes drive it
    :param conductor: whom to tell, so that the units of a model work together
    """

    def __init__(self, unit: Unit, module: nn.Module, conductor: Conductor) -> None:
        self.unit, self.module, self.conductor = unit, module, conductor
        conductor.add(self)
        # How many forward passes still expect a backward pass. A layer that is used
        # twice must reduce once, with the sum of both gradients, as an unsharded layer
        # would.
        self.expected = 0
        # Whether the unit's own backward pass has begun and not yet ended, and whether
        # a reduction is still due for it.
        self.in_backward = self.owes = False
        module.register_forward_pre_hook(
            self.before_forward, with_kwargs=True, prepend=True
        )
        # An exception in `forward` must not leave the unit whole: the next gather would
        # find it already there and compute with the weights of an earlier step.
        module.register_forward_hook(self.after_forward, always_call=True)

    def before_forward(
        self, module: nn.Module, args: Any, kwargs: Any
    ) -> tuple[Any, Any]:
        """Gather, and plant the hook that will announce the end of this module's
        backward pass.

        Autograd works through its nodes from the youngest to the oldest. A view of the
        input, taken here, is older than everything the module computes. Its node runs
        when the module's own nodes have run and all of its gradients are there, whether
        or not each parameter took part.
        """
        self.conductor.forward_begins(self.unit)
        self.unit.wait()
        self.conductor.forward_began(self.unit)
        if torch.is_grad_enabled():
            # What was one object stays one: attention asks whether query, key and value
            # are the same, and then computes with one product instead of three.
            watched = {id(v): self.watch(v) for v in (*args, *kwargs.values())}
            args = tuple(watched[id(value)] for value in args)
            kwargs = {name: watched[id(value)] for name, value in kwargs.items()}
        return args, kwargs

    def watch(self, value: Any) -> Any:
        """A view of a tensor that needs a gradient, its node hooked; anything else as
        it is.

        Tuples are searched. Lists and dictionaries are not, since they would have to be
        copied, and what the module puts into a copy would never reach the caller.
        """
        if type(value) is tuple:
            return tuple(map(self.watch, value))
        if not (isinstance(value, Tensor) and value.requires_grad):
            return value
        view = value.view_as(value)
        assert view.grad_fn is not None
        view.grad_fn.register_hook(self.after_backward)
        return view

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Free, and plant the hooks that will announce the backward pass.

        A forward pass inside the unit's own backward pass is a recomputation for
        activation checkpointing. Its result is wanted right away, by a backward pass
        that has gathered the unit and will free it.
        """
        if self.in_backward:
            return output
        # A module may return a parameter, or a part of one. The caller must not be left
        # with a view of memory that is gone, so it gets a copy.
        if any(map(self.unit.owns, tensors_in(output))):
            output = tree_map_only(Tensor, self.keep, output)
        self.unit.free()
        # A tensor without a node is no result of this module.
        results = [value for value in tensors_in(output) if value.grad_fn is not None]
        for value in results:
            value.register_hook(partial(self.before_backward, self.unit.steps))
        # Inside a backward pass, a forward pass repeats one that has been counted, or,
        # under reentrant checkpointing, one that has not.
        recomputed = in_backward()
        if results and not (recomputed and self.expected):
            self.expected += 1
            if not recomputed:
                self.conductor.forward_ended(self.unit)
        return output

    def keep(self, value: Tensor) -> Tensor:
        """A tensor that outlives the unit's memory."""
        return value.clone() if self.unit.owns(value) else value

    def before_backward(self, steps: int, gradient: Tensor) -> None:
        """Gather again. Of several outputs the first to receive a gradient does it, the
        others find it done.

        :param steps: how often an optimizer had changed the unit when it computed
        :raises RuntimeError: if one has changed it since, because the gradient would be
            that of other weights; and under `create_graph=True`, because a second
            derivative would read parameters that were freed after the first
        """
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{self.unit.name}: backward(create_graph=True) cannot pass a sharded "
                "unit; compute second derivatives before sharding"
            )
        if steps != self.unit.steps:
            raise RuntimeError(
                f"{self.unit.name}: an optimizer has stepped between this unit's forward "
                "pass and its backward pass; call backward first"
            )
        self.conductor.open(self)
        self.in_backward = self.owes = True
        self.unit.wait()
        self.conductor.backward_began(self.unit)

    def after_backward(self, *_: Any) -> None:
        """Free the unit and, unless more backward passes are to come, reduce its gradients."""
        if not self.in_backward:
            return
        self.in_backward = False
        self.unit.free()
        self.expected = max(0, self.expected - 1)
        if self.expected == 0:
            self.reduce()

    def reduce(self) -> None:
        """Hand the gradients over for reduction."""
        self.owes = False
        self.conductor.reduce(self.unit)

    def close(self) -> None:
        """Do at the end of a whole backward pass what `after_backward` was not called
        for.

        That is so for the first layer, whose input needs no gradient, and for a layer
        one of whose forward passes has no part in the loss. The number of expected
        passes starts again from zero.

        Whether a reduction is due must not depend on the gradients that arrived. On a
        rank where the layer took a way around its parameters none did, and the other
        ranks would wait for it.
        """
        self.in_backward = False
        self.unit.free()
        self.expected = 0
        if self.owes:
            self.reduce()


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Every tensor in what a module returned, also inside of dataclasses and other
    objects.

    An output that is overlooked is one whose backward pass begins without the
    parameters. So a result must be returned; one left in an attribute is not found.
    """
    for value in tree_leaves(output):
        if isinstance(value, Tensor):
            yield value
        elif is_dataclass(value) and not isinstance(value, type):
            yield from tensors_in([getattr(value, f.name, None) for f in fields(value)])
        elif hasattr(value, "__dict__") and not isinstance(value, nn.Module | type):
            yield from (v for v in vars(value).values() if isinstance(v, Tensor))
