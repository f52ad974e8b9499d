r"""# Prefetching the next unit

> The conductor records the order in which the units run, and gathers each unit before it is needed.

Nothing tells the library in which order the units of a model run. The model's code
decides that: it may register its units in another order, run one of them twice, or skip
one. So the conductor records the order during the first forward pass. From the second
forward pass on, the record of the previous one tells which unit comes next. If the
order has changed, the results are still right, and the new order becomes the record for
the next forward pass.

A backward pass needs no record of its own. Autograd runs the forward pass in reverse,
so the unit whose forward pass ended last comes first.

:figure: timeline_prefetch
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from shardbook.foundations.exchange_order import Order
from shardbook.foundations.hook_context import in_backward, not_compiled
from shardbook.foundations.nesting import Nesting
from shardbook.guards.unowned import refuse_unowned_in
from shardbook.guards.unsupported import refuse_transforms
from shardbook.guards.wrappers import refuse_call_by_wrapper
from shardbook.zero.conductor import Conductor
from shardbook.zero.fresh_start import recover
from shardbook.zero.unit import State, Unit

__all__ = ["Prefetch", "PrefetchingConductor", "Route"]


class PrefetchingConductor(Conductor):
    """The conductor of a model whose units are prefetched in the order of their last
    run.

    :param order: [the check](exchange_order.py) that all ranks issue the same exchanges
    :param prefetch: how far ahead units are gathered
    """

    def __init__(self, order: Order, prefetch: Prefetch) -> None:
        super().__init__(order)
        self.prefetch = prefetch
        # The forward passes of the model itself that are under way.
        self.calls: Nesting[None] = Nesting()
        # There is one order for forward passes with gradients and one for those
        # without. The two may differ, for example if a model leaves units out in an
        # evaluation.
        self.orders: dict[bool, list[Unit]] = {True: [], False: []}
        self.grad = True
        self.route = self.back = Route()
        # The units whose forward pass has ended since the last backward pass.
        self.ended: list[Unit] = []
        self.warned = False

    def attach(self, model: nn.Module) -> None:
        """Set hooks around the model's forward passes; the last one also runs after an exception."""
        model.register_forward_pre_hook(not_compiled(self.model_begins), prepend=True)
        model.register_forward_hook(not_compiled(self.model_succeeds))
        model.register_forward_hook(not_compiled(self.model_ends), always_call=True)
        self.calls = Nesting(model)
        self.conduct(model)

    def model_begins(self, model: nn.Module, *_: Any) -> None:
        """Prepare a forward pass of the model. Units may still be whole from a step that failed."""
        if in_backward():
            return
        self.calls.begin(None)
        if len(self.calls) > 1:
            return
        refuse_call_by_wrapper(model)
        recover(self)
        self.grad = torch.is_grad_enabled()
        refuse_transforms("this model")
        # A process that trains alone may leave parameters out of every unit, because it
        # has no other ranks to differ from.
        if self.grad and self.order.meeting is not None:
            refuse_unowned_in(model)
        self.route = Route(self.orders[self.grad])
        self.order.begin("forward" if self.grad else "evaluation")

    def model_succeeds(self, *_: Any) -> None:
        """Keep the order of this forward pass for the next one.

        A forward pass that failed does not come here, and leaves the record as it was.
        """
        if not in_backward() and len(self.calls) == 1:
            missed = next(self.route.ahead(1), None)
            if missed is not None:
                self.warn(missed, "the pass ended")
            self.orders[self.grad] = self.route.seen

    def model_ends(self, *_: Any) -> None:
        """Free the units that were prefetched and did not run."""
        if in_backward():
            return
        self.calls.end()
        if not self.calls:
            self.release()

    def forward_begins(self, unit: Unit) -> None:
        """Start a forward pass of the unit alone, unless the model's forward pass is under way."""
        self.calls.forget_interrupted()
        if not self.calls:
            super().forward_begins(unit)

    def forward_began(self, unit: Unit) -> None:
        """Prefetch the units that run next, while this one computes.

        These gathers are queued before the unit's own computation, so on a GPU they
        wait only for earlier work.

        After a unit that runs outside of the model's forward pass nothing is gathered
        ahead. If it is called by itself, an optimizer may change the weights before
        the prefetched unit is used. If it is recomputed inside the backward pass,
        the unit that follows it in the forward pass has just been freed.
        """
        if not self.calls or in_backward():
            return
        expected = self.route.reach(unit)
        following = list(self.route.ahead(self.prefetch.depth))
        if expected is not None:
            self.warn(expected, f"{unit.name} ran")
            for other in self.drivers:
                if other.state is State.GATHERING and other not in following:
                    other.free()
        self.prefetch.start(following, self.drivers)

    def forward_ended(self, unit: Unit) -> None:
        """Record the order of the forward pass, which the backward pass reads from its end."""
        self.ended.append(unit)
        # After an evaluation with gradients enabled, no backward pass empties the list,
        # so its length is limited.
        del self.ended[: -MOST * len(self.drivers)]

    def backward_begins(self) -> None:
        """Expect the recorded units in reverse order, since the last backward pass only."""
        super().backward_begins()
        self.back, self.ended = Route(self.ended[::-1]), []

    def backward_began(self, unit: Unit) -> None:
        """Prefetch the units whose backward passes run next.

        A unit that expects no more backward passes is left out, because it would be
        gathered in vain.
        """
        self.back.reach(unit)
        following = [
            other
            for other in self.back.ahead(self.prefetch.depth)
            if self.drivers[other].expected
        ]
        self.prefetch.start(following, self.drivers)

    # sidelit: depth Units that run in another order than in the last forward pass.

    def warn(self, expected: Unit, instead: str) -> None:
        """Warn once that the order of the units changes.

        The results are right all the same, and the new order is the one that is
        expected next time. But a unit that is gathered in vain costs time.

        :param expected: the unit that was expected
        :param instead: what happened, for the message
        """
        # Without a prefetch nothing was gathered in vain, and stage 0 gathers nothing.
        if not self.warned and self.prefetch.depth and expected.stage:
            self.warned = True
            warnings.warn(
                f"the units run in another order than in the last forward pass: after "
                f"{self.route.seen[-2].name if len(self.route.seen) > 1 else 'the start'} "
                f"{expected.name} was expected, but {instead}; a unit that was "
                "gathered in vain costs time, so prefetch=0 may be faster",
                stacklevel=calls_from_outside(),
            )


# The largest number of forward passes of all units that are recorded for one backward
# pass.
MOST = 64


@dataclass(frozen=True, slots=True)
class Prefetch:
    """How far ahead units are gathered.

    One unit ahead is enough to hide a gather behind a computation that takes as long.
    Each further unit costs the memory of one more unit. With no limit at all every unit
    would be gathered at once, and stage 3 would save no memory.

    :param depth: the number of units; 0 gathers each unit when it is needed
    :param limit: the largest number of bytes that may be gathered ahead; `None` for no
        limit but the depth
    :raises ValueError: if the depth or the limit is negative
    """

    depth: int = 1
    limit: int | None = None

    def start(self, following: Iterable[Unit], units: Iterable[Unit]) -> None:
        """Gather the units that follow, as far as depth and limit allow.

        :param following: the units that come next, the nearest first
        :param units: all units of the model
        """
        on_the_way = [unit.nbytes for unit in units if unit.state is State.GATHERING]
        room = float("inf") if self.limit is None else self.limit - sum(on_the_way)
        for unit in following:
            if unit.state is State.SHARDED:
                room -= unit.nbytes
                # Ranks must gather in the same order. So a small unit does not overtake
                # a large one that has to wait.
                if room < 0:
                    return
                unit.gather()

    # sidelit: depth A depth or a limit that is negative or no whole number.

    def __post_init__(self) -> None:
        for name, value in (("depth", self.depth), ("limit", self.limit)):
            if value is not None and (type(value) is not int or value < 0):
                raise ValueError(
                    f"the {name} of a prefetch is {value!r}, but it must be a whole "
                    "number of at least 0"
                )


class Route:
    """An expected order of units, and the position that has been reached in it.

    >>> route = Route("abcb")
    >>> [route.reach(unit) for unit in "ab"], list(route.ahead(2))
    ([None, None], ['c', 'b'])
    """

    def __init__(self, expected: Sequence[Unit] = ()) -> None:
        self.expected = list(expected)
        self.seen: list[Unit] = []
        self.place = 0

    def reach(self, unit: Unit) -> Unit | None:
        """Record that a unit is in use, and move to its place in the expected order.

        After an unexpected unit, the position moves to the unit's next place in the
        order. A unit that has no place ahead changes nothing.

        >>> route = Route("abcd")
        >>> route.reach("a"), route.reach("c"), list(route.ahead(2))
        (None, 'b', ['d'])

        :returns: the unit that was expected, if it was another one
        """
        self.seen.append(unit)
        wanted = next(self.ahead(1), None)
        ahead = self.expected[self.place :]
        if unit in ahead:
            self.place += ahead.index(unit) + 1
        return None if unit == wanted else wanted

    def ahead(self, depth: int) -> Iterator[Unit]:
        """The next units of the expected order, at most `depth` of them."""
        return iter(self.expected[self.place : self.place + depth])


# sidelit: depth The line of the program that a warning names.


def calls_from_outside() -> int:
    """The number of calls between a warning and the program's own line, which the warning names."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(OURS):
        level, frame = level + 1, frame.f_back
    return level


OURS = ("shardbook.", "torch.")
