r"""# The hooks of a layer

> Four moments of a module's life decide when its unit is whole.

[A unit](unit.py) has three states. This chapter attaches a unit to a module and says
when it changes state. Four moments decide: before and after the module's forward pass,
before and after its backward pass. Each is a hook from outside, so the module's own
code stays as it is.

Autograd records each operation of a forward pass as a *node*, and numbers the nodes in
the order in which they are made. In the backward pass, of the nodes that are ready, it
runs the one with the highest number first. That is how the two ends of a module's
backward pass are found:

| moment | what the unit does | how we learn of it |
|---|---|---|
| [before forward](#Hooks.before_forward) | gathers | a forward pre-hook |
| [after forward](#Hooks.after_forward) | frees | a forward hook, which also runs after an exception |
| [before backward](#Hooks.reach) | gathers again | a hook on the output's node; [demand](demand.py) |
| [a gradient is stored](#Hooks.arrive) | lets the next unit be gathered | a hook on each whole parameter |
| [after backward](#Hooks.after_backward) | frees, reduces its gradients | a hook on the input's gradient |
| [the end](#Hooks.close) of the backward pass | the same, where it was not done | the conductor's callback |

The hooks are the same in all stages. In stages 0 to 2 a freed unit gives no memory
back, and its second gather fetches nothing. If [stage 3](zero3.py) kept a unit until
its backward pass, the memory would grow with the number of layers, and that is what
sharding is to prevent.
"""

# sidelit: hide
from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.foundations.hook_context import (
    in_backward,
    machinery,
    map_tensors,
    not_compiled,
    tensors_in,
)
from shardbook.foundations.nesting import Nesting
from shardbook.foundations.torch_private import next_number, number_of
from shardbook.guards.optimizer_guard import refuse_copies_of
from shardbook.guards.stale_backward import Computed
from shardbook.guards.unsupported import refuse_transforms
from shardbook.parameters.flat_checks import refuse_writes
from shardbook.zero.conductor import Conductor
from shardbook.zero.demand import YOUNGEST, Pair, set_pair, take_away
from shardbook.zero.fresh_start import clear_away
from shardbook.zero.unit import Unit
from shardbook.zero.views import refuse_views

__all__ = ["Hooks"]
# sidelit: show


@dataclass(eq=False, slots=True)
class Use:
    """One forward pass through a unit, and the backward pass that belongs to it.

    :param start: the number of the first node that autograd will make in it
    :param inputs: the nodes that its inputs come from
    :param computed: [what it computed with](stale_backward.py#Computed)
    :param pair: [the hooks](demand.py#Pair) through which autograd saves its tensors
    """

    start: int
    inputs: set[Any] = field(default_factory=set)
    computed: Computed = field(default_factory=Computed)
    pair: Pair | None = None


class Hooks:
    """The four moments of one unit.

    :param unit: the unit to drive
    :param module: the module whose passes drive it
    :param conductor: [whom to tell](conductor.py#Conductor), so that the units of a
        model work together
    :param parts: modules inside of `module` that hold parameters of the unit and may be
        called by themselves
    """

    def __init__(
        self,
        unit: Unit,
        module: nn.Module,
        conductor: Conductor,
        parts: Iterable[nn.Module] = (),
    ) -> None:
        self.unit = unit
        self.module = module
        self.conductor = conductor
        conductor.add(self)
        # How many forward passes still expect a backward pass. A layer that is used
        # twice must reduce once, with the sum of both gradients.
        self.expected = 0
        # The use of the unit whose own backward pass has begun and not yet ended, and
        # whether a reduction is still due for it.
        self.in_backward: Use | None = None
        self.owes = False
        # The uses whose forward pass has begun and not ended. There is more than one
        # while a part is called inside of the module, or the module calls itself.
        self.parts = (module, *parts)
        self.uses: Nesting[Use] = Nesting(*self.parts)
        # A compiler must trace neither an exchange nor the swap of the parameters. So
        # it runs the hooks as they are, and compiles what is between them.
        before = not_compiled(self.before_forward)
        after = not_compiled(self.after_forward)
        # Whether the units that come next in the backward pass are still to be
        # gathered. The hooks refer to this object weakly, as [those of the
        # gradients](gradients.py#FlatWithGradients) do.
        self.due = False
        arrive = partial(Hooks.arrive, weakref.proxy(self))
        for flat in unit.trainable:
            for index in range(len(flat.whole)):
                flat.after_gradient(index, arrive)
        for part in self.parts:
            part.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
            # An exception in `forward` must not leave the unit whole: the next gather
            # would find it there and compute with the weights of an earlier step.
            part.register_forward_hook(after, always_call=True)
        for part in {module, *(site.module for site in unit.sites)}:
            refuse_copies_of(part)
        for flat in unit.flats:
            flat.driver = weakref.ref(self)

    def before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Gather, and plant the hooks that will announce the end of this module's
        backward pass.

        An input's node is older than everything the module computes. So when the
        input's gradient is complete and that node is about to run, the module's own
        nodes have run, and all of its gradients are there. To wait for a gradient of
        each parameter instead would be to wait forever where one was not used.

        Each thread numbers its nodes by itself. An input that another thread has made
        may have a higher number than the module's nodes, and then says nothing.
        """
        refuse_transforms(self.unit.name)
        use = Use(next_number())
        clear_away(self, interrupted=self.uses.begin(use))
        if len(self.uses) > 1:
            # A part inside of a module that has gathered already.
            return
        self.conductor.forward_begins(self.unit)
        self.unit.wait()
        self.unit.show()
        self.conductor.forward_began(self.unit)
        if torch.is_grad_enabled():
            for value in tensors_in((args, kwargs)):
                node = value.grad_fn
                if node is not None:
                    if number_of(node) < use.start:
                        value.register_hook(partial(self.after_backward, use))
                    use.inputs.add(node)
        use.pair = set_pair(self, use)

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Free, and plant the hooks that will announce the backward pass.

        The last unit is freed, too, although its backward pass comes next. After an
        evaluation with gradients on no backward pass comes, and a unit that stayed
        whole would later compute with old weights.

        A forward pass inside the unit's own backward pass is a recomputation for
        activation checkpointing. Its result is wanted right away, by a backward pass
        that has gathered the unit and will free it.
        """
        # Somebody else's hook may have raised before ours ran.
        use = self.uses.end()
        if use is None:
            return output
        take_away(use.pair)
        # If the hook of an input referred to that input's node, the graph would stay
        # forever: Python's collector does not see such a circle.
        inputs, use.inputs = use.inputs, set()
        if self.uses or self.in_backward is not None:
            return output
        output = map_tensors(partial(self.result, inputs), output)
        self.unit.free()
        refuse_views(self.unit, self.module, self.conductor.modules, (args, output))
        for flat in self.unit.flats:
            refuse_writes(flat, self.unit.name)
        # The hook belongs to the output's node, and runs after those of the tensor. So
        # where the output is the next unit's input, that unit ends before this one
        # begins.
        results = {t.grad_fn for t in tensors_in(output) if t.grad_fn} - inputs
        use.computed = Computed.of(self.unit)
        for node in results:
            number = number_of(node)
            node.register_prehook(partial(self.before_backward, use, number))
        # Inside a backward pass, a forward pass repeats one that has been counted, or,
        # under reentrant checkpointing, one that has not. In the second case stages 2
        # and 3 exchange the gradients of each repetition separately.
        recomputed = in_backward()
        if results and not (recomputed and self.expected):
            self.expected += 1
            if not recomputed:
                self.conductor.forward_ended(self.unit)
        return output

    def before_backward(self, use: Use, number: int, gradients: Any) -> None:
        """Gather again. Of several outputs the first to receive a gradient does it, the
        others find it done.

        :param use: the use whose output it was
        :param number: the number of the node that is about to run
        :raises RuntimeError: as [`reach`](#Hooks.reach) does
        """
        self.reach(use, number)

    @machinery()
    def reach(self, use: Use, number: int) -> None:
        """The backward pass has reached a use of the unit: let the unit be whole.

        :param use: the use
        :param number: the number of the node that runs
        :raises RuntimeError: if it [would compute with other
            weights](stale_backward.py) than the forward pass
        """
        use.computed.refuse_others(self.unit)
        self.conductor.open(self, number)
        self.in_backward = use
        self.owes = True
        self.due = True
        self.unit.wait()
        # Autograd has kept what it needs of the parameters. But what is checkpointed
        # inside of the module is computed again, from the modules' own attributes.
        self.unit.show()

    @machinery()
    def arrive(self, *_: Tensor) -> None:
        """A gradient of a parameter has been stored.

        It may be one that no hook has announced, such as that of a sum of the weights.
        Then its exchange is due at the end of the backward pass.
        """
        if self.in_backward is None and not self.owes:
            self.conductor.open(self, YOUNGEST)
            self.owes = True
        self.look_ahead()

    def look_ahead(self) -> None:
        """Let the next units be gathered, once a first gradient of this one is stored.

        Before that, gradients of parameters and of outputs stand beside each other, and
        for a large last layer this is the moment of the highest memory. A unit that
        gets no gradient asks when it ends.
        """
        if self.due:
            self.due = False
            self.conductor.backward_began(self.unit)

    def older(self, number: int) -> None:
        """A node of this number is about to run: end this unit if all of its nodes are
        younger.

        Layers that read the same input end here. Their common input is complete only
        when the last of them has run, and until then all of them would be whole.
        """
        if self.in_backward is not None and self.in_backward.start > number:
            self.after_backward(self.in_backward)

    @machinery()
    def after_backward(self, use: Use, *_: Any) -> None:
        """Free the unit and, unless more backward passes are to come, reduce its gradients.

        A second backward pass through the same graph was not counted in advance. Its
        gradients are reduced separately.

        The gradient of another use's input may be complete only now. It says nothing
        about the use that is under way.
        """
        if self.in_backward is not use:
            return
        self.in_backward = None
        self.look_ahead()
        self.unit.free()
        self.expected = max(0, self.expected - 1)
        if self.expected == 0:
            self.reduce()

    def reduce(self) -> None:
        """Hand the gradients over for reduction."""
        self.owes = False
        self.conductor.reduce(self.unit)

    def close(self) -> None:
        """Do at the end of the whole backward pass what `after_backward` has not done.

        It is not called for the first layer, whose input needs no gradient. And it
        expects one more pass for a layer one of whose forward passes has no part in the
        loss. So the number of expected passes starts again from zero.

        Whether a reduction is due must not depend on the gradients that arrived. On a
        rank where the layer took a way around its parameters none did, and the other
        ranks would wait for it.
        """
        self.in_backward = None
        self.due = False
        self.expected = 0
        # A backward pass may run inside of the forward pass of a unit that it reaches.
        self.uses.forget_interrupted()
        if not self.uses:
            self.unit.free()
        if self.owes:
            self.reduce()

    # sidelit: depth A module that returns a parameter, or an input as it came.

    def result(self, inputs: set[Any], value: Tensor) -> Tensor:
        """A tensor that may leave the module.

        A parameter, or a part of one, leaves as a copy, because its memory is about to
        be given back. An input that is passed through leaves as a view, which has a
        node of its own. So the unit has a backward pass also on a rank that returns the
        input as it came, while other ranks compute with it and exchange its gradients.
        """
        if self.unit.owns(value):
            return value.clone()
        return value.view_as(value) if value.grad_fn in inputs else value
