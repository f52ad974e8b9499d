r"""# The order of the exchanges

> The scheduler starts each exchange early, so that it runs while another unit computes.

A rank that gathers a unit only when it needs it has nothing to compute until the unit
is whole. But the order of a model's units is known. So each unit can be gathered one
step early, while the unit before it still computes. In the same way its gradients can
be exchanged while the next unit computes its own. In stage 3, with two units A and B:

| | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
|---|---|---|---|---|---|---|---|
| compute | | forward A | forward B | | backward B | backward A | |
| gather | A | B | | B | A | | |
| reduce | | | | | | B | A |

A *scheduler* holds what the units of one model share: the exchange in flight and the
backward passes under way. The hooks of each unit call it at these moments:

| when | what the scheduler does |
|---|---|
| a unit is called outside of the model | [starts](#Scheduler.forward_begins) a forward pass of its own |
| a backward pass reaches a unit | [adds](#Scheduler.open) it, and registers a callback for the end |
| a unit's gradients are complete | [decides](#Scheduler.reduce) when they are exchanged |
| then, or at the end | [starts the exchange](#Scheduler.exchange), after the one before is complete |
| the backward pass ends | [closes the units](#Scheduler.backward_ended) that were reached |
| | [exchanges](#Scheduler.settle) what is still due, and [waits](#Scheduler.complete) for it |
| | [frees](#Scheduler.release) units that were prefetched in vain |

The scheduler also gathers units [before they are
needed](#module/prefetching-the-next-unit). And before a new pass begins, it [clears
up](#module/clearing-up-before-the-next) what a failed pass has left.

All ranks run the same program, so they issue the same exchanges in the same order, and
each exchange meets its partners. [A check](exchange_order.py) makes sure of that.
"""

from __future__ import annotations

import sys
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import nn

from shardbook.foundations.exchange_order import Order
from shardbook.foundations.hook_context import (
    Nesting,
    in_backward,
    machinery,
    not_compiled,
)
from shardbook.foundations.streams import compute_stream
from shardbook.foundations.torch_private import at_end_of_backward, graph_task
from shardbook.zero.demand import take_away, take_interrupted_away
from shardbook.zero.flat import is_sharded
from shardbook.zero.optimizer_guard import Ending, only_failed, refuse_copies_of
from shardbook.zero.refusals import (
    refuse_call_by_wrapper,
    refuse_transforms,
    refuse_unowned_in,
)
from shardbook.zero.unit import (
    BUNDLE,
    Bundle,
    State,
    Unit,
    bundles,
    gather_together,
    gathered_alike,
    reduced_alike,
)
from shardbook.zero.unused import Usage
from shardbook.zero.whole_parameter import changed_since_sharding

if TYPE_CHECKING:
    from shardbook.zero.hooks import Hooks, Use

__all__ = [
    "Prefetch",
    "Route",
    "Scheduler",
    "calls_from_outside",
    "clear_away",
    "forget_failed",
    "recover",
    "scheduler_of",
    "start_alone",
]


class Scheduler:
    """The part that all units of a model share: which unit gathers next, the exchanges in
    flight, and the end of backward.

    :param order: [the check](exchange_order.py) that all ranks issue the same exchanges
    :param prefetch: how far ahead units are gathered
    """

    # There is one first exchange of a mean in flight for the whole program, even if it
    # trains several models.
    in_flight: ClassVar[Unit | Bundle | None] = None
    # Units whose gradients are averaged over one copy of the model, and [are now
    # averaged over the other copies](collectives.py#Groups.mean).
    going_on: ClassVar[list[Unit | Bundle]] = []

    def __init__(self, order: Order, prefetch: Prefetch) -> None:
        self.order = order
        # The hooks of each unit of the model.
        self.units: dict[Unit, Hooks] = {}
        # The thread in which a unit's last forward pass has begun.
        self.thread: int | None = None
        self.modules: set[nn.Module] = set()
        # The backward passes under way, each with the units that it has reached. There
        # can be more than one, because activation checkpointing may run a backward pass
        # inside another.
        self.passes: dict[int, list[Hooks]] = {}
        # The backward passes that [have
        # failed](optimizer_guard.py#module/interrupted-forward-and-backward-passes).
        self.failed: set[int] = set()
        # Whether gradients are exchanged at the end of this backward pass, or kept for
        # the next micro-batch.
        self.syncing = True
        # `late` are units whose exchange is due at the end of this backward pass, `kept`
        # those whose gradients are kept for a later one. Dictionaries serve as ordered
        # sets. Of units that [wait for others](#Scheduler.reduce_together), `late` holds
        # the bytes of their gradients, too.
        self.late: dict[Unit, int] = {}
        self.kept: dict[Unit, None] = {}
        # Whether any gradients were kept since the ranks last [compared](unused.py)
        # which parameters they had used.
        self.waited = False
        # The units that have exchanged gradients in this backward pass, in order.
        self.exchanged: dict[Unit, None] = {}
        # Whether parameters that [no rank has used](unused.py) get the gradient zero.
        self.unused_get_zero = False
        # The version of each unit's parameters when a forward pass last asked for it.
        self.versions: dict[Unit, int | None] = {}
        self.prefetch = prefetch
        # The forward passes of the model itself that are under way.
        self.calls: Nesting[None] = Nesting()
        # There is one order for forward passes with gradients and one for those
        # without. The two may differ, for example if a model leaves units out in an
        # evaluation.
        self.orders: dict[bool, list[Unit]] = {True: [], False: []}
        self.grad: bool
        self.route: Route
        self.back: Route
        # The units whose forward pass has ended since the last backward pass. After an
        # evaluation with gradients enabled, no backward pass empties the record, so its
        # length is limited.
        self.ended: deque[Unit] = deque(maxlen=MOST)
        self.warned = False

    def add(self, hooks: Hooks) -> None:
        """Add the hooks of one more unit."""
        self.units[hooks.unit] = hooks
        self.modules.add(hooks.module)

    def attach(self, model: nn.Module) -> None:
        """Set hooks around the model's forward passes; the last one also runs after an exception.

        From then on [`scheduler_of`](#scheduler_of) finds this scheduler by its model.
        """
        model.register_forward_pre_hook(not_compiled(self.model_begins), prepend=True)
        model.register_forward_hook(not_compiled(self.model_succeeds))
        model.register_forward_hook(not_compiled(self.model_ends), always_call=True)
        self.calls = Nesting(model)
        setattr(model, _SCHEDULER, self)
        refuse_copies_of(model)

    def model_begins(self, model: nn.Module, *_: object) -> None:
        """Prepare a forward pass of the model. Units may still be whole from a step that failed."""
        if in_backward():
            return
        self.calls.begin(None)
        if len(self.calls.calls) > 1:
            return
        refuse_call_by_wrapper(model)
        recover(self)
        self.grad = torch.is_grad_enabled()
        refuse_transforms("this model")
        # A process that trains alone may leave parameters out of every unit, because it
        # has no other ranks to differ from.
        if self.grad and self.order.rendezvous is not None:
            refuse_unowned_in(model)
        self.route = Route(self.orders[self.grad])
        self.order.begin("forward" if self.grad else "evaluation")

    def model_succeeds(self, *_: object) -> None:
        """Keep the order of this forward pass for the next one.

        A forward pass that failed does not come here, and leaves the record as it was.
        """
        if not in_backward() and len(self.calls.calls) == 1:
            missed = next(self.route.ahead(1), None)
            if missed is not None:
                self.warn(missed, "the pass ended", self.route.seen)
            self.orders[self.grad] = self.route.seen

    def model_ends(self, *_: object) -> None:
        """Free the units that were prefetched and did not run."""
        if in_backward():
            return
        self.calls.end()
        if not self.calls.calls:
            self.release()

    def forward_begins(self, unit: Unit) -> None:
        """Start a forward pass of the unit alone, unless the model's forward pass is under way.

        A unit that is called outside of the model gathers again, [as in a forward pass
        of the model](#recover), because its parameters may have changed.
        """
        if self.calls.calls:
            self.calls.forget_interrupted()
        if self.calls.calls or in_backward():
            return
        start_alone(self, unit)
        self.order.begin(f"separate {unit.name.removeprefix('the ')}")

    def forward_began(self, unit: Unit) -> None:
        """Prefetch the units that run next, while this one computes.

        These gathers are queued before the unit's own computation, so on a GPU they
        wait only for earlier work.

        After a unit that runs outside of the model's forward pass nothing is gathered
        ahead. If it is called by itself, an optimizer may change the weights before
        the prefetched unit is used. If it is recomputed inside the backward pass,
        the unit that follows it in the forward pass has just been freed.
        """
        if not self.calls.calls or in_backward():
            return
        expected = self.route.reach(unit)
        following = list(self.route.ahead(self.prefetch.depth, self.prefetch.together))
        if expected is not None:
            self.warn(expected, f"{unit.name} ran", self.route.seen[:-1])
            for other in self.units:
                if other.state is State.GATHERING and other not in following:
                    other.free()
        self.prefetch.start(following, self.units)

    def open(self, hooks: Hooks, number: int) -> None:
        """Add a unit to the current backward pass, and register a callback for the end.

        :param hooks: the hooks of the unit
        :param number: the number of the node that is about to run; units that have only
            younger nodes have ended
        """
        task = graph_task()
        if self.failed:
            forget_failed(self)
        # Gradients that wait are added up in the dtype of the exchange, and means in that
        # of the masters. So a unit that runs again is exchanged first.
        if hooks.unit in self.late and hooks.unit.splits.gradients:
            self.reduce_waiting()
        for other in self.passes.get(task, ()):
            # Suppose three layers read the same input. The gradient of that input is
            # complete only when the last of the three has run, and until then all three
            # units would stay whole. But when the backward pass reaches a node that is
            # older than all nodes of a layer, this layer has ended, so its unit is freed
            # here.
            use = other.backward_use
            if use is not None and use.start > number and other is not hooks:
                other.after_backward(use)
        if not self.passes:
            kind = "backward" if self.syncing else "accumulating backward"
            self.order.begin(changed_since_sharding(self.units) + kind)
            self.exchanged.clear()
            # The units are expected in the reverse order of their forward passes.
            self.back = Route(list(reversed(self.ended)))
            self.ended.clear()
        if task not in self.passes:
            self.passes[task] = []
            at_end_of_backward(Ending(self, task))
        if hooks not in self.passes[task]:
            self.passes[task].append(hooks)

    def backward_began(self, unit: Unit, use: Use) -> None:
        """Prefetch the units whose backward passes run next, once this unit has stored
        its first gradient.

        Before that moment the memory holds the gradients of outputs beside those of
        parameters, and for a large last layer it is at its highest. One more unit would
        raise this peak. A unit that stores no gradient prefetches when its own backward
        pass ends. A unit that expects no more backward passes is left out, because it
        would be gathered in vain.
        """
        use.to_prefetch = False
        self.back.reach(unit)
        following = [
            other
            for other in self.back.ahead(self.prefetch.depth, self.prefetch.together)
            if self.units[other].expected
        ]
        self.prefetch.start(following, self.units)

    def reduce(self, unit: Unit) -> None:
        """Exchange a unit's complete gradients now, or mark them for later.

        Gradients of a micro-batch [that is not exchanged](accumulate.py) are kept.
        [Stages 0 and 1](unit.py#module/stage-0) exchange theirs at the end of the backward pass.
        """
        for flat in unit.trainable:
            flat.pending = flat.pending or flat.trains
        if not self.syncing:
            self.kept[unit] = None
            self.waited = True
        elif not unit.splits.gradients:
            self.late[unit] = 0
        elif not self.prefetch.together:
            self.exchange(unit)
        elif unit not in self.late:
            self.reduce_together(unit)

    def reduce_together(self, unit: Unit) -> None:
        """Keep the gradients of [small units](#Prefetch) until those of the next one no
        longer fit into the same exchange.

        Until then they take memory that a unit exchanged by itself has given back.
        """
        if not unit.pending:
            # All of its parameters are frozen.
            self.exchanged[unit] = None
            return
        kind, nbytes = reduced_alike(unit)
        room = self.prefetch.together - nbytes
        if self.late:
            first, _ = reduced_alike(next(iter(self.late)))
            if kind != first or sum(self.late.values()) > room:
                self.reduce_waiting()
        if kind is None or room < 0:
            self.exchange(unit)
        else:
            self.late[unit] = nbytes

    def reduce_waiting(self) -> None:
        """Exchange the gradients that wait for others in stages 2 and 3."""
        self.exchange(*self.late)
        self.late.clear()

    def exchange(self, *units: Unit) -> None:
        """Reduce the gradients of a unit, or of [small ones together](unit.py#Bundle), after
        the exchange before has been completed.

        So the whole gradients of at most one exchange are on their way. Without this limit, a rank that
        computes faster than it exchanges would hold the gradients of all units at once.
        """
        self.advance()
        if any(flat.reducing for unit in units for flat in unit.trainable):
            self.complete()
        for unit in units:
            # Functions in `after_reduce` act on a mean as soon as it arrives. They need to
            # know by then which parameters were used, so the unit compares that for itself.
            if unit.after_reduce and unit.usage is None:
                unit.usage = Usage([unit], self)
            self.exchanged[unit] = None
            self.kept.pop(unit, None)
        first, *others = units
        exchange = Bundle(units) if others else first
        exchange.reduce()
        Scheduler.in_flight = exchange

    def advance(self) -> None:
        """Wait for the exchange in flight, and start the next one of each unfinished
        mean.

        On a mesh of two dimensions, a mean takes three exchanges, and in the second and the
        third a rank sends fewer bytes than in the first. Each exchange has the time of one
        unit's backward pass to arrive.
        """
        first, Scheduler.in_flight = Scheduler.in_flight, None
        units, Scheduler.going_on = Scheduler.going_on, []
        units += [] if first is None else [first]
        Scheduler.going_on = [unit for unit in units if unit.advance()]

    def complete(self) -> None:
        """Wait for all exchanges of gradients that are in flight."""
        while Scheduler.in_flight or Scheduler.going_on:
            self.advance()

    @machinery
    def backward_ended(self, task: int) -> None:
        """Close every unit that a backward pass has reached, and exchange what is still
        due.

        When the call of `backward` returns, the optimizer may step, unless gradients
        [are kept](accumulate.py) for another micro-batch. The units are closed in the
        order in which they were reached, which is the same on every rank. If this
        function raises an error, the backward pass [has
        failed](optimizer_guard.py#module/interrupted-forward-and-backward-passes).

        :param task: autograd's number of the backward pass
        """
        for hooks in self.passes[task]:
            hooks.close()
        outermost = len(self.passes) == 1
        if outermost:
            self.settle()
        self.complete()
        self.release()
        # The current stream is that of the caller of `backward`, which uses the
        # gradients next.
        compute_stream(next(iter(self.units)).home)
        if outermost:
            # If a rank left out the last unit, it would meet no other exchange until the
            # next forward pass, and its optimizer would have stepped by then. So the end
            # of a backward pass has a place in the order, too.
            self.order.before("end", "", "")
        del self.passes[task]

    def settle(self) -> None:
        """Exchange what is still due at the end of a backward pass.

        A unit that only an earlier micro-batch has used is due, too. Afterwards the
        ranks know [which parameters no rank has used](unused.py).
        """
        if not self.syncing:
            return
        usage = Usage.at_the_end(self)
        late = usage.late
        for units in bundles(late, BUNDLE, reduced_alike) if late else ():
            self.exchange(*units)
        self.late.clear()
        self.complete()
        usage.settle()
        self.waited = False
        if self.unused_get_zero:
            for unit in self.units:
                if unit not in self.exchanged:
                    unit.add_zero()

    def release(self) -> None:
        """Free units that were prefetched and then not used."""
        for unit in self.units:
            if unit.state is State.GATHERING:
                unit.free()

    # sidelit: depth Units that run in another order than in the last forward pass.

    def warn(self, expected: Unit, instead: str, before: Sequence[Unit]) -> None:
        """Warn once that the order of the units changes.

        The results are right all the same, and the new order is the one that is
        expected next time. But a unit that is gathered in vain costs time.

        :param expected: the unit that was expected
        :param instead: what happened, for the message
        :param before: the units that had run before
        """
        # Without a prefetch nothing was gathered in vain, and stage 0 gathers nothing.
        if not self.warned and self.prefetch.depth and expected.stage:
            self.warned = True
            warnings.warn(
                f"the units run in another order than in the last forward pass: after "
                f"{before[-1].name if before else 'the start'} "
                f"{expected.name} was expected, but {instead}; a unit that was "
                "gathered in vain costs time, so prefetch=0 may be faster",
                stacklevel=calls_from_outside(),
            )

    # sidelit: core

    # sidelit: depth Exchanges of a backward pass that failed, for which the next exchange must not wait.

    @staticmethod
    def give_up_exchanges() -> None:
        """Forget the exchanges in flight, [after a failure](#forget)."""
        Scheduler.in_flight = None
        Scheduler.going_on = []


_SCHEDULER = "_shardbook_scheduler"


# sidelit: depth Models that are not sharded, are part of one that is, or have parts sharded separately.


def scheduler_of(model: nn.Module) -> Scheduler:
    """The scheduler of a sharded model.

    :raises ValueError: if the model is not sharded, is only a part of a sharded model,
        or its parts were sharded separately
    :raises TypeError: if it is no module
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"pass the model itself, not a {type(model).__name__}")
    found = [vars(module).get(_SCHEDULER) for module in model.modules()]
    schedulers = [one for one in found if isinstance(one, Scheduler)]
    name = type(model).__name__
    if not schedulers and any(map(is_sharded, model.parameters())):
        raise ValueError(
            f"this {name} is a part of a sharded model; pass the model that shard returned"
        )
    if not schedulers:
        raise ValueError(f"this {name} is not sharded; call shard(model) first")
    first, *others = schedulers
    if others:
        raise ValueError(
            f"{len(schedulers)} parts of this {name} were sharded apart; "
            "call shard once, on the whole model"
        )
    return first


# sidelit: core


# ## Prefetching the next unit
#
# > The scheduler records the order in which the units run, and gathers each unit before it is needed.
#
# Nothing tells the library in which order the units of a model run. The model's code
# decides that: it may register its units in another order, run one of them twice, or skip
# one. So the scheduler records the order during the first forward pass. From the second
# forward pass on, the record of the previous one tells which unit comes next. If the
# order has changed, the results are still right, and the new order becomes the record for
# the next forward pass.
#
# A backward pass needs no record of its own. Autograd runs the forward pass in reverse,
# so the unit whose forward pass ended last comes first.
#
# :figure: timeline_prefetch


# The most forward passes of units that are recorded for one backward pass.
MOST = 16_384


@dataclass(frozen=True, slots=True)
class Prefetch:
    """How far ahead units are gathered.

    One unit ahead is enough to hide a gather behind a computation that takes as long.
    Each further unit costs the memory of one more unit. With no limit at all every unit
    would be gathered at once, and stage 3 would save no memory.

    In a model of many small units, most of a step goes into exchanges. With `together`, a
    unit takes the small ones that follow [along](unit.py#gather_together) in its own
    exchange. They are then whole earlier than the depth asks for. In stages 2 and 3 their
    gradients [wait for each other](#Scheduler.reduce_together) in the same way.

    :param depth: the number of units; 0 gathers each unit when it is needed
    :param limit: the largest number of bytes that may be gathered ahead; `None` for no
        limit but the depth
    :param together: the most bytes of units that are gathered, or reduced, in one
        exchange; 0 exchanges each unit by itself
    :raises ValueError: if one of them is negative
    """

    depth: int = 1
    limit: int | None = None
    together: int = 0

    def start(self, following: Iterable[Unit], units: Iterable[Unit]) -> None:
        """Gather the units that follow, as far as depth and limit allow.

        :param following: the units that come next, the nearest first
        :param units: all units of the model
        """
        room = float("inf")
        if self.limit is not None:
            on_the_way = (u.nbytes for u in units if u.state is State.GATHERING)
            room = self.limit - sum(on_the_way)
        # The units to gather, and whether each is within the depth.
        due: dict[Unit, bool] = {}
        for place, unit in enumerate(following):
            if place >= self.depth and not (due and self.together):
                break
            if unit.filled and unit.state is State.SHARDED and unit not in due:
                if self.limit is not None:
                    room -= unit.nbytes
                # Ranks must gather in the same order. So a small unit does not overtake
                # a large one that has to wait.
                if room < 0:
                    break
                due[unit] = place < self.depth
        if not self.together:
            for unit in due:
                unit.gather()
            return
        for group in bundles(due, self.together, gathered_alike):
            if due[group[0]]:
                gather_together(group)

    # sidelit: depth A depth or a number of bytes that is negative or no whole number.

    def __post_init__(self) -> None:
        for name in ("depth", "limit", "together"):
            value = getattr(self, name)
            if name == "limit" and value is None:
                continue
            if type(value) is not int or value < 0:
                raise ValueError(
                    f"the {name} of a prefetch is {value!r}, but it must be a whole "
                    "number of at least 0"
                )


@dataclass
class Route:
    """An expected order of units, and the position that has been reached in it.

    >>> route = Route("abcb")
    >>> [route.reach(unit) for unit in "ab"], list(route.ahead(2))
    ([None, None], ['c', 'b'])
    """

    expected: Sequence[Unit] = ()
    seen: list[Unit] = field(default_factory=list)
    place: int = 0

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
        ahead = self.expected[self.place :]
        wanted = ahead[0] if ahead else None
        if unit in ahead:
            self.place += ahead.index(unit) + 1
        return None if unit == wanted else wanted

    def ahead(self, depth: int, together: int = 0) -> Iterator[Unit]:
        """The next units of the expected order, at most `depth` of them; all of them if
        units [are gathered together](#Prefetch).
        """
        stop = None if depth and together else self.place + depth
        return iter(self.expected[self.place : stop])


# sidelit: depth The line of the program that a warning names.


def calls_from_outside() -> int:
    """The number of calls between a warning and the program's own line, which the warning names."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back and frame.f_globals.get("__name__", "").startswith(OURS):
        level, frame = level + 1, frame.f_back
    return level


OURS = ("shardbook.", "torch.")


# sidelit: core


# ## Clearing up before the next forward or backward pass
#
# > Each forward and backward pass first removes what a failed one has left, and each
# > forward pass gathers anew.
#
# When a step ends as planned, every unit is freed and every exchange is complete. An
# exception leaves something behind: units that are whole, gradients of half a backward
# pass, or an exchange that the other ranks may never join. [Another
# chapter](optimizer_guard.py#module/interrupted-forward-and-backward-passes) says how
# and when a failure is detected. Its remains are removed when the next forward or
# backward pass begins.
#
# Even after a step without a failure, no unit relies on parameters that it gathered
# earlier, because another rank's optimizer may have stepped since.
#
# | what is left | from | removed before |
# |---|---|---|
# | a whole unit | an interrupted forward or backward pass | the next forward pass of the model or the unit |
# | a prefetched unit | a forward pass that did not need it | the next forward pass |
# | gradients, collected or sent | a backward pass that failed | the next forward or backward pass |
# | gathered parameters | any forward pass | the next one, unless [no rank can have stepped](#expire) |


def recover(scheduler: Scheduler) -> None:
    """Remove what a failed step has left, before a forward pass of the model.

    Afterwards no unit relies on parameters that it gathered earlier. Inside a
    backward pass there is nothing to remove: a forward pass there is a recomputation
    for activation checkpointing, and the gradients that have been collected are still
    needed.
    """
    if in_backward():
        return
    take_interrupted_away()
    for unit in scheduler.units:
        unit.free()
    if scheduler.passes:
        forget(scheduler)
    for unit in scheduler.units:
        expire(scheduler, unit)
    Scheduler.in_flight = None
    Scheduler.going_on = []


def start_alone(scheduler: Scheduler, unit: Unit) -> None:
    """Remove what a failed step has left, before a unit is called outside of the model.

    Other units that are whole stay so. Units that were prefetched before an interrupt
    from the keyboard are freed.
    """
    if scheduler.passes:
        recover(scheduler)
    take_interrupted_away()
    scheduler.release()
    if unit.state is State.SHARDED:
        expire(scheduler, unit)


def forget_failed(scheduler: Scheduler) -> None:
    """Drop the gradients of earlier backward passes before a new one, if all of them failed."""
    if only_failed(scheduler):
        forget(scheduler)


def forget(scheduler: Scheduler) -> None:
    """Drop the gradients that failed backward passes have collected."""
    for unit, hooks in scheduler.units.items():
        unit.usage = None
        for flat in unit.trainable:
            flat.forget()
        hooks.expected = 0
        hooks.backward_use = None
        hooks.owes = False
    scheduler.kept.clear()
    scheduler.late.clear()
    scheduler.passes.clear()
    scheduler.failed.clear()
    scheduler.waited = False
    scheduler.give_up_exchanges()


def clear_away(hooks: Hooks, interrupted: Sequence[Use]) -> None:
    """End a unit's interrupted forward passes. If a forward pass around them continues,
    the unit stays whole.

    :param hooks: [the unit's hooks](hooks.py#Hooks)
    :param interrupted: the uses, which have been removed from the hooks' list
    """
    for use in interrupted:
        if use.pair is not None:
            take_away(use.pair)
    if len(hooks.uses.calls) == 1:
        hooks.unit.free()


def expire(scheduler: Scheduler, unit: Unit) -> None:
    """Make a unit gather in every forward pass, except between micro-batches.

    Another rank may have stepped since the last forward pass. Between micro-batches no
    rank can have: while gradients wait for their exchange [no optimizer may
    step](optimizer_guard.py#before_step) on any rank.

    Other code may change the parameters between micro-batches, and PyTorch counts such
    writes in the version, unless they go through `.data`. That is how a program often
    swaps averaged weights in for an evaluation and out again. So an evaluation without
    gradients always gathers, and so does the forward pass after it.
    """
    if not unit.filled:
        return
    version = unit.version if torch.is_grad_enabled() else None
    if not scheduler.kept or version is None or version != scheduler.versions.get(unit):
        unit.fresh = False
    scheduler.versions[unit] = version
