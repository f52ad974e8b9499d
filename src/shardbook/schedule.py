r"""# The order of the exchanges

> While one unit computes, the next is already on its way.

A rank that asks for a unit when it needs it is idle until the unit is there. In a model
the order of the units is known. So each unit can be gathered one step early, while the
unit before it still computes, and its gradients can be exchanged while the next unit
computes its own:

| | 1 | 2 | 3 | 4 | 5 | 6 |
|---|---|---|---|---|---|---|
| compute | | forward A | forward B | backward B | backward A | |
| gather | A | B | B | A | | |
| reduce | | | | | B | A |

This chapter keeps what the units of one model share: what is in flight, what comes
next, and where a backward pass ends. It does so for units that run one after the other.
Every rank runs the same program, so every rank issues its exchanges in the same order,
and they meet.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Protocol

import torch
from torch import nn

from shardbook.unit import State, Unit

__all__ = ["Chain", "Conductor", "Driver"]
# sidelit: show


class Conductor:
    """What the units of one model share: the exchange in flight, and the end of the backward pass."""

    # One exchange for the whole program, so that a chain of single layers, each with a
    # conductor of its own, has no more in flight than a model.
    in_flight: ClassVar[Unit | None] = None

    def __init__(self) -> None:
        self.drivers: dict[Unit, Driver] = {}
        # The backward passes under way, each with the units it has reached. There can
        # be more than one, because activation checkpointing runs a backward pass inside
        # another.
        self.passes: dict[int, list[Driver]] = {}

    def add(self, driver: Driver) -> None:
        """Take charge of one more unit."""
        self.drivers[driver.unit] = driver

    def forward_began(self, unit: Unit) -> None:
        """A unit is whole and about to compute. [A chain](#Chain) prefetches the next one here."""

    def backward_began(self, unit: Unit) -> None:
        """The same for the backward pass."""

    def open(self, driver: Driver) -> None:
        """Note that the current backward pass has reached a unit, and ask to be called at its end."""
        task = torch._C._current_graph_task_id()
        if task not in self.passes:
            self.passes[task] = []
            callback: Callable[[], None] = partial(self.backward_ended, task)
            torch.autograd.Variable._execution_engine.queue_callback(callback)
        if driver not in self.passes[task]:
            self.passes[task].append(driver)

    def reduce(self, unit: Unit) -> None:
        """Reduce a unit's gradients after the exchange before it has been completed.

        So at most one exchange is in flight, and at most two units have a vector of
        gradients: one that is being exchanged and one that is being filled.
        """
        self.complete()
        unit.reduce()
        Conductor.in_flight = unit

    def complete(self) -> None:
        """Wait for the exchange in flight, if there is one."""
        unit, Conductor.in_flight = Conductor.in_flight, None
        if unit is not None:
            unit.finish_reduce()

    def backward_ended(self, task: int) -> None:
        """Settle every unit that this backward pass has reached.

        When the call to `backward` returns, all gradients are in the slices and the
        optimizer may step. The order is that in which the pass reached the units, which
        is the same on every rank.
        """
        for driver in self.passes.pop(task):
            driver.close()
        self.complete()
        self.release()

    def release(self) -> None:
        """Free units that were prefetched and then not used."""
        for unit in self.drivers:
            if unit.state is State.GATHERING:
                unit.free()

    def recover(self) -> None:
        """Before a forward pass: clear away what an exception in the last step left
        behind.

        Inside a backward pass there is nothing to clear. A forward pass there is a
        recomputation for activation checkpointing, and the gradients already collected
        are still wanted.
        """
        if torch._C._current_graph_task_id() != -1:
            return
        for unit, driver in self.drivers.items():
            unit.free()
            if self.passes:
                unit.drop_gradients()
                driver.expected, driver.in_backward = 0, False
        self.passes.clear()
        Conductor.in_flight = None


class Chain(Conductor):
    """The units of one model in the order in which they run, so that the next one can
    be gathered ahead.

    If the model has parameters outside of its units, they form the root. The root is in
    use from beginning to end, so it comes first in the forward pass and first in the
    backward pass.

    :param model: the module whose forward pass runs all units
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.root: Unit | None = None
        self.units: list[Unit] = []
        # Whether the model's own forward pass is under way.
        self.running = False

    def add(self, driver: Driver) -> None:
        """Append a unit."""
        super().add(driver)
        if driver.module is self.model:
            self.root = driver.unit
        else:
            self.units.append(driver.unit)

    def attach(self) -> None:
        """Tidy up before and after each forward pass of the model, exceptions included.

        Before it, units may still be whole from a step that failed. After it, a unit
        may have been gathered ahead that did not run this time.
        """
        self.model.register_forward_pre_hook(self.model_begins, prepend=True)
        self.model.register_forward_hook(self.model_ends, always_call=True)

    def model_begins(self, *_: Any) -> None:
        """Start from a clean state."""
        self.recover()
        self.running = True

    def model_ends(self, *_: Any) -> None:
        """Leave a clean state."""
        self.running = False
        self.release()

    def forward_began(self, unit: Unit) -> None:
        """Gather the unit that runs next, while this one computes.

        One unit ahead is enough to hide an exchange behind a computation that takes as
        long. Two ahead would cost the memory of one more unit. This gather is queued
        before the unit's own computation is, so it waits only for what came earlier.

        A unit that runs outside of the model's forward pass says nothing about the
        next. It may be called by itself, and a unit gathered ahead would wait there
        until an optimizer has changed the weights. Or its activations are computed
        again in the backward pass, where the next unit has just been freed.
        """
        if not self.running:
            return
        following = self.after(unit, self.units)
        if following is not None:
            following.gather()

    def backward_began(self, unit: Unit) -> None:
        """Gather the unit whose backward pass runs next: the one before.

        A unit that expects no backward pass is left alone. Frozen first layers are such
        units, since no gradient reaches them.
        """
        following = self.after(unit, self.units[::-1])
        if following is not None and self.drivers[following].expected:
            following.gather()

    def after(self, unit: Unit, order: list[Unit]) -> Unit | None:
        """The unit that follows in `order`; the root is followed by the first."""
        position = 0 if unit is self.root else order.index(unit) + 1
        return order[position] if position < len(order) else None


class Driver(Protocol):
    """What the conductor needs to know of whoever drives a unit.

    [The layer's hooks](layer.py#Hooks) are the one driver of this book.
    """

    unit: Unit
    module: nn.Module
    expected: int
    in_backward: bool

    def close(self) -> None:
        """Settle the unit at the end of a backward pass."""
