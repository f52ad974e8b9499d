r"""# The order of the exchanges

> The conductor starts each exchange early, so that it runs while another unit computes.

A rank that gathers a unit only when it needs it has nothing to compute until the unit
is whole. But the order of a model's units is known. So each unit can be gathered one
step early, while the unit before it still computes. In the same way its gradients can
be exchanged while the next unit computes its own. In stage 3, with two units A and B:

| | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
|---|---|---|---|---|---|---|---|
| compute | | forward A | forward B | | backward B | backward A | |
| gather | A | B | | B | A | | |
| reduce | | | | | | B | A |

A *conductor* holds what the units of one model share: the exchange in flight and the
backward passes under way. The hooks of each unit call it at these moments:

| when | what the conductor does |
|---|---|
| a unit is called outside of the model | [starts](#Conductor.forward_begins) a forward pass of its own |
| a backward pass reaches a unit | [adds](#Conductor.open) it, and registers a callback for the end |
| a unit's gradients are complete | [decides](#Conductor.reduce) when they are exchanged |
| then, or at the end | [starts the exchange](#Conductor.exchange), after the one before is complete |
| the backward pass ends | [closes the units](#Conductor.backward_ended) that were reached |
| | [exchanges](#Conductor.settle) what is still due, and [waits](#Conductor.complete) for it |
| | [frees](#Conductor.release) units that were prefetched in vain |

A model with several units has [a conductor that also
prefetches](prefetch.py#PrefetchingConductor). All ranks run the same program, so they
issue the same exchanges in the same order, and each exchange meets its partners. [A
check](exchange_order.py) makes sure of that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from torch import nn

from shardbook.foundations.exchange_order import Order
from shardbook.foundations.hook_context import in_backward, machinery
from shardbook.foundations.nesting import Nesting
from shardbook.foundations.torch_private import at_end_of_backward, graph_task
from shardbook.guards.interrupted import Ending
from shardbook.guards.optimizer_guard import refuse_copies_of
from shardbook.parameters.flat import is_sharded
from shardbook.parameters.freezing import changed_since_sharding
from shardbook.zero.fresh_start import forget_failed, start_alone
from shardbook.zero.unit import State, Unit
from shardbook.zero.unused import Usage

__all__ = ["Conductor", "Driver", "conductor_of"]


class Conductor:
    """The part that all units of a model share: exchanges in flight, and the end of
    backward.

    :param order: [the check](exchange_order.py) that all ranks issue the same exchanges
    """

    # There is one exchange in flight for the whole program, even if it trains several
    # models.
    in_flight: ClassVar[Unit | None] = None
    # Units whose gradients are averaged over one copy of the model, and [are now
    # averaged over the other copies](groups.py#Groups.mean).
    going_on: ClassVar[list[Unit]] = []

    def __init__(self, order: Order) -> None:
        self.order = order
        self.drivers: dict[Unit, Driver] = {}
        # The thread in which a unit's last forward pass has begun.
        self.thread: int | None = None
        self.modules: set[nn.Module] = set()
        # The backward passes under way, each with the units that it has reached. There
        # can be more than one, because activation checkpointing may run a backward pass
        # inside another.
        self.passes: dict[int, list[Driver]] = {}
        # The backward passes that [have failed](interrupted.py).
        self.failed: set[int] = set()
        # Whether gradients are exchanged at the end of this backward pass, or kept for
        # the next micro-batch.
        self.syncing = True
        # `late` are units whose exchange is due at the end of this backward pass,
        # `kept` those whose gradients are kept for a later one. Dictionaries serve as
        # ordered sets.
        self.late: dict[Unit, None] = {}
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

    def add(self, driver: Driver) -> None:
        """Add the hooks of one more unit."""
        self.drivers[driver.unit] = driver
        self.modules.add(driver.module)

    def conduct(self, model: nn.Module) -> None:
        """Let [`conductor_of`](#conductor_of) find this conductor by its model."""
        setattr(model, _CONDUCTOR, self)
        refuse_copies_of(model)

    def forward_begins(self, unit: Unit) -> None:
        """Start a forward pass of the unit alone, because it is called outside of the
        model.

        [As in a forward pass of the model](fresh_start.py#recover), the unit gathers
        again, because its parameters may have changed.
        """
        if in_backward():
            return
        start_alone(self, unit)
        self.order.begin(f"separate {unit.name.removeprefix('the ')}")

    def open(self, driver: Driver, number: int) -> None:
        """Add a unit to the current backward pass, and register a callback for the end.

        :param driver: the hooks of the unit
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
        """Prepare for a backward pass, when its first unit is reached."""
        kind = "backward" if self.syncing else "accumulating backward"
        self.order.begin(changed_since_sharding(self.drivers) + kind)
        self.exchanged.clear()

    def reduce(self, unit: Unit) -> None:
        """Exchange a unit's complete gradients now, or mark them for later.

        Gradients of a micro-batch [that is not exchanged](accumulate.py) are kept.
        [Stages 0 and 1](replicate.py) exchange theirs at the end of the backward pass.
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
        """Reduce a unit's gradients, after the exchange before has been completed.

        So the gradients of at most one unit are on their way. Without this limit, a
        rank that computes faster than it exchanges would hold the gradients of all
        units at once.
        """
        self.advance()
        if unit in Conductor.going_on:
            self.complete()
        # Functions in `after_reduce` act on a mean as soon as it arrives. They need to
        # know by then which parameters were used, so the unit compares that for itself.
        if unit.after_reduce and unit.usage is None:
            unit.usage = Usage([unit], self)
        unit.reduce()
        Conductor.in_flight = unit
        self.exchanged[unit] = None
        self.kept.pop(unit, None)

    def advance(self) -> None:
        """Wait for the exchange in flight, and start the next one of each unfinished
        mean.

        On a mesh of two dimensions, a mean takes three exchanges, and in each of them a
        rank sends fewer bytes than in the one before. Each exchange has the time of one
        unit's backward pass to arrive.
        """
        first, Conductor.in_flight = Conductor.in_flight, None
        units, Conductor.going_on = Conductor.going_on, []
        units += [] if first is None else [first]
        Conductor.going_on = [unit for unit in units if unit.advance()]

    def complete(self) -> None:
        """Wait for all exchanges of gradients that are in flight."""
        while Conductor.in_flight or Conductor.going_on:
            self.advance()

    @machinery()
    def backward_ended(self, task: int) -> None:
        """Close every unit that a backward pass has reached, and exchange what is still
        due.

        When the call of `backward` returns, the optimizer may step, unless gradients
        [are kept](accumulate.py) for another micro-batch. The units are closed in the
        order in which they were reached, which is the same on every rank. If this
        function raises an error, the backward pass [has failed](interrupted.py).

        :param task: autograd's number of the backward pass
        """
        for driver in self.passes[task]:
            driver.close()
        outermost = len(self.passes) == 1
        if outermost:
            self.settle()
        self.complete()
        self.release()
        # The current stream is that of the caller of `backward`, which uses the
        # gradients next.
        for unit in self.drivers:
            unit.compute_stream()
        if outermost:
            self.order.end()
        del self.passes[task]

    def settle(self) -> None:
        """Exchange what is still due at the end of a backward pass.

        A unit that only an earlier micro-batch has used is due, too. Afterwards the
        ranks know [which parameters no rank has used](unused.py).
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
        """Do nothing here; [the prefetching
        conductor](prefetch.py#PrefetchingConductor) gathers the next units when a unit
        begins its forward pass.
        """

    def forward_ended(self, unit: Unit) -> None:
        """Do nothing here; the prefetching conductor records the order of the units."""

    def backward_began(self, unit: Unit) -> None:
        """Do nothing here; the prefetching conductor gathers units for the backward
        pass.

        The call comes when a unit has stored its first gradient, or has ended without
        one.
        """

    # sidelit: depth Exchanges of a backward pass that failed, for which no rank waits.

    @staticmethod
    def give_up_exchanges() -> None:
        """Stop waiting for the exchanges in flight, [after a failure](fresh_start.py#forget)."""
        Conductor.in_flight = None
        Conductor.going_on = []


_CONDUCTOR = "_shardbook_conductor"


class Driver(Protocol):
    """The interface through which the conductor uses the hooks of a unit.

    [`Hooks`](hooks.py#Hooks) is the one class of this book that has it.
    """

    unit: Unit
    module: nn.Module
    parts: tuple[nn.Module, ...]
    expected: int
    uses: Nesting[Any]
    owes: bool

    @property
    def in_backward(self) -> object | None:
        """The use whose backward pass is under way."""

    def older(self, number: int) -> None:
        """End the unit's backward pass, if all of its nodes are younger than this number."""

    def close(self) -> None:
        """Finish the unit at the end of a backward pass."""


# sidelit: depth Models that are not sharded, are part of one that is, or have parts sharded separately.


def conductor_of(model: nn.Module) -> Conductor:
    """The conductor of a sharded model.

    :raises ValueError: if the model is not sharded, is only a part of a sharded model,
        or its parts were sharded separately
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
