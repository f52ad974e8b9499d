r"""# A fresh start

> Before a pass begins, what an earlier one has left is cleared away, and nothing it gathered is relied on.

A pass that ends as planned leaves every unit freed and every exchange complete. An
exception leaves something behind: units that are whole, gradients of half a backward
pass, an exchange that the other ranks may never join. [Who detects that, and
when](interrupted.py), is said elsewhere. Here it is cleared away, when the next pass
begins. Even after a pass that ended as planned, a unit does not rely on what it has
gathered, because another rank may have stepped since.

| what is left | by | cleared away before |
|---|---|---|
| a unit that is whole | a forward pass that was interrupted | the unit's next forward pass |
| a unit that was gathered ahead | a pass that did not need it | the next forward pass |
| gradients, collected or sent | a backward pass that failed | the next forward or backward pass |
| gathered parameters | any forward pass | the next one, unless [nobody can have stepped](#expire) |
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardbook.foundations.hook_context import in_backward
from shardbook.guards.interrupted import only_failed
from shardbook.zero.demand import take_away, take_interrupted_away
from shardbook.zero.unit import State, Unit

__all__ = ["clear_away", "forget_failed", "recover", "start_alone"]
# sidelit: show


def recover(conductor: Any) -> None:
    """Before a forward pass: clear away what an exception in the last step left
    behind, and let no unit rely on what it gathered earlier.

    Inside a backward pass there is nothing to clear. A forward pass there is a
    recomputation for activation checkpointing, and the gradients already collected
    are still wanted.
    """
    if in_backward():
        return
    take_interrupted_away()
    for unit in conductor.drivers:
        unit.free()
    if conductor.passes:
        forget(conductor)
    for unit in conductor.drivers:
        expire(conductor, unit)
    conductor.give_up_exchanges()


def start_alone(conductor: Any, unit: Unit) -> None:
    """Before a unit is called by itself: the same, but other units that are whole stay so.

    An interrupt from the keyboard may have left units that were gathered ahead.
    """
    if conductor.passes:
        recover(conductor)
    take_interrupted_away()
    conductor.release()
    if unit.state is State.SHARDED:
        expire(conductor, unit)


def forget_failed(conductor: Any) -> None:
    """Before a backward pass: drop what earlier ones have collected, if all of them failed."""
    if only_failed(conductor):
        forget(conductor)


def forget(conductor: Any) -> None:
    """Drop what backward passes that failed have collected."""
    for unit, driver in conductor.drivers.items():
        unit.usage = None
        for flat in unit.trainable:
            flat.forget()
        driver.expected = 0
        driver.in_backward = None
        driver.owes = False
    conductor.kept.clear()
    conductor.late.clear()
    conductor.passes.clear()
    conductor.failed.clear()
    conductor.waited = False
    conductor.give_up_exchanges()


def clear_away(driver: Any, interrupted: Sequence[Any]) -> None:
    """End forward passes of a unit that were interrupted. If one around them goes on, the
    unit stays whole.

    :param driver: [the unit's hooks](hooks.py#Hooks)
    :param interrupted: the uses, which are not noted any more
    """
    for use in interrupted:
        take_away(use.pair)
    if interrupted and len(driver.uses) == 1:
        driver.unit.free()


def expire(conductor: Any, unit: Unit) -> None:
    """Let a unit gather in every forward pass, since another rank may have stepped.
    The exception are micro-batches between which no rank can have stepped.

    While gradients wait for their exchange [no optimizer may
    step](optimizer_guard.py#before_step) on any rank. Something else may change the
    parameters then, and PyTorch counts it, unless it is done through `.data`. That
    is how averaged weights are often swapped in for an evaluation and out again. So
    an evaluation gathers anew, and so does the pass after it.
    """
    version = unit.version if torch.is_grad_enabled() else None
    if not conductor.kept or version is None or version != conductor.versions.get(unit):
        unit.expire()
    conductor.versions[unit] = version
