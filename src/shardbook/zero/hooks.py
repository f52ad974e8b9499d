r"""# The hooks of a layer

> Hooks before and after the forward pass and the backward pass of a module gather its
> unit and free it.

[A unit](unit.py) has three states. This chapter attaches a unit to a module and decides
when the state changes. There are four main moments: before and after the module's
forward pass, and before and after its backward pass. Each of them is found by a hook
from outside, so the module's own code stays as it is.

The hooks of the forward pass belong to the module. For the backward pass a module has
no code of its own, so its two ends must be found in autograd's graph. Autograd records
each operation of a forward pass as a *node*, and numbers the nodes in the order in
which they are made. Suppose a block makes the nodes 10 to 25, and its input was made by
node 9. Backward runs the nodes in reverse order, from those that are ready the one with
the highest number. So a hook on the output, node 25, fires just before the block's
backward pass. The gradient of its input is complete just after it, when node 9 comes
next.

| moment | what happens to the unit | how the moment is found |
|---|---|---|
| [before forward](#Hooks.before_forward) | it is gathered | a forward pre-hook |
| [after forward](#Hooks.after_forward) | it is freed | a forward hook, even after an exception |
| [before backward](#Hooks.before_backward) | it is gathered | a hook of the output, or [demand](demand.py) |
| [a gradient is stored](#Hooks.gradient_stored) | the next unit is gathered | a hook on each whole parameter
| [after backward](#Hooks.after_backward) | it is freed and reduced | a hook on the input's gradient |
| [the end](#Hooks.close) of the whole backward pass | the same, if still due | the scheduler's callback |

PyTorch has two other ways to act before a module's backward pass:
`register_full_backward_pre_hook`, and an `autograd.Function` through which the output
passes. DeepSpeed uses the second. Both put a node of their own behind the module, and
return another tensor than the module did. A hook on the output's own node changes
nothing in the graph.

The hooks are the same in all stages. In stages 0 to 2 a freed unit gives no memory
back, and its second gather fetches nothing. [Stage 3](unit.py#module/stage-3) needs the second
gather, and [a table](unit.py#module/how-often-a-unit-is) counts the gathers of other kinds
of steps. If stage 3 kept every unit from the forward pass until the backward pass, the memory
would grow with the number of layers, which is exactly what sharding prevents.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.foundations.hook_context import (
    Nesting,
    in_backward,
    machinery,
    map_tensors,
    not_compiled,
    tensors_in,
)
from shardbook.foundations.torch_private import is_compiled, next_number, number_of
from shardbook.zero.demand import (
    YOUNGEST,
    Pair,
    number_now,
    refuse_views,
    set_pair,
    take_away,
)
from shardbook.zero.optimizer_guard import NEVER, Computed, refuse_copies_of
from shardbook.zero.refusals import refuse_threads, refuse_transforms
from shardbook.zero.scheduler import Scheduler, clear_away
from shardbook.zero.unit import Unit
from shardbook.zero.whole_parameter import refuse_writes

__all__ = ["Hooks"]


@dataclass(eq=False, slots=True)
class Use:
    """One forward pass through a unit, and the backward pass that belongs to it.

    :param start: the number of the first node that autograd makes in this forward pass
    :param inputs: the nodes that made the inputs
    :param computed: [the versions of the parameters](optimizer_guard.py#Computed) that
        the forward pass computed with
    :param pair: [the hooks](demand.py#Pair) through which autograd saves tensors in
        this forward pass
    :param to_prefetch: whether the units that come next in the backward pass are still to
        be prefetched
    """

    start: int
    inputs: set[Any] = field(default_factory=set)
    computed: Computed = NEVER
    pair: Pair | None = None
    to_prefetch: bool = False


class Hooks:
    """The hooks of one unit.

    :param unit: the unit to gather, free and reduce
    :param module: the module whose forward and backward passes decide when
    :param scheduler: [the scheduler](scheduler.py#Scheduler) of the model's units,
        which learns of each moment
    :param parts: modules inside `module` that hold parameters of the unit and may be
        called directly
    """

    def __init__(
        self,
        unit: Unit,
        module: nn.Module,
        scheduler: Scheduler,
        parts: Iterable[nn.Module] = (),
    ) -> None:
        self.unit = unit
        self.module = module
        self.scheduler = scheduler
        scheduler.add(self)
        # The number of forward passes that still expect a backward pass. If a layer is
        # used twice, the count is 2, and the gradients are reduced once, after both
        # have been added up.
        self.expected = 0
        # The use whose backward pass has begun and not yet ended, and whether the
        # unit's gradients are still to be reduced.
        self.backward_use: Use | None = None
        self.owes = False
        # The use whose forward pass has ended last.
        self.last: Use | None = None
        # The uses whose forward pass has begun and not yet ended. There is more than
        # one while a part is called inside the module, or while the module calls
        # itself.
        self.parts = (module, *parts)
        self.inside = list(module.modules())
        self.uses: Nesting[Use] = Nesting(*self.parts)
        # A compiler must trace neither an exchange nor the swap of the parameters.
        # `not_compiled` makes it run the hooks as plain Python and compile only the
        # code between them.
        before = not_compiled(self.before_forward)
        after = not_compiled(self.after_forward)
        # The whole parameters refer to this object weakly, as [to their
        # vector](flat.py#Flat.take).
        stored = partial(Hooks.gradient_stored, weakref.proxy(self))
        for flat in unit.trainable:
            for index in range(len(flat.whole)):
                flat.after_gradient(index, stored)
        for part in self.parts:
            part.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
            # An exception in `forward` must not leave the unit whole. Otherwise the
            # next gather would find it in that state and compute with the weights of an
            # earlier step.
            part.register_forward_hook(after, always_call=True)
        for part in {module, *(site.module for site in unit.sites)}:
            refuse_copies_of(part)
        for flat in unit.flats:
            flat.hooks = weakref.ref(self)

    def before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Gather the unit, and set the hooks that announce the end of its backward
        pass.

        The node that made an input is older than all nodes of the module. When the
        gradient of that input is complete, the input's node is about to run, so the
        module's own nodes have run and all gradients of the unit are stored. It would
        be no good to count one gradient for each parameter: if a parameter was not
        used, its gradient never comes, and the unit would wait forever.

        Each thread numbers its nodes separately. An input from another thread may have
        a higher number than the module's nodes. Such a number says nothing about the
        order, and gets no hook.
        """
        refuse_transforms(self.unit.name)
        use = Use(next_number())
        if interrupted := self.uses.begin(use):
            clear_away(self, interrupted)
        if not in_backward() and self.scheduler.thread != get_ident():
            refuse_threads(self.scheduler, self.unit.name)
        if len(self.uses.calls) > 1:
            # The call is inside another one of the module, which has gathered already.
            return
        self.scheduler.forward_begins(self.unit)
        self.unit.compiled = is_compiled(*self.inside)
        self.unit.wait()
        self.unit.show()
        self.scheduler.forward_began(self.unit)
        if torch.is_grad_enabled():
            for value in tensors_in((args, kwargs)):
                node = value.grad_fn
                if node is not None:
                    if number_of(node) < use.start:
                        value.register_hook(partial(self.after_backward, use))
                    use.inputs.add(node)
        use.pair = set_pair(self, use)

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Free the unit, and set the hooks that announce its backward pass.

        The last unit of the model is freed, too, although its backward pass comes next.
        After an evaluation with gradients enabled no backward pass comes, and a unit
        that stayed whole would later compute with old weights.

        A forward pass inside the unit's own backward pass is a recomputation for
        activation checkpointing. That backward pass has gathered the unit, uses the
        result at once, and frees the unit itself. So nothing is freed here.
        """
        # Another library's hook may have raised an exception before `before_forward`
        # ran.
        use = self.uses.end()
        if use is None:
            return output
        if use.pair is not None:
            take_away(use.pair)
        # A hook of an input must not refer to that input's node. The circle would keep
        # the graph in memory forever, because Python's garbage collector cannot see it.
        inputs, use.inputs = use.inputs, set()
        if self.uses.calls or self.backward_use is not None:
            return output
        if isinstance(output, Tensor):
            output = self.result(inputs, output)
        else:
            output = map_tensors(partial(self.result, inputs), output)
        self.unit.free()
        given = args, output
        kept = refuse_views(self.unit, self.module, self.scheduler.modules, given)
        for flat in self.unit.flats:
            if flat.writes.found:
                refuse_writes(flat, self.unit.name)
        # The hook is set on the output's node, where it runs after the hooks of the
        # output tensor. That tensor may be the next unit's input. Then the next unit
        # ends its backward pass before this unit begins its own.
        results = {t.grad_fn for t in tensors_in(output) if t.grad_fn} - inputs
        use.computed = Computed.of(self.unit)
        self.last = use
        for node in results:
            number = number_of(node)
            node.register_prehook(partial(self.before_backward, use, number))
        nodes = {t.grad_fn for t in kept if t.grad_fn} - results
        others = [node for node in nodes if number_of(node) >= use.start]
        if others:
            self.announce(use, others)
        # A forward pass inside a backward pass is a recomputation. Usually the
        # forward pass that it repeats has been counted. Under reentrant checkpointing
        # it has not, because that pass ran without gradients, so the recomputation is
        # counted here. Stages 2 and 3 then exchange the gradients of each recomputation
        # separately.
        recomputed = in_backward()
        if results and not (recomputed and self.expected):
            self.expected += 1
            if not recomputed:
                self.scheduler.ended.append(self.unit)
        return output

    def announce(self, use: Use, others: Iterable[Any]) -> None:
        """Gather the unit before the backward pass of a tensor that its modules keep.

        A module may keep the result of an `autograd.Function`, which has taken a view
        of a weight [past the hooks of saved tensors](demand.py).

        :param others: the nodes of these tensors that this use has made, without those
            of the module's results, which have their hooks
        """
        # A strong reference would close a circle from the module's attribute over the
        # graph to the module, which Python's garbage collector cannot see.
        reach = partial(Hooks.before_backward, weakref.proxy(self), use)
        for node in others:
            node.register_prehook(partial(reach, number_of(node)))

    @machinery
    def before_backward(self, use: Use, number: int, *_: object) -> None:
        """Gather the unit again before its backward pass, which has reached one of its
        uses.

        If the module has several outputs, the first one that receives a gradient
        gathers the unit, and the others find it whole.

        :param use: the use that made the output
        :param number: the number of the node that is about to run
        :raises RuntimeError: if the backward pass [would compute with other
            weights](optimizer_guard.py#module/weights-that-change-before-the) than the forward pass did
        """
        use.computed.refuse_others(self.unit)
        self.scheduler.open(self, number)
        self.backward_use = use
        self.owes = True
        use.to_prefetch = True
        self.unit.wait()
        # Autograd has saved the views that it needs of the parameters. But a
        # checkpointed part inside the module is recomputed from the modules'
        # attributes, so these must name the whole parameters, too.
        self.unit.show()

    def reach_again(self) -> bool:
        """Make the unit whole for a read of [a freed parameter](whole_parameter.py#Freed).

        :returns: whether this is a backward pass, in which the unit may be gathered
        """
        if not in_backward() or self.last is None:
            return False
        self.before_backward(self.last, number_now())
        return True

    @machinery
    def gradient_stored(self, *_: Tensor) -> None:
        """Act on a gradient of a parameter that has just been stored.

        No hook may have announced this gradient, for example that of a sum of the
        weights outside of the module. Then the exchange is due at the end of the
        backward pass.
        """
        use = self.backward_use
        if use is None and not self.owes:
            self.scheduler.open(self, YOUNGEST)
            self.owes = True
        if use is not None and use.to_prefetch:
            self.scheduler.backward_began(self.unit, use)

    @machinery
    def after_backward(self, use: Use, *_: object) -> None:
        """Free the unit and, if it expects no more backward passes, reduce its
        gradients.

        A second backward pass through the same graph (`retain_graph=True`) was not
        counted in advance. Its gradients are reduced separately.

        The call may come from the gradient of an earlier use's input. Then it says
        nothing about the use that is in its backward pass now, and is ignored.

        :param use: the use whose input gradient is complete
        """
        if self.backward_use is not use:
            return
        self.backward_use = None
        if use.to_prefetch:
            self.scheduler.backward_began(self.unit, use)
        self.unit.free()
        self.expected = max(0, self.expected - 1)
        if self.expected == 0:
            self.owes = False
            self.scheduler.reduce(self.unit)

    def close(self) -> None:
        """Finish the unit at the end of the whole backward pass, if `after_backward`
        has not.

        There are two such cases. The input of the first layer is the data, which needs
        no gradient, so no hook on it fires. And if the result of a forward pass has no
        part in the loss, the unit counts a backward pass that is never run. So the
        count of expected backward passes starts again from zero.

        Whether a reduction is due must not depend on the gradients that arrived. On one
        rank the layer may have skipped all of its parameters, so that no gradient
        arrived there. The other ranks would wait for it.
        """
        self.backward_use = None
        self.expected = 0
        # A backward pass may run inside the forward pass of the same unit. Then the
        # unit stays whole for the rest of that forward pass.
        self.uses.forget_interrupted()
        if not self.uses.calls:
            self.unit.free()
        if self.owes:
            self.owes = False
            self.scheduler.reduce(self.unit)

    # sidelit: depth A module that returns a parameter, or an input as it came.

    def result(self, inputs: set[Any], value: Tensor) -> Tensor:
        """Replace a tensor that the module returns, where its memory or its node needs
        it.

        A parameter, or a view into one, leaves the module as a copy, because its memory
        is about to be freed. An input that is returned unchanged leaves as a view with
        a node of its own, so the unit has a backward pass on this rank, too. Otherwise
        a rank that returns its input would never exchange the gradients that the other
        ranks exchange.

        :param inputs: the nodes that made the module's inputs
        :param value: the tensor, of any shape
        :returns: the tensor itself, a copy, or a view with the same values
        """
        if self.unit.owns(value):
            return value.clone()
        return value.view_as(value) if value.grad_fn in inputs else value
