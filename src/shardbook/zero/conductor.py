r"""# The order of the exchanges

> While one unit computes, the next is already on its way.

A rank that asks for a unit when it needs it is idle until the unit is there. In a model
the order of the units is known. So each unit can be gathered one step early, while the
unit before it still computes, and its gradients can be exchanged while the next unit
computes its own. In stage 3, with two units:

| | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
|---|---|---|---|---|---|---|---|
| compute | | forward A | forward B | | backward B | backward A | |
| gather | A | B | | B | A | | |
| reduce | | | | | | B | A |

| when | what the conductor does |
|---|---|
| a unit is called by itself | [begins a pass](#Conductor.forward_begins) of its own |
| a backward pass reaches a unit | [opens it](#Conductor.open), and asks autograd to be called at the end |
| a unit's gradients are complete | [decides](#Conductor.reduce) when they are exchanged |
| then, or when the pass ends | [starts the exchange](#Conductor.exchange), after the one before is complete |
| the backward pass ends | [closes the units](#Conductor.backward_ended) that the pass has reached |
| | [exchanges](#Conductor.settle) what is still due, and [waits](#Conductor.complete) for it |
| | [frees](#Conductor.release) what was gathered in vain |

A *conductor* keeps what the units of one model share: the exchange in flight and the
backward passes under way. [A chain](prefetch.py#PrefetchingConductor) is a conductor
that also knows which unit comes next. All ranks run the same program, so they issue
their exchanges in the same order, and the exchanges meet. [The
order](exchange_order.py) makes sure of that.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from torch import nn

from shardbook.foundations.exchange_order import Order
from shardbook.foundations.hook_context import in_backward, machinery
from shardbook.foundations.torch_private import at_end_of_backward, graph_task
from shardbook.guards.interrupted import Ending
from shardbook.guards.optimizer_guard import refuse_copies_of
from shardbook.parameters.flat import is_sharded
from shardbook.parameters.freezing import changed_since_sharding
from shardbook.zero.fresh_start import forget_failed, start_alone
from shardbook.zero.unit import State, Unit
from shardbook.zero.unused import Usage

__all__ = ["Conductor", "Driver", "conductor_of"]
# sidelit: show


class Conductor:
    """What the units of one model share: the exchange in flight, and the end of the backward pass.

    :param order: who makes sure that all ranks issue the same exchanges
    """

    # One exchange for the whole program, so that several models have no more in flight
    # than one.
    in_flight: ClassVar[Unit | None] = None
    # Units whose gradients are averaged, and [go on to other
    # copies](groups.py#Groups.mean).
    going_on: ClassVar[list[Unit]] = []

    def __init__(self, order: Order) -> None:
        self.order = order
        self.drivers: dict[Unit, Driver] = {}
        self.modules: set[nn.Module] = set()
        # The backward passes under way, each with the units it has reached. There can
        # be more than one, because activation checkpointing runs a backward pass inside
        # another.
        self.passes: dict[int, list[Driver]] = {}
        # Those of them that [have failed](interrupted.py).
        self.failed: set[int] = set()
        # Whether gradients are exchanged, or kept to be added to.
        self.syncing = True
        # The units whose exchange is due at the end of the backward pass, and those
        # that wait for a later one. Dictionaries, because their order is kept.
        self.late: dict[Unit, None] = {}
        self.kept: dict[Unit, None] = {}
        # Whether any have waited since the ranks [compared](unused.py) what they used.
        self.waited = False
        # The units that have exchanged gradients in this backward pass, in order.
        self.exchanged: dict[Unit, None] = {}
        # Whether parameters that [no rank has used](unused.py) get the gradient zero.
        self.unused_get_zero = False
        # The version of each unit's parameters when a forward pass last asked for it.
        self.versions: dict[Unit, int | None] = {}

    def add(self, driver: Driver) -> None:
        """Take charge of one more unit."""
        self.drivers[driver.unit] = driver
        self.modules.add(driver.module)

    def conduct(self, model: nn.Module) -> None:
        """Let [`conductor_of`](#conductor_of) find this conductor by its model."""
        setattr(model, _CONDUCTOR, self)
        refuse_copies_of(model)

    def forward_begins(self, unit: Unit) -> None:
        """A unit is called by itself: that is a pass of its own.

        [As in a pass of the model](fresh_start.py#recover), what it gathered may be old.
        """
        if in_backward():
            return
        start_alone(self, unit)
        self.order.begin(f"separate {unit.name.removeprefix('the ')}")

    def open(self, driver: Driver, number: int) -> None:
        """Note that the current backward pass has reached a unit, and ask to be called at its end.

        :param number: the number of the node that is about to run; units that have only
            younger nodes [have ended](hooks.py#Hooks.older)
        """
        task = graph_task()
        forget_failed(self)
        for other in self.passes.get(task, ()):
            if other is not driver:
                other.older(number)
        if not self.passes:
            self.backward_begins()
        if task not in self.passes:
            self.passes[task] = []
            ending: Callable[[], None] = Ending(self, task)
            at_end_of_backward(ending)
        if driver not in self.passes[task]:
            self.passes[task].append(driver)

    def backward_begins(self) -> None:
        """The first unit of a backward pass has been reached."""
        kind = "backward" if self.syncing else "accumulating backward"
        self.order.begin(changed_since_sharding(self.drivers) + kind)
        self.exchanged.clear()

    def reduce(self, unit: Unit) -> None:
        """A unit's gradients are complete: exchange them now, later, or not yet.

        [Stages 0 and 1](replicate.py) exchange at the end of the backward pass.
        """
        unit.expect_gradients()
        if not self.syncing:
            self.kept[unit] = None
            self.waited = True
        elif unit.reduces_early:
            self.exchange(unit)
        else:
            self.late[unit] = None

    def exchange(self, unit: Unit) -> None:
        """Reduce a unit's gradients after the exchange before it has been completed.

        So the gradients of at most one unit are on their way. Without this limit a rank
        that computes faster than it exchanges would hold the gradients of all units.
        """
        self.advance()
        if unit in Conductor.going_on:
            self.complete()
        # What acts on a mean as soon as it arrives cannot wait for the end of the pass.
        if unit.after_reduce and unit.usage is None:
            unit.usage = Usage([unit], self)
        unit.reduce()
        Conductor.in_flight = unit
        self.exchanged[unit] = None
        self.kept.pop(unit, None)

    def advance(self) -> None:
        """Wait for what is in flight, and let means go on to other copies of the model.

        On a mesh of two dimensions a mean takes three exchanges, and in each of them a
        rank sends less than in the one before. Each has the time of one unit's backward
        pass to arrive.
        """
        first, Conductor.in_flight = Conductor.in_flight, None
        units, Conductor.going_on = Conductor.going_on, []
        units += [] if first is None else [first]
        Conductor.going_on = [unit for unit in units if unit.advance()]

    def complete(self) -> None:
        """Wait for all exchanges of gradients that are under way."""
        while Conductor.in_flight or Conductor.going_on:
            self.advance()

    @machinery()
    def backward_ended(self, task: int) -> None:
        """Settle every unit that this backward pass has reached.

        When the call to `backward` returns, the optimizer may step, unless gradients
        [are kept](accumulate.py). The order is that in which the pass reached the
        units, which is the same on every rank. A pass in which this raises an error
        [has failed](interrupted.py).
        """
        for driver in self.passes[task]:
            driver.close()
        outermost = len(self.passes) == 1
        if outermost:
            self.settle()
        self.complete()
        self.release()
        # This is the stream of the caller, on which gradients are used next.
        for unit in self.drivers:
            unit.compute_stream()
        if outermost:
            self.order.end()
        del self.passes[task]

    def settle(self) -> None:
        """Exchange what is still due at the end of a backward pass.

        A unit that only an earlier micro-batch has used is due, too. Then the ranks
        know [which parameters nobody has used](unused.py).
        """
        if not self.syncing:
            return
        usage = Usage.at_the_end(self)
        for unit in usage.late:
            self.exchange(unit)
        self.late.clear()
        self.complete()
        usage.settle()
        self.waited = False
        if self.unused_get_zero:
            for unit in self.drivers:
                if unit not in self.exchanged:
                    unit.add_zero()

    def release(self) -> None:
        """Free units that were prefetched and then not used."""
        for unit in self.drivers:
            if unit.state is State.GATHERING:
                unit.free()

    def forward_began(self, unit: Unit) -> None:
        """A unit is whole and about to compute. [A
        chain](prefetch.py#PrefetchingConductor) prefetches here.
        """

    def forward_ended(self, unit: Unit) -> None:
        """A unit has computed something that a backward pass may reach."""

    def backward_began(self, unit: Unit) -> None:
        """A unit has stored its first gradient, or has ended without one."""

    # sidelit: depth Exchanges of a pass that failed, which nobody waits for.

    @staticmethod
    def give_up_exchanges() -> None:
        """Wait for nothing that is in flight, [after a failure](fresh_start.py#forget)."""
        Conductor.in_flight = None
        Conductor.going_on = []


_CONDUCTOR = "_shardbook_conductor"


class Driver(Protocol):
    """What the conductor needs to know of whoever drives a unit.

    [The layer's hooks](hooks.py#Hooks) are the one driver of this book.
    """

    unit: Unit
    module: nn.Module
    parts: tuple[nn.Module, ...]
    expected: int
    in_backward: Any
    owes: bool

    def older(self, number: int) -> None:
        """A node of this number is about to run, and only older ones after it."""

    def close(self) -> None:
        """Settle the unit at the end of a backward pass."""


# sidelit: depth Models that are not sharded, are a part of one that is, or have parts sharded apart.


def conductor_of(model: nn.Module) -> Conductor:
    """Who conducts the units of a sharded model.

    :raises ValueError: if the model is not sharded, is only a part of what was, or its
        parts were sharded apart
    :raises TypeError: if it is no module
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"pass the model itself, not a {type(model).__name__}")
    found = [vars(module).get(_CONDUCTOR) for module in model.modules()]
    conductors = [one for one in found if isinstance(one, Conductor)]
    name = type(model).__name__
    if not conductors and any(map(is_sharded, model.parameters())):
        raise ValueError(
            f"this {name} is a part of a sharded model; pass the model that shard returned"
        )
    if not conductors:
        raise ValueError(f"this {name} is not sharded; call shard(model) first")
    if len(conductors) > 1:
        raise ValueError(
            f"{len(conductors)} parts of this {name} were sharded apart; "
            "call shard once, on the whole model"
        )
    return conductors[0]
