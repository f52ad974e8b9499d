r"""# The flat vector

> Some parameters, laid side by side in one vector, and what a rank keeps of it.

A unit stores its parameters in flat vectors, one for each kind of parameter. One
exchange then moves all of them. This chapter holds such a vector in its forms: `full`
is the whole vector, `whole` are the parameters in their old shapes as views into it,
and `shard` is what this rank keeps between uses. In the backward pass one more vector
joins them: `grad_full`, the gradients in the same order.

Nothing here communicates. [The unit](unit.py) decides when a vector is filled and
emptied, and [the stage](replicate.py) decides how much of it a rank keeps.

:notation $N_d$: `world_size`, the number of ranks that share the vector
:notation $P_u$: `padded`, the length of the vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part, $P_u / N_d$
"""

# sidelit: hide
from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.collectives import PendingGather, PendingReduce, reduce_scatter_mean
from shardbook.partition import Layout, flatten, shares_storage, views
from shardbook.policy import Policy

__all__ = ["Flat", "has_gradient_hook", "is_sharded", "owner_of", "resize"]
# sidelit: show


class Flat:
    """One flat vector of a unit: parameters of one dtype, all trainable or all frozen.

    It starts whole. [`keep_whole`](#Flat.keep_whole) or
    [`keep_part`](#Flat.keep_part) then says what stays.
    """

    def __init__(
        self, layout: Layout, parameters: dict[str, nn.Parameter], policy: Policy
    ) -> None:
        self.layout = layout
        self.parameters = tuple(parameters[slot.names[0]] for slot in layout.slots)
        self.collects_in = policy.collects_in(layout.dtype)
        self.sends_in = policy.sends_in(layout.dtype)
        self.gathering: PendingGather | None = None
        self.reducing: PendingReduce | None = None
        self.grad_full: Tensor | None = None
        self.sending: Tensor | None = None
        self.arrived: set[int] = set()
        # Whether gradients wait for a later exchange, and what is shown for them.
        self.holds = False
        self.held: dict[int, tuple[Tensor, int, bool]] = {}
        # How often an optimizer has changed these parameters, and whether the modules
        # compute with them now.
        self.steps, self.in_use = 0, False
        # For this moment the unit exists twice, in the model and in `full`. A model is
        # sharded unit by unit, so no more than one unit ever does.
        self.device = self.parameters[0].device
        self.full = torch.empty(layout.padded, dtype=layout.dtype, device=self.device)
        flatten(layout, [each.detach() for each in self.parameters], self.full)
        # `.data` cuts the tie to the version counter of `full`. Otherwise each gather,
        # which writes into `full`, would look to autograd like a forbidden change of
        # the parameters.
        self.whole = tuple(
            nn.Parameter(view.data, requires_grad=layout.trainable)
            for view in views(layout, self.full)
        )
        # The gradient of a whole parameter is taken as soon as autograd has finished
        # it. The hook belongs to the parameter; one on autograd's own node would die
        # with that node. The garbage collector does not see hooks. If one referred to
        # this vector, the two would keep each other, and with them the shards.
        if layout.trainable:
            for index, whole in enumerate(self.whole):
                collect = partial(Flat.collect, weakref.proxy(self), index)
                whole.register_post_accumulate_grad_hook(collect)

    def keep_whole(self) -> None:
        """Keep the whole vector. Each of the model's parameters keeps its shape."""
        self.shard, self.sliced = self.full, False
        self.show((s.offset, s.offset + s.numel, s.shape) for s in self.layout.slots)

    def keep_part(self, rank: int, *, apart: bool) -> None:
        """Keep the part of one rank. Each of the model's parameters becomes the 1-D
        slice that falls into that part, often an empty one.

        :param apart: whether the part is a vector of its own, so that `full` can be
            emptied, or a view into `full`
        """
        size = self.layout.shard_numel
        self.place_of_shard = slice(rank * size, (rank + 1) * size)
        self.shard, self.sliced = self.full[self.place_of_shard], True
        if apart:
            self.shard = self.shard.clone()
        pieces = (self.layout.piece(slot, rank) for slot in self.layout.slots)
        self.show((start, stop, (stop - start,)) for start, stop in pieces)

    def show(self, places: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        """Let the model's own parameters show what is kept of them.

        They remain the same objects. So the names, the optimizer's groups, and
        everything else that refers to them stay as they were.

        :param places: for each parameter the start and stop in `shard`, and the shape
        """
        self.places = tuple(places)
        for parameter, kept in zip(self.parameters, self.cut(self.shard), strict=True):
            parameter.data = kept
            setattr(parameter, _OWNER, weakref.ref(self))

    def cut(self, kept: Tensor) -> list[Tensor]:
        """The parts of a vector laid out like `shard` that belong to the model's parameters."""
        return [kept[start:stop].view(shape) for start, stop, shape in self.places]

    def store(self) -> None:
        """Take the values in `full` for this rank's own, after they were loaded."""
        if self.sliced:
            self.shard.copy_(self.full[self.place_of_shard])

    def gradients(self) -> Tensor:
        """`grad_full`, taken from the allocator when the first gradient of a backward pass arrives."""
        if self.grad_full is None:
            # Uninitialised memory may hold NaN. The padding takes part in norms and
            # overflow checks, so it must be zero; the rest is overwritten.
            self.grad_full = torch.empty(
                self.layout.padded, dtype=self.collects_in, device=self.device
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
        self.unhold(index)
        if index in self.arrived:
            place.add_(gradient)
        else:
            place.copy_(gradient)
        self.arrived.add(index)
        whole.grad = None
        if self.holds:
            self.hold(index)

    def hold(self, index: int) -> None:
        """Let `zero_grad` reach a gradient that waits for a later exchange.

        The model's parameter has no gradient yet. It shows a zero that takes no memory.
        """
        parameter = self.parameters[index]
        zero = parameter.new_zeros(()).expand_as(parameter)
        shown = parameter.grad = zero if parameter.grad is None else parameter.grad
        self.held[index] = shown, shown._version, shown is zero

    def unhold(self, index: int) -> None:
        """Drop what waits if `zero_grad` has removed or overwritten what was shown."""
        if index not in self.held:
            return
        parameter = self.parameters[index]
        shown, version, stands_in = self.held.pop(index)
        if parameter.grad is None or shown._version != version:
            self.arrived.discard(index)
        if stands_in and parameter.grad is shown:
            parameter.grad = None

    def fill_missing_gradients(self) -> None:
        """A parameter that the step did not use has the gradient zero, on this rank."""
        self.gradients()
        for index in range(len(self.whole)):
            self.unhold(index)
            if index not in self.arrived:
                self.place(index).zero_()

    def place(self, index: int) -> Tensor:
        """The part of `grad_full` that belongs to parameter `index`, in that parameter's shape."""
        slot = self.layout.slots[index]
        return self.gradients()[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def send(self) -> None:
        """Begin an exchange: put the gradients into the dtype in which they travel.

        From here on a gradient starts a new vector. A layer that is used again right
        away would otherwise add to the vector that is being sent, and the sum would
        reach some ranks and not others.
        """
        self.fill_missing_gradients()
        self.sending, self.grad_full = self.gradients().to(self.sends_in), None

    def reduce(self, group: Any) -> None:
        """Start the exchange of what is to be sent."""
        assert self.sending is not None
        self.reducing = reduce_scatter_mean(self.sending, group=group)

    def receive(self, mean: Tensor) -> None:
        """End an exchange: keep the mean, and give back the vector that was sent.

        A thread of the backend may hold on to that vector for a moment. If we only
        forgot it, chance would decide when its memory is free. To shrink the storage
        frees it now.
        """
        assert self.sending is not None
        if not shares_storage(self.sending, mean):
            resize(self.sending, 0)
        self.reducing = self.sending = None
        self.accumulate(mean.to(self.layout.dtype))

    def accumulate(self, mean: Tensor) -> None:
        """Add the mean to the gradients of the model's parameters.

        To assign instead would keep only the last micro-batch. A user who called
        `zero_grad` has set the gradient to `None`, and then the mean itself becomes the
        gradient, without a copy.
        """
        for parameter, part in zip(self.parameters, self.cut(mean), strict=True):
            if parameter.grad is None:
                parameter.grad = part
            else:
                parameter.grad += part

    def add_zero(self) -> None:
        """Give each parameter without a gradient the gradient zero."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def forget(self) -> None:
        """Drop the gradients of a backward pass that failed."""
        if self.reducing is not None:
            self.reducing.wait()
        self.reducing = self.sending = self.grad_full = None
        for index in list(self.held):
            self.unhold(index)

    def check(self, unit: str) -> None:
        """Refuse to gather a shard that the parameters no longer point into.

        `model.half()` or `model.to(device)` replaces the data of every parameter. The
        optimizer would then train the replacement, and the other ranks would go on
        receiving the old values.

        :raises RuntimeError: naming the parameter and what to do
        """
        for slot, parameter in zip(self.layout.slots, self.parameters, strict=True):
            if not shares_storage(parameter, self.shard):
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


# A parameter refers to its vector, weakly, so that a model nobody uses goes.
_OWNER = "_shardbook_flat"


def is_sharded(parameter: Tensor) -> bool:
    """Whether a parameter belongs to a unit already."""
    return hasattr(parameter, _OWNER)


def owner_of(parameter: Tensor) -> Flat | None:
    """The vector that a parameter belongs to, if there is one."""
    owner: Flat | None = getattr(parameter, _OWNER, lambda: None)()
    return owner


def has_gradient_hook(parameter: Tensor) -> bool:
    """Whether somebody waits for this parameter's gradient.

    Autograd never sees a slice: its gradient is put there after the exchange. So a hook
    on it would wait in vain, and in silence.
    """
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def resize(tensor: Tensor, numel: int) -> None:
    """Let the storage under `tensor` hold `numel` elements; every view of it sees the new storage."""
    tensor.untyped_storage().resize_(numel * tensor.element_size())
