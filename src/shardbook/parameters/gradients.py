r"""# The gradients of a flat vector

> The gradients of a unit are collected in one vector, exchanged for their mean, and given to the optimizer.

Autograd finishes the gradients of a unit one after the other, each in a tensor of its
own. If each gradient were exchanged separately, there would be one message for each
parameter, and most messages would be small. This chapter collects the gradients in one
vector of $P_u$ elements, `grad_full`, which is laid out like [the parameters](flat.py).
One exchange then averages all of them. Afterwards the mean becomes the `.grad` of the
model's own parameters, where an optimizer reads it.

| moment | `grad_full` | `sending` | `parameters[i].grad` |
|---|---|---|---|
| a gradient is finished | holds the gradient | | |
| `send` | dropped | holds all gradients, in the dtype of the exchange | |
| `receive` | | dropped | the mean is added, unless [no rank has used the parameter](unused.py) |

:notation $P_u$: `padded`, the length of the vector with its padding
"""

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


class FlatWithGradients(FlatWithMasters):
    """A flat vector of parameters, and their gradients.

    :param layout: [the places](layout.py#Layout) of the parameters in the vector
    :param parameters: the model's parameters by name
    :param policy: [the dtypes](policy.py#Policy) of the gradients and of their exchange
    """

    def __init__(
        self, layout: Layout, parameters: dict[str, nn.Parameter], policy: Policy
    ) -> None:
        super().__init__(layout, parameters, offload=policy.offload)
        self.collects_in = policy.collects_in(layout.computes_in)
        self.sends_in = policy.sends_in(layout.computes_in)
        self.grad_full: Tensor | None = None
        self.sending: Tensor | None = None
        self.reducing: Mean | None = None
        # The indices of the parameters whose gradients are in `grad_full`.
        self.arrived: set[int] = set()
        # `due` says whether the next exchange includes this vector. `used` are the
        # parameters that this rank has used since [the ranks last compared
        # that](unused.py). `unsure` holds the parts of the mean for those that it has
        # not used.
        self.due = False
        self.used: set[int] = set()
        self.unsure: dict[int, list[Tensor]] = {}
        # [The watches](waiting.py) over gradients that are kept for a later exchange,
        # and the parameters whose gradients were changed meanwhile.
        self.held: dict[int, Watch] = {}
        self.changed: set[int] = set()

    def take(self, place: slice, *, apart: bool) -> None:
        """Make the whole parameters views into `full`, and set a hook on each of them.

        The hook collects a gradient as soon as autograd has finished it.
        """
        super().take(place, apart=apart)
        # The hook is set on the parameter. If it were set on the node that accumulates
        # the gradient, it would be lost with that node, and no gradient would ever
        # arrive. The hook refers to this vector weakly, because the garbage collector
        # cannot see hooks: with a strong reference the hook and the vector would keep
        # each other, and the shards, in memory.
        for index in range(len(self.whole)):
            collect = partial(FlatWithGradients.collect, weakref.proxy(self), index)
            self.after_gradient(index, collect)

    def after_gradient(self, index: int, act: Callable[[Tensor], None]) -> None:
        """Call a function each time autograd has finished the gradient of a whole
        parameter.

        The hook is also set on a parameter that is frozen now and [trained
        later](freezing.py).

        :param index: the index of the parameter
        :param act: the function, which is called with the whole parameter
        """
        if self.learns:
            with trainable(self.whole[index]):
                self.whole[index].register_post_accumulate_grad_hook(act)

    def use(self, whole: bool) -> None:
        """Record whether the modules compute with the whole parameters now.

        A whole parameter [requires a gradient](freezing.py#carry_over) if the model's
        own parameter does at this moment.
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
        """Whether gradients were collected and are not averaged yet."""
        return self.grad_full is not None

    def gradients(self) -> Tensor:
        """`grad_full`, which is allocated when the first gradient arrives."""
        if self.grad_full is None:
            # Uninitialised memory may hold NaN. The gradients overwrite their own
            # places, but not the padding, which is sent with them. A norm of the vector
            # or a search for overflows would find that NaN, so the padding is set to
            # zero.
            #
            # Gradients that are kept [for other micro-batches](accumulate.py) are added
            # up in FP32 or in a wider dtype, because in BF16 a sum of ones stops at
            # 256.
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

        Several backward passes may reach a parameter before its gradient is exchanged.
        The first one copies its gradient into `grad_full`, and the others add theirs. A
        sparse gradient, such as that of an embedding, is made dense, since the flat
        vector has a place for every element.
        """
        # PyTorch also calls this hook for a parameter that was frozen after the forward
        # pass.
        if whole.grad is None:
            return
        # Another branch of the model may collect its gradients on another stream.
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
        """Prepare an exchange: cast the gradients to the dtype of the exchange.

        From now on a gradient starts a new vector. Otherwise a layer that is used again
        right away would add to the vector that is being sent, and the sum would reach
        some ranks and not others.
        """
        self.note_use()
        self.fill_missing_gradients()
        self.sending = self.gradients().to(self.sends_in)
        self.grad_full = None

    def fill_missing_gradients(self) -> None:
        """Set the gradient to zero for parameters that this rank has not used in the
        step.

        Another rank may have used them, so their places take part in the mean. Without
        the zeros these places would hold uninitialised memory.
        """
        self.gradients()
        for index in range(len(self.whole)):
            if index not in self.arrived:
                self.place(index).zero_()

    def reduce(self, groups: Groups) -> None:
        """Start the exchange of the gradients in `sending`."""
        assert self.sending is not None
        self.reducing = groups.mean(self.sending)

    def receive(self, mean: Tensor) -> None:
        """End an exchange: keep the mean, and free the vector that was sent.

        A thread of the backend may refer to that vector a little longer. If this rank
        only dropped its own reference, the moment at which the memory is freed would
        vary. Shrinking the storage frees it now. The mean is never a view of the vector
        that was sent: in stage 0 [it is copied](replicate.py#Replicated.kept_mean).

        :param mean: this rank's part of the mean, in one dimension
        """
        assert self.sending is not None
        resize(self.sending, 0)
        self.reducing = self.sending = None
        with as_plain():
            self.accumulate(mean.to(self.layout.dtype))

    def accumulate(self, mean: Tensor) -> None:
        """Add the mean to the gradients of the model's parameters.

        If it replaced them instead, only the last micro-batch would count. After
        `zero_grad` the gradient is `None`, and then the mean itself becomes the
        gradient, without a copy.

        If this rank has not used a parameter, its part of the mean is kept until the
        rank knows whether [another one has](unused.py). The means of later exchanges
        are then kept, too, so that all ranks add them in the same order.
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

    # sidelit: depth Parameters that this rank has not used, and gradients kept for a later exchange.

    def note_use(self) -> None:
        """Record which parameters this rank has used, before their gradients are sent."""
        for index in list(self.held):
            self.unhold(index)
        if self.waits:
            self.used |= self.arrived

    def decide(self, used: Container[int]) -> None:
        """Add the parts of the mean that were kept for parameters that some rank has
        used.

        The other parts are dropped, so that their parameters keep the gradient that
        they had, often `None`.

        :param used: the indices of the parameters that some rank has used
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
        """Whether gradients are kept for a later exchange, [in `no_sync`](accumulate.py)."""
        driver = self.driver()
        return driver is not None and not driver.conductor.syncing

    def hold(self, index: int) -> None:
        """Watch a gradient that is kept for a later exchange, so that `zero_grad`
        reaches it.

        `zero_grad` sees only the `.grad` of the model's own parameters. So [a
        watch](waiting.py#Watch) is set on that. If the `.grad` has been removed or set
        to zero by the time of the next gradient, the kept gradient in `grad_full` is
        dropped.
        """
        self.held[index] = Watch(self.parameters[index])

    def unhold(self, index: int) -> None:
        """End the watch, and drop the kept gradient if `zero_grad` has been called."""
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
        """Free the vector that was sent, whose mean now goes on [to the other
        copies](groups.py#Groups.mean).
        """
        assert self.sending is not None
        resize(self.sending, 0)
