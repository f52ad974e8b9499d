r"""# The flat vector

> A flat vector holds the parameters of a unit side by side, and a rank keeps all of it or its own part.

A unit stores its parameters in flat vectors, one for each kind of parameter, so that
one exchange moves many parameters. Each vector has three forms. `full` is the whole
vector of $P_u$ elements. `whole` are the parameters in their original shapes, as views
into `full`. And `shard` is what this rank keeps between uses, in most stages the $S_u$
elements of its own part. [The next chapter](gradients.py) adds the gradients.

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

[Another chapter](flat_checks.py) lists what a flat vector refuses.

No code in this chapter communicates. [The unit](unit.py) decides when a vector is
filled and emptied, and [the stage](replicate.py) decides how much of it a rank keeps.

:figure: unit_tensors
:notation $N_d$: `world_size`, the number of ranks that share the vector
:notation $P_u$: `padded`, the length of the vector with its padding
:notation $S_u$: `shard_numel`, the length of one rank's part, $P_u / N_d$
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.foundations.collectives import PendingGather
from shardbook.foundations.exchange_order import Order
from shardbook.foundations.huge_pages import ask_for_large_pages
from shardbook.foundations.layout import Layout, flatten, shares_storage, views
from shardbook.foundations.torch_private import as_plain
from shardbook.foundations.versions import Versions, writes_to
from shardbook.parameters.flat_checks import WritesInUse, refuse_gradient
from shardbook.parameters.freezing import trainable
from shardbook.parameters.whole_form import OWNER, Whole, match

__all__ = [
    "Flat",
    "flat_of",
    "is_resizable",
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
    """

    def __init__(self, layout: Layout, parameters: dict[str, nn.Parameter]) -> None:
        self.layout = layout
        self.parameters = tuple(parameters[slot.names[0]] for slot in layout.slots)
        self.gathering: PendingGather | None = None
        # The number of optimizer steps and of loads.
        self.changes = 0
        # Whether an optimizer's step has removed [the guard](access.py) from the
        # slices.
        self.plain = False
        # [Whether a forward pass has written](flat_checks.py) to the whole parameters.
        self.writes = WritesInUse()
        # [The order](exchange_order.py) of the unit's exchanges and [its
        # hooks](hooks.py), for code that has only a parameter.
        self.order: Order
        self.driver: Callable[[], Any] = lambda: None
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

        :param place: the part of `full` that this rank keeps
        :param apart: whether `shard` is a copy, or a view into `full`
        """
        self.place_of_shard, self.shard = place, self.full[place]
        if apart:
            self.shard = self.shard.clone()
        for parameter in self.parameters:
            setattr(parameter, _OWNER, weakref.ref(self))
        self.whole = self.parameters_in(self.full, trainable=self.layout.trainable)
        match(self.whole, self.parameters)

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
        """Record whether the modules compute with the whole parameters now."""
        self.writes.note(self.whole, begins=whole)

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
            return self.changes + sum(Versions(*self.parameters))

    @property
    def learns(self) -> bool:
        """Whether its parameters can be trained, [now or later](freezing.py)."""
        return self.layout.dtype.is_floating_point

    @property
    def waits(self) -> bool:
        """Whether gradients were collected and not averaged yet."""
        return False

    # sidelit: depth A parameter that is used outside of its unit's forward pass.

    def refuse_gradients(self) -> None:
        """Set a hook on the model's own parameters that raises an error for each gradient."""
        # Autograd must deliver the gradients to `whole`, where they are collected.
        if self.learns:
            for slot, parameter in zip(self.layout.slots, self.parameters, strict=True):
                refuse = partial(refuse_gradient, slot.names[0])
                with trainable(parameter):
                    parameter.register_hook(refuse)


# A parameter refers to its vector through this attribute. The reference is weak. A
# circle of strong references would keep an unused model in memory until the garbage
# collector runs.
_OWNER = OWNER


def resize(tensor: Tensor, numel: int) -> None:
    """Give the storage under `tensor` the size of `numel` elements.

    Every view of the storage stays a view of it, so no reference to the vector has to
    change. Memory that [was lent to another library](views.py#refuse_arrays) keeps its
    size.
    """
    if is_resizable(tensor):
        tensor.untyped_storage().resize_(numel * tensor.element_size())
        ask_for_large_pages(tensor)


def is_resizable(tensor: Tensor) -> bool:
    """Whether PyTorch may give the memory of a tensor back."""
    return tensor.untyped_storage().resizable()


# sidelit: depth Guards that have only a parameter, and need its vector, its kind or its version.


def is_sharded(parameter: Tensor) -> bool:
    """Whether a parameter already belongs to a unit."""
    return hasattr(parameter, _OWNER)


def flat_of(parameter: Tensor) -> Flat | None:
    """The vector of one of the model's own parameters, or of a whole parameter."""
    owner: Flat | None = getattr(parameter, _OWNER, lambda: None)()
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
