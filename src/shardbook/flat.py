r"""# The shard and the full vector

> A unit's storage: the shard stays, the full vector comes and goes.

A unit stores its parameters in flat vectors, one for each kind of parameter. This
chapter holds such a vector in its two forms. Between uses a rank has `shard`, its own
$1/N_d$ of the vector. During use it has `full`, the whole vector, and `whole`, the
parameters in their old shapes as views into it. In the backward pass a third vector
joins them: `grad_full`, the gradients in the same order.

Nothing here communicates by itself, except for one broadcast at the start. [The
unit](unit.py) decides when a vector is filled and when it is emptied.

:notation $N_d$: `world_size`, the number of ranks that share the vector
:notation $P_u$: `padded`, the length of the vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part, $P_u / N_d$
"""

# sidelit: hide
from __future__ import annotations

import weakref
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from shardbook.collectives import PendingReduce, broadcast
from shardbook.partition import Layout, flatten, views

__all__ = ["Flat", "has_gradient_hook", "is_sharded", "resize"]
# sidelit: show


class Flat:
    """One flat vector of a unit: parameters of one dtype, all trainable or all frozen."""

    def __init__(
        self,
        layout: Layout,
        parameters: dict[str, nn.Parameter],
        rank: int,
        group: Any,
        synchronize: bool,
    ) -> None:
        self.layout, self.rank = layout, rank
        self.slices = tuple(parameters[slot.names[0]] for slot in layout.slots)
        self.gathering: Any = None
        self.reducing: PendingReduce | None = None
        self.grad_full: Tensor | None = None
        self.sending: Tensor | None = None
        self.arrived: set[int] = set()
        # For this moment the unit exists twice, in the model and in `full`. A model is
        # sharded unit by unit, so no more than one unit ever does.
        self.full = torch.empty(
            layout.padded, dtype=layout.dtype, device=self.slices[0].device
        )
        flatten(layout, [parameter.detach() for parameter in self.slices], self.full)
        if synchronize:
            broadcast(self.full, source=0, group=group)
        self.shard = self.own_part().clone()
        # `.data` cuts the tie to the version counter of `full`. Otherwise each gather,
        # which writes into `full`, would look to autograd like a forbidden change of
        # the parameters.
        self.whole = tuple(
            nn.Parameter(view.data, requires_grad=layout.trainable)
            for view in views(layout, self.full)
        )
        # The model keeps its own parameter objects, and each now shows only this rank's
        # piece. So the names, the optimizer's groups, and everything else that refers
        # to them stay as they were.
        for slot, parameter in zip(layout.slots, self.slices, strict=True):
            start, stop = layout.piece(slot, rank)
            parameter.data = self.shard[start:stop]
            setattr(parameter, _MARK, True)
        # The gradient of a whole parameter is taken as soon as autograd has finished
        # it. The hook belongs to the parameter; one that hangs on autograd's own node
        # would die with that node. The garbage collector cannot see the hooks of a
        # tensor. If a hook referred to this vector, the two would keep each other, and
        # a model that nobody uses any more would keep its shards.
        if layout.trainable:
            for index, whole in enumerate(self.whole):
                collect = partial(Flat.collect, weakref.proxy(self), index)
                whole.register_post_accumulate_grad_hook(collect)
        resize(self.full, 0)
        register_guard()

    def own_part(self) -> Tensor:
        """This rank's part of `full`, a view of $S_u$ elements."""
        size = self.layout.shard_numel
        return self.full[self.rank * size : (self.rank + 1) * size]

    def gradients(self) -> Tensor:
        """`grad_full`, taken from the allocator when the first gradient of a backward pass arrives."""
        if self.grad_full is None:
            # Uninitialised memory may hold NaN. The padding takes part in norms and
            # overflow checks, so it must be zero; the rest is overwritten.
            self.grad_full = torch.empty(
                self.layout.padded, dtype=self.layout.dtype, device=self.shard.device
            )
            for start, stop in self.layout.gaps:
                self.grad_full[start:stop].zero_()
            self.arrived.clear()
        return self.grad_full

    def collect(self, index: int, whole: Tensor) -> None:
        """Move one finished gradient into `grad_full`, and free it at once.

        A parameter can be reached by several backward passes before the reduction. The
        first one copies, the others add. A sparse gradient, as embeddings can have, is
        spread out, since the flat vector has a place for every element.
        """
        assert whole.grad is not None
        place, gradient = self.place(index), whole.grad.to_dense()
        if index in self.arrived:
            place.add_(gradient)
        else:
            place.copy_(gradient)
        self.arrived.add(index)
        whole.grad = None

    def fill_missing_gradients(self) -> None:
        """A parameter that the step did not use has the gradient zero, on this rank."""
        self.gradients()
        for index in set(range(len(self.whole))) - self.arrived:
            self.place(index).zero_()

    def place(self, index: int) -> Tensor:
        """The part of `grad_full` that belongs to parameter `index`, in that parameter's shape."""
        slot = self.layout.slots[index]
        return self.gradients()[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def receive(self, mean: Tensor) -> None:
        """End an exchange: keep the mean, and give back the vector that was sent.

        A thread of the backend may hold on to that vector for a moment. If we only
        forgot it, chance would decide when its memory is free. To shrink the storage
        frees it now.
        """
        assert self.sending is not None
        resize(self.sending, 0)
        self.reducing = self.sending = None
        self.accumulate(mean)

    def accumulate(self, mean: Tensor) -> None:
        """Add the mean to the gradients of the slices.

        To assign instead would keep only the last micro-batch. A user who called
        `zero_grad` has set the gradient to `None`, and then the mean itself becomes the
        gradient, without a copy.
        """
        for slot, parameter in zip(self.layout.slots, self.slices, strict=True):
            start, stop = self.layout.piece(slot, self.rank)
            if parameter.grad is None:
                parameter.grad = mean[start:stop]
            else:
                parameter.grad += mean[start:stop]

    def check(self, unit: str) -> None:
        """Refuse to gather a shard that the parameters no longer point into.

        `model.half()` or `model.to(device)` replaces the data of every parameter. The
        optimizer would then train the replacement, and the other ranks would go on
        receiving the old values.

        :raises RuntimeError: naming the parameter and what to do
        """
        home = self.shard.untyped_storage().data_ptr()
        for slot, parameter in zip(self.layout.slots, self.slices, strict=True):
            if parameter.untyped_storage().data_ptr() != home:
                raise RuntimeError(
                    f"{slot.names[0]} in unit {unit} has left its shard; "
                    "convert or move the model before sharding"
                )
            if parameter.requires_grad != self.layout.trainable:
                raise RuntimeError(
                    f"requires_grad of {slot.names[0]} in unit {unit} has changed; "
                    "freeze parameters before sharding"
                )
            if has_gradient_hook(parameter):
                raise RuntimeError(
                    f"the gradient hook on {slot.names[0]} in unit {unit} would never "
                    "be called; remove it"
                )


# The mark that a parameter carries once it is a slice.
_MARK = "_shardbook_slice"


def is_sharded(parameter: Tensor) -> bool:
    """Whether a parameter is a slice of a shard already."""
    return hasattr(parameter, _MARK)


def has_gradient_hook(parameter: Tensor) -> bool:
    """Whether somebody waits for this parameter's gradient.

    Autograd never sees a slice: its gradient is put there after the exchange. So a hook
    on it would wait in vain, and in silence.
    """
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def resize(tensor: Tensor, numel: int) -> None:
    """Let the storage under `tensor` hold `numel` elements; every view of it sees the new storage."""
    tensor.untyped_storage().resize_(numel * tensor.element_size())


@cache
def register_guard() -> None:
    """Let every optimizer that steps on sharded parameters be looked at first."""
    register_optimizer_step_pre_hook(refuse_shape_dependent)


def refuse_shape_dependent(
    optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
) -> None:
    """Stop an optimizer that would train something else on slices than on whole
    parameters.

    Adafactor factors matrices, and a slice has no rows. L-BFGS takes inner products
    over all parameters, LAMB and LARS take the norm of each, and a rank has only a part
    of them. None would raise by itself.

    :raises TypeError: naming the optimizer
    """
    name = type(optimizer).__name__
    parameters = (
        parameter for group in optimizer.param_groups for parameter in group["params"]
    )
    if name.lower() in _SHAPE_DEPENDENT and any(map(is_sharded, parameters)):
        raise TypeError(
            f"{name} depends on a parameter's shape; "
            "use an elementwise optimizer such as AdamW"
        )


_SHAPE_DEPENDENT = ("adafactor", "lamb", "lars", "lbfgs", "muon", "shampoo", "soap")
