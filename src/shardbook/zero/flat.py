r"""# The flat vector

> A flat vector holds the parameters of a unit side by side, and a rank keeps all of it or its own part.

A unit stores its parameters in flat vectors, one for each kind of parameter, so that
one exchange moves many parameters. Each vector has three forms. `full` is the whole
vector of $P_u$ elements. `whole` are the parameters in their original shapes, as views
into `full`. And `shard` is what this rank keeps between uses, in most stages the $S_u$
elements of its own part. Under a 16-bit policy `full` holds [copies of the
masters](#Flat/master-weights). [The second half of this chapter](#Flat.gradients) adds
the gradients.

| when | what happens |
|---|---|
| the model is sharded | its parameters are [copied into `full`](#Flat), side by side |
| in stage 0 | this rank [keeps all of it](#Flat.keep_whole) |
| in the other stages | this rank [keeps its own part](#Flat.keep_part) |
| in all stages | the whole parameters become [views into `full`](#Flat.take) |
| | the model's own parameters become [views into `shard`](#Flat.point_at) |
| a forward or backward pass begins or ends | modules [begin or stop](#Flat.use) to compute with `whole` |
| values were loaded into `whole` | this rank [takes its part](#Flat.store) from `full` |
| an optimizer steps | the [version](#Flat.version) grows |

[Another chapter](whole_parameter.py#module/what-a-flat-vector-refuses) lists what a flat vector refuses.

No code in this chapter starts an exchange. [The unit](unit.py) decides when a vector is
filled and emptied, and [the stage](unit.py#Stage) decides how much of it a rank keeps.

:figure: unit_tensors
:notation $N_d$: `world_size`, the number of ranks that share the vector
:notation $P_u$: `padded`, the length of the vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part, $P_u / N_d$
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from shardbook.foundations.collectives import Mean, PendingGather, PendingPart
from shardbook.foundations.exchange_order import Order
from shardbook.foundations.layout import Layout, flatten, views
from shardbook.foundations.streams import ask_for_large_pages, compute_stream
from shardbook.foundations.torch_private import (
    Versions,
    as_plain,
    shares_storage,
    writes_to,
)
from shardbook.zero.offload import move_in, put_away
from shardbook.zero.policy import Policy
from shardbook.zero.waiting import Found, Watch
from shardbook.zero.whole_parameter import (
    OWNER,
    Whole,
    WritesInUse,
    carry_over,
    match,
    refuse_gradient,
    trainable,
)

if TYPE_CHECKING:
    from shardbook.zero.hooks import Hooks

__all__ = [
    "Flat",
    "flat_of",
    "is_sharded",
    "is_whole_form",
    "owner_of",
    "resize",
    "version_of",
]


class Flat:
    """One flat vector of a unit, with parameters of one dtype that are all trainable or
    all frozen when the model is sharded.

    After construction the vector is whole. [`keep_whole`](#Flat.keep_whole) or
    [`keep_part`](#Flat.keep_part) then chooses what this rank keeps.

    :param layout: [the places](layout.py#Layout) of the parameters in the vector
    :param parameters: the model's parameters by name
    :param policy: [the dtypes](policy.py#Policy) in which the parameters are computed
        with and their gradients are exchanged, and the place of the masters
    """

    def __init__(
        self, layout: Layout, parameters: dict[str, nn.Parameter], policy: Policy
    ) -> None:
        self.layout = layout
        self.gaps = layout.gaps
        self.parameters = tuple(parameters[slot.names[0]] for slot in layout.slots)
        # Whether its parameters can be trained, [now or
        # later](whole_parameter.py#module/freezing-and-unfreezing).
        self.learns = layout.dtype.is_floating_point
        # Whether the masters are stored in the host's memory, whether they have another
        # dtype than modules compute in, and whether modules therefore compute with a
        # copy of them.
        self.offloaded = policy.offload
        self.narrowed = layout.computes_in != layout.dtype
        self.converts = self.narrowed or self.offloaded
        # `full` and its parameters as they usually are, while `full` has the masters'
        # dtype.
        self.usual: tuple[Tensor, tuple[nn.Parameter, ...]] | None = None
        self.gathering: PendingGather | PendingPart | None = None
        # The number of optimizer steps and of loads.
        self.changes = 0
        # Whether an optimizer's step has removed [the guard](access.py) from the
        # slices.
        self.plain = False
        # [Whether a forward pass has
        # written](whole_parameter.py#module/what-a-flat-vector-refuses) to the whole
        # parameters.
        self.writes = WritesInUse()
        # [The order](exchange_order.py) of the unit's exchanges and [its
        # hooks](hooks.py), for code that has only a parameter.
        self.order: Order
        self.hooks: Callable[[], Hooks | None] = lambda: None
        self.collects_in = policy.collects_in(layout.computes_in)
        self.sends_in = policy.sends_in(layout.computes_in)
        self.grad_full: Tensor | None = None
        self.sending: Tensor | None = None
        self.reducing: Mean | None = None
        # The indices of the parameters whose gradients are in `grad_full`.
        self.arrived: set[int] = set()
        # `pending` says whether the next exchange includes this vector. `used` are the
        # parameters that this rank has used since [the ranks last compared
        # that](unused.py). `unsure` holds the parts of the mean for those that it has
        # not used.
        self.pending = False
        self.used: set[int] = set()
        self.unsure: dict[int, list[Tensor]] = {}
        # [The watches](waiting.py) over gradients that are kept for a later exchange,
        # and the parameters whose gradients were changed meanwhile.
        self.watches: dict[int, Watch] = {}
        self.changed: set[int] = set()
        # While a unit is copied, its parameters exist twice, in the model and in
        # `full`. Units are converted one by one, so this doubles the memory of one unit
        # at most.
        self.device = self.parameters[0].device
        self.full = torch.empty(layout.padded, dtype=layout.dtype, device=self.device)
        flatten(layout, [each.detach() for each in self.parameters], self.full)

    def keep_whole(self) -> None:
        """Keep the whole vector. Each of the model's parameters keeps its shape."""
        self.sliced = False
        self.take(slice(None), apart=False)
        self.point_at(
            (s.offset, s.offset + s.numel, s.shape) for s in self.layout.slots
        )

    def keep_part(self, rank: int, *, apart: bool) -> None:
        """Keep the part of one rank.

        Each of the model's parameters becomes the 1-D slice that falls into that part,
        often an empty one; if [none is cut](layout.py#Layout.shape_of), the whole
        parameter or nothing.

        :param rank: the index of this rank's part
        :param apart: whether the part is a vector of its own, so that `full` can be
            emptied, or a view into `full`
        """
        size = self.layout.shard_numel
        self.sliced = True
        self.take(slice(rank * size, (rank + 1) * size), apart=apart)
        pieces = [(slot, self.layout.piece(slot, rank)) for slot in self.layout.slots]
        self.point_at(
            (start, stop, self.layout.shape_of(slot, stop - start))
            for slot, (start, stop) in pieces
        )

    def take(self, place: slice, *, apart: bool) -> None:
        """Take `shard` from `full`, and make the whole parameters views into `full`.

        A hook on each of them collects a gradient as soon as autograd has finished it.

        :param place: the part of `full` that this rank keeps
        :param apart: whether `shard` is a copy, or a view into `full`
        """
        self.place_of_shard, self.shard = place, self.full[place]
        if self.converts:
            self.move_masters()
        elif apart:
            self.shard = self.shard.clone()
        for parameter in self.parameters:
            setattr(parameter, OWNER, weakref.ref(self))
        self.whole = self.parameters_in(self.full, trainable=self.layout.trainable)
        match(self.whole, self.parameters)
        # The hook is set on the parameter. If it were set on the node that accumulates
        # the gradient, it would be lost with that node, and no gradient would ever
        # arrive. The hook refers to this vector weakly, because the garbage collector
        # cannot see hooks: with a strong reference the hook and the vector would keep
        # each other, and the shards, in memory.
        for index in range(len(self.whole)):
            self.after_gradient(
                index, partial(Flat.collect, weakref.proxy(self), index)
            )

    def after_gradient(self, index: int, act: Callable[[Tensor], None]) -> None:
        """Call a function each time autograd has finished the gradient of a whole
        parameter.

        The hook is also set on a parameter that is frozen now and [trained
        later](whole_parameter.py#module/freezing-and-unfreezing).

        :param index: the index of the parameter
        :param act: the function, which is called with the whole parameter
        """
        if self.learns:
            with trainable(self.whole[index]):
                self.whole[index].register_post_accumulate_grad_hook(act)

    def parameters_in(
        self, full: Tensor, *, trainable: bool
    ) -> tuple[nn.Parameter, ...]:
        """The parameters in their original shapes, as views into a whole vector."""
        # PyTorch counts the writes to a tensor together with those to its views. Each
        # gather writes into `full`, and autograd would take that for a forbidden change
        # of the parameters. `.data` gives each view a count of its own.
        return tuple(
            nn.Parameter(view.data, requires_grad=trainable)
            for view in views(self.layout, full)
        )

    def point_at(self, places: Iterable[tuple[int, int, Sequence[int]]]) -> None:
        """Make the model's own parameters views into `shard`.

        They remain the same objects, so the names, the optimizer's groups, and all
        other references to them stay valid. If the slices were new objects,
        `AdamW(model.parameters())` would train parameters that no unit gathers, and no
        error would be raised.

        :param places: for each parameter its start and stop in `shard`, and its shape
        """
        self.places = tuple(places)
        for parameter, kept in zip(self.parameters, self.cut(self.shard), strict=True):
            parameter.data = kept
        self.refuse_gradients()

    def cut(self, kept: Tensor) -> list[Tensor]:
        """The parts of a vector that belong to the model's parameters.

        :param kept: a vector that is laid out like `shard`
        """
        return [kept[start:stop].view(shape) for start, stop, shape in self.places]

    def use(self, whole: bool) -> None:
        """Record whether the modules compute with the whole parameters now.

        A whole parameter [requires a gradient](whole_parameter.py#carry_over) if the
        model's own parameter does at this moment.
        """
        # A write to memory that this rank keeps is no write that is lost.
        if self.sliced or self.converts:
            self.writes.note(self.whole, begins=whole)
        if self.learns and self.usual is None:
            carry_over(self.parameters, self.whole, to_whole=whole)

    def store(self) -> None:
        """Take this rank's part from `full`, after values were loaded into it."""
        self.changes += 1
        if not shares_storage(self.shard, self.full):
            self.shard.copy_(self.full[self.place_of_shard])

    @property
    def version(self) -> int:
        """A number that grows each time the model's parameters are changed.

        PyTorch counts the writes to each tensor, even to an empty one, so all ranks
        have the same number. It does not count the writes of a fused optimizer, so each
        step of an optimizer is counted here, too.
        """
        with as_plain():
            return sum(Versions(*self.parameters), self.changes)

    # sidelit: depth A parameter that is used outside of its unit's forward pass.

    def refuse_gradients(self) -> None:
        """Set a hook on the model's own parameters that raises an error for each gradient."""
        # Autograd must deliver the gradients to `whole`, where they are collected.
        if self.learns:
            for slot, parameter in zip(self.layout.slots, self.parameters, strict=True):
                refuse = partial(refuse_gradient, slot.names[0])
                with trainable(parameter):
                    parameter.register_hook(refuse)

    # sidelit: core

    # ## Master weights
    #
    # > The optimizer trains FP32 parameters, and modules compute with 16-bit copies of them.
    #
    # One step of an optimizer changes a weight very little. BF16 keeps 8 significant bits, so
    # a change of less than a 512th of the weight is rounded away, and the weight never
    # changes. FP32 keeps such changes. But the matrix products of a forward pass do not need
    # so many digits, and in 16 bits they move half the bytes.
    #
    # So with a policy each parameter exists twice. The *master weights* are the parameters
    # that the optimizer trains and that are saved. They are stored in `shard`, in the dtype
    # that the model had when it was sharded. Modules compute with `full`, which has the dtype
    # [`param_dtype`](policy.py#Policy). Without a policy `full` has the masters' dtype, and
    # in stages 0 to 2 even the same memory.
    #
    # With a policy, `full` is made from the masters before each use. In stage 0 each rank
    # casts the whole vector, and nothing is exchanged. In the other stages each rank casts
    # its own part, and the ranks exchange the cast parts. In BF16 a gather then sends
    # $2\,P_u\,(N_d-1)/N_d$ bytes instead of $4\,P_u\,(N_d-1)/N_d$.
    #
    # The table shows the bytes that a unit stores for its parameters, if the masters are in
    # FP32 and the modules compute in BF16:
    #
    # | stage | masters | between uses | while it computes |
    # |---|---|---|---|
    # | 0 | $4\,P_u$ | $2\,P_u$ | $2\,P_u$ |
    # | 1, 2 | $4\,S_u$ | $2\,P_u$ | $2\,P_u$ |
    # | 3 | $4\,S_u$ | 0 | $2\,P_u$ |
    #
    # In stage 0 a policy costs memory. In stages 1 and 2 it saves memory if there are three
    # ranks or more. In stage 3 it halves the memory that a unit takes beside its masters
    # while it computes.
    #
    # Gradients have the dtype of the computation. They are exchanged in [the dtype of the
    # exchange](policy.py#Policy.sends_in) and afterwards cast to the masters' dtype. The mean
    # is formed in FP32, then rounded to the dtype of the exchange, and then cast. If the
    # means of several exchanges are added up, they are added in the masters' dtype.
    #
    # **Without masters.** Two other ways keep small changes in BF16. *Stochastic rounding*
    # rounds a change up or down at random, so that the mean is right: below 1 two BF16 numbers
    # are 0.0039 apart, and a change of 0.001 is then made in one step of four. *Kahan
    # summation* stores what the last rounding has lost in a second BF16 number, and adds it in
    # the next step. Both need 4 bytes or less for a weight, where masters with a 16-bit copy
    # need 6. This library has neither, because an ordinary optimizer would not use them.
    #
    # :figure: copies_and_dtypes

    def move_masters(self) -> None:
        """Move the masters out of `full`, and make a new `full` for the copies.

        Before this call `full` holds the values of the model. It is dropped before the
        new `full` is allocated. So in stage 3 a unit is cut with no more memory than
        without a policy. In the other stages the memory of either the masters or the
        copy is added.
        """
        if self.offloaded:
            self.shard = put_away(self.shard)
        elif self.sliced:
            self.shard = self.shard.clone()
        del self.full
        self.full = torch.empty(
            self.layout.padded, dtype=self.layout.computes_in, device=self.device
        )

    def piece(self) -> Tensor:
        """This rank's part in the dtype of the exchange between the ranks.

        The part is cast straight into its place in `full`. So the 16-bit part takes no
        memory of its own, and it exists as long as `full` does.
        """
        if not self.converts or shares_storage(self.full, self.shard):
            return self.shard
        place = self.full[self.place_of_shard]
        if self.offloaded:
            move_in(self.shard, place)
        else:
            place.copy_(self.shard)
        return place

    # sidelit: depth Blocks of `full_precision`, which compute with the masters themselves.

    def switch(self, precise: bool) -> bool:
        """Give `full` the masters' dtype, or its usual one again.

        :returns: whether anything has changed
        """
        if precise is (self.usual is not None):
            return False
        if self.usual is not None:
            (self.full, self.whole), self.usual = self.usual, None
            return True
        # The hooks that collect gradients belong to the usual parameters. So these are
        # kept, together with the vector under them.
        self.usual = self.full, self.whole
        if self.sliced or self.offloaded:
            self.full = torch.empty(
                self.layout.padded, dtype=self.layout.dtype, device=self.device
            )
        else:
            # A rank that keeps the whole vector has all of the masters already.
            self.full = self.shard
        # No gradient is computed with these parameters, so they need no hooks.
        self.whole = self.parameters_in(self.full, trainable=False)
        match(self.whole, self.parameters)
        return True

    # sidelit: core

    # ## The gradients of a flat vector
    #
    # > The gradients of a unit are collected in one vector, exchanged for their mean, and
    # > given to the optimizer.
    #
    # Autograd finishes the gradients of a unit one after the other, each in a tensor of its
    # own. If each gradient were exchanged separately, there would be one message for each
    # parameter, and most messages would be small. So the gradients are collected in one
    # vector of $P_u$ elements, `grad_full`, which is laid out like `full`. One exchange then
    # averages all of them. Afterwards the mean becomes the `.grad` of the
    # model's own parameters, where an optimizer reads it.
    #
    # | moment | `grad_full` | `sending` | `parameters[i].grad` |
    # |---|---|---|---|
    # | a gradient is finished | holds the gradient | | |
    # | `send` | dropped | holds all gradients, in the dtype of the exchange | |
    # | `receive` | | dropped | the mean is added, unless [no rank has used the parameter](unused.py) |

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
            if self.keeps:
                dtype = torch.promote_types(dtype, torch.float32)
            self.grad_full = torch.empty(
                self.layout.padded, dtype=dtype, device=self.device
            )
            ask_for_large_pages(self.grad_full)
            for start, stop in self.gaps:
                self.grad_full[start:stop].zero_()
            self.arrived.clear()
        return self.grad_full

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
        if index in self.watches:
            self.unwatch(index)
        if index in self.arrived:
            place.add_(gradient)
        else:
            place.copy_(gradient)
        self.arrived.add(index)
        whole.grad = None
        if self.keeps:
            self.watch(index)

    def place(self, index: int) -> Tensor:
        """The part of `grad_full` that belongs to parameter `index`, in that parameter's shape."""
        slot, full = self.layout.slots[index], self.grad_full
        if full is None:
            full = self.gradients()
        return full[slot.offset : slot.offset + slot.numel].view(slot.shape)

    def send(self) -> None:
        """Prepare an exchange: cast the gradients to the dtype of the exchange.

        From now on a gradient starts a new vector. Otherwise a layer that is used again
        right away would add to the vector that is being sent, and the sum would reach
        some ranks and not others.
        """
        self.note_use()
        if len(self.arrived) < len(self.whole) or self.grad_full is None:
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

    def receive(self, mean: Tensor) -> None:
        """End an exchange: keep the mean, and free the vector that was sent.

        A thread of the backend may refer to that vector a little longer. If this rank
        only dropped its own reference, the moment at which the memory is freed would
        vary. Shrinking the storage frees it now. The mean is never a view of the vector
        that was sent: in stage 0 [it is copied](unit.py#Unit.whole_mean).

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
        for index in list(self.watches):
            self.unwatch(index)
        if self.grad_full is not None:
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
        self.pending = False

    def add_zero(self) -> None:
        """Give each trainable parameter without a gradient the gradient zero."""
        with as_plain():
            for parameter in self.parameters:
                if parameter.grad is None and parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)

    @property
    def keeps(self) -> bool:
        """Whether gradients are kept for a later exchange, [in `no_sync`](accumulate.py)."""
        hooks = self.hooks()
        return hooks is not None and not hooks.scheduler.syncing

    def watch(self, index: int) -> None:
        """Watch a gradient that is kept for a later exchange, so that `zero_grad`
        reaches it.

        `zero_grad` sees only the `.grad` of the model's own parameters. So [a
        watch](waiting.py#Watch) is set on that. If the `.grad` has been removed or set
        to zero by the time of the next gradient, the kept gradient in `grad_full` is
        dropped.
        """
        self.watches[index] = Watch(self.parameters[index])

    def unwatch(self, index: int) -> None:
        """End the watch, and drop the kept gradient if `zero_grad` has been called."""
        found = self.watches.pop(index).end(self.parameters[index])
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
        for index in list(self.watches):
            self.unwatch(index)
        self.changed.clear()

    def sent(self) -> None:
        """Free the vector that was sent, whose mean now goes on [to the other
        copies](collectives.py#Groups.mean).
        """
        assert self.sending is not None
        resize(self.sending, 0)


def resize(tensor: Tensor, numel: int) -> None:
    """Give the storage under `tensor` the size of `numel` elements.

    Every view of the storage stays a view of it, so no reference to the vector has to
    change. Memory that [was lent to another library](demand.py#refuse_arrays) keeps its
    size.
    """
    storage = tensor.untyped_storage()
    if storage.resizable():
        storage.resize_(numel * tensor.element_size())
        if numel:
            ask_for_large_pages(tensor)


# sidelit: depth Guards that have only a parameter, and need its vector, its kind or its version.


def is_sharded(parameter: Tensor) -> bool:
    """Whether a parameter already belongs to a unit."""
    return hasattr(parameter, OWNER)


def flat_of(parameter: Tensor) -> Flat | None:
    """The vector of one of the model's own parameters, or of a whole parameter."""
    owner: Flat | None = getattr(parameter, OWNER, lambda: None)()
    return owner


def owner_of(parameter: Tensor) -> Flat | None:
    """The vector to which one of the model's own parameters belongs, or `None`."""
    return None if is_whole_form(parameter) else flat_of(parameter)


def is_whole_form(parameter: Tensor) -> bool:
    """Whether this is a whole parameter of a unit, and not one of the model's own."""
    if isinstance(parameter, Whole):
        return True
    flat = flat_of(parameter)
    return flat is not None and any(parameter is whole for whole in flat.whole)


def version_of(value: Tensor) -> int:
    """A number that grows each time a tensor's values are changed.

    A whole parameter changes whenever the model's own parameter does, and PyTorch
    counts no write to it then.
    """
    flat = flat_of(value) if is_whole_form(value) else None
    return writes_to(value) + (flat.version if flat is not None else 0)
