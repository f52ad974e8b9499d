r"""# The gradients of a flat vector

> Gradients are put side by side as they arrive, exchanged for their mean, and handed to the optimizer.

Autograd finishes the gradients of a unit one after the other, each in a tensor of its
own. To exchange each by itself would cost one message per parameter, and most messages
would be small. This chapter collects them in one vector of $P_u$ elements, `grad_full`,
laid out like [the parameters](flat.py). One exchange then averages all of them. What
comes back becomes the gradient of the model's own parameters, where an optimizer looks
for it.

| moment | `grad_full` | `sending` | `parameters[i].grad` |
|---|---|---|---|
| a gradient is finished | takes it | | |
| `send` | given up | holds the gradients, in the dtype in which they travel | |
| `receive` | | given up | the mean is added, unless [nobody has used the parameter](unused.py) |

:notation $P_u$: `padded`, the length of the vector with its padding
"""

# sidelit: hide
from __future__ import annotations

import weakref
from collections.abc import Callable, Container
from functools import partial

import torch
from torch import Tensor, nn

from shardbook.foundations.groups import Groups, Mean
from shardbook.foundations.hook_context import machinery
from shardbook.foundations.huge_pages import ask_for_large_pages
from shardbook.foundations.layout import Layout
from shardbook.foundations.streams import compute_stream
from shardbook.foundations.torch_private import as_plain
from shardbook.parameters.flat import resize
from shardbook.parameters.freezing import carry_over, trainable
from shardbook.parameters.masters import FlatWithMasters
from shardbook.parameters.policy import Policy
from shardbook.parameters.waiting import Found, Watch

__all__ = ["FlatWithGradients"]
# sidelit: show


class FlatWithGradients(FlatWithMasters):
    """A flat vector of parameters, and their gradients."""

    def __init__(
        self, layout: Layout, parameters: dict[str, nn.Parameter], policy: Policy
    ) -> None:
        super().__init__(layout, parameters, offload=policy.offload)
        self.collects_in = policy.collects_in(layout.computes_in)
        self.sends_in = policy.sends_in(layout.computes_in)
        self.grad_full: Tensor | None = None
        self.sending: Tensor | None = None
        self.reducing: Mean | None = None
        # The parameters whose gradients `grad_full` has taken.
        self.arrived: set[int] = set()
        # Whether the next exchange includes this vector. Which parameters this rank has
        # used in the exchanges since [the ranks compared that](unused.py), and the
        # parts of the mean for those that it has not.
        self.due = False
        self.used: set[int] = set()
        self.unsure: dict[int, list[Tensor]] = {}
        # [Who watches](waiting.py) what is shown for gradients that wait for a later
        # exchange, and which of them were changed.
        self.held: dict[int, Watch] = {}
        self.changed: set[int] = set()

    def take(self, place: slice, *, apart: bool) -> None:
        """Lay the whole parameters over `full`, and hook each of them, so that its
        gradient is collected as soon as autograd has finished it.
        """
        super().take(place, apart=apart)
        # The hook belongs to the parameter. A hook on the node that accumulates the
        # gradient would die with that node, and then no gradient would ever arrive. The
        # garbage collector does not see hooks: if one referred to this vector, the two
        # would keep each other, and with them the shards.
        for index in range(len(self.whole)):
            collect = partial(FlatWithGradients.collect, weakref.proxy(self), index)
            self.after_gradient(index, collect)

    def after_gradient(self, index: int, act: Callable[[Tensor], None]) -> None:
        """Call `act` each time autograd has finished the gradient of a whole parameter,
        also if that [is trained only later](freezing.py).
        """
        if self.learns:
            with trainable(self.whole[index]):
                self.whole[index].register_post_accumulate_grad_hook(act)

    def use(self, whole: bool) -> None:
        """The modules begin or end to compute with the whole parameters, of which those
        [require gradients](freezing.py#carry_over) that do so in the model now.
        """
        super().use(whole)
        if self.learns and not self.precise:
            with as_plain():
                carry_over(self.parameters, self.whole, to_whole=whole)

    @property
    def trains(self) -> bool:
        """Whether any of the parameters requires a gradient now."""
        with as_plain():
            return any(parameter.requires_grad for parameter in self.parameters)

    @property
    def waits(self) -> bool:
        """Whether gradients were collected and not averaged yet."""
        return self.grad_full is not None

    def gradients(self) -> Tensor:
        """`grad_full`, taken from the allocator when the first gradient arrives."""
        if self.grad_full is None:
            # Uninitialised memory may hold NaN. The padding is sent with the rest, and
            # whoever takes a norm of the vector or looks for an overflow in it would
            # find that NaN. The other places are overwritten.
            # What waits [for other micro-batches](accumulate.py) is added up in FP32 at
            # least: in BF16 a sum of ones stops at 256.
            dtype = self.collects_in
            if self.holds:
                dtype = torch.promote_types(dtype, torch.float32)
            self.grad_full = torch.empty(
                self.layout.padded, dtype=dtype, device=self.device
            )
            ask_for_large_pages(self.grad_full)
            for start, stop in self.layout.gaps:
                self.grad_full[start:stop].zero_()
            self.arrived.clear()
        return self.grad_full

    @machinery()
    def collect(self, index: int, whole: Tensor) -> None:
        """Move one finished gradient into `grad_full`, and free it at once.

        A parameter can be reached by several backward passes before the reduction. The
        first one copies, the others add. A sparse gradient, as embeddings can have, is
        spread out, since the flat vector has a place for every element.
        """
        # PyTorch calls this also for a parameter that was frozen after the forward
        # pass.
        if whole.grad is None:
            return
        # Another branch of the model may collect on another stream.
        compute_stream(self.device)
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

    def place(self, index: int) -> Tensor:
        """The part of `grad_full` that belongs to parameter `index`, in that parameter's shape."""
        slot = self.layout.slots[index]
        return self.gradients()[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def send(self) -> None:
        """Prepare an exchange: put the gradients into the dtype in which they travel.

        From here on a gradient starts a new vector. A layer that is used again right
        away would otherwise add to the vector that is being sent, and the sum would
        reach some ranks and not others.
        """
        self.note_use()
        self.fill_missing_gradients()
        self.sending = self.gradients().to(self.sends_in)
        self.grad_full = None

    def fill_missing_gradients(self) -> None:
        """A parameter that the step did not use on this rank has the gradient zero here.

        Another rank may have used it, so its place takes part in the mean. Without this
        line the place would hold uninitialised memory.
        """
        self.gradients()
        for index in range(len(self.whole)):
            if index not in self.arrived:
                self.place(index).zero_()

    def reduce(self, groups: Groups) -> None:
        """Start the exchange of what is to be sent."""
        assert self.sending is not None
        self.reducing = groups.mean(self.sending)

    def receive(self, mean: Tensor) -> None:
        """End an exchange: keep the mean, and give back the vector that was sent.

        A thread of the backend may refer to that vector a moment longer. If this rank
        only dropped its own reference, chance would decide when the memory is free. To
        shrink the storage frees it now. The mean is never a view of it: in stage 0
        [it is copied out](replicate.py#Replicated.kept_mean).
        """
        assert self.sending is not None
        resize(self.sending, 0)
        self.reducing = self.sending = None
        with as_plain():
            self.accumulate(mean.to(self.layout.dtype))

    def accumulate(self, mean: Tensor) -> None:
        """Add the mean to the gradients of the model's parameters.

        To assign instead would keep only the last micro-batch. A user who called
        `zero_grad` has set the gradient to `None`, and then the mean itself becomes the
        gradient, without a copy.

        If this rank has not used a parameter, its part of the mean waits until it is
        known whether [another rank has](unused.py). The means of later exchanges then
        wait behind it, so that all ranks add them in the same order.
        """
        for index, part in enumerate(self.cut(mean)):
            if index in self.unsure or index not in self.used:
                self.unsure.setdefault(index, []).append(part)
            else:
                self.add(index, part)

    def add(self, index: int, part: Tensor) -> None:
        """Add a part of the mean to the gradient of parameter `index`."""
        parameter = self.parameters[index]
        if parameter.grad is None:
            # PyTorch counts the writes to all views of the mean together. `.data` gives
            # each gradient [a count of its own](waiting.py).
            parameter.grad = part.data
        else:
            parameter.grad += part

    # sidelit: depth Parameters that this rank has not used, and gradients that wait for a later exchange.

    def note_use(self) -> None:
        """Note which parameters this rank has used, before their gradients are sent."""
        for index in list(self.held):
            self.unhold(index)
        if self.waits:
            self.used |= self.arrived

    def decide(self, used: Container[int]) -> None:
        """Add the parts that have waited for parameters that some rank has used, and
        drop the others, so that these keep the gradient that they had, often `None`.
        """
        with as_plain():
            for index, parts in self.unsure.items():
                for part in parts if index in used else ():
                    self.add(index, part)
        self.unsure = {}
        self.used = set()
        self.due = False

    def add_zero(self) -> None:
        """Give each trainable parameter without a gradient the gradient zero."""
        with as_plain():
            for parameter in self.parameters:
                if parameter.grad is None and parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)

    @property
    def holds(self) -> bool:
        """Whether gradients wait for a later exchange, [in `no_sync`](accumulate.py)."""
        driver = self.driver()
        return driver is not None and not driver.conductor.syncing

    def hold(self, index: int) -> None:
        """Let `zero_grad` reach a gradient that waits for a later exchange.

        `zero_grad` knows only the model's own parameters. So [what these
        show](waiting.py#Watch) is watched. If it has been removed or set to zero by the
        time of the next gradient, the part that waits is dropped.
        """
        self.held[index] = Watch(self.parameters[index])

    def unhold(self, index: int) -> None:
        """Stop watching, and drop what waits if `zero_grad` has been called."""
        if index not in self.held:
            return
        found = self.held.pop(index).end(self.parameters[index])
        if found is Found.CHANGED:
            self.changed.add(index)
        elif found is Found.DROPPED:
            self.arrived.discard(index)
            self.changed.discard(index)

    # sidelit: core

    # sidelit: depth A backward pass that failed, and a model that a mesh repeats.

    def forget(self) -> None:
        """Drop the gradients of a backward pass that failed.

        An exchange under way still reads them, so it has to end first.
        """
        if self.reducing is not None:
            self.reducing.abandon()
        self.reducing = self.sending = self.grad_full = None
        self.decide(())
        for index in list(self.held):
            self.unhold(index)
        self.changed.clear()

    def sent(self) -> None:
        """Give back the vector that was sent. Its mean goes on [to the other
        copies](groups.py#Groups.mean) as a piece of it.
        """
        assert self.sending is not None
        resize(self.sending, 0)
