r"""# Clearing up before the next forward or backward pass

> Each forward and backward pass first removes what a failed one has left, and each forward pass gathers anew.

When a step ends as planned, every unit is freed and every exchange is complete. An
exception leaves something behind: units that are whole, gradients of half a backward
pass, or an exchange that the other ranks may never join. [Another
chapter](interrupted.py) says how and when a failure is detected. This chapter removes
its remains when the next forward or backward pass begins.

Even after a step without a failure, no unit relies on parameters that it gathered
earlier, because another rank's optimizer may have stepped since.

| what is left | from | removed before |
|---|---|---|
| a unit that is whole | a forward pass that was interrupted | the unit's next forward pass |
| a prefetched unit | a forward pass that did not need it | the next forward pass |
| gradients, collected or sent | a backward pass that failed | the next forward or backward pass |
| gathered parameters | any forward pass | the next one, unless [no rank can have stepped](#expire) |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from shardbook.foundations.hook_context import in_backward
from shardbook.guards.interrupted import only_failed
from shardbook.zero.demand import take_away, take_interrupted_away
from shardbook.zero.unit import State, Unit

__all__ = ["clear_away", "forget_failed", "recover", "start_alone"]


def recover(conductor: Any) -> None:
    """Remove what a failed step has left, before a forward pass of the model.

    Afterwards no unit relies on parameters that it gathered earlier. Inside a
    backward pass there is nothing to remove: a forward pass there is a recomputation
    for activation checkpointing, and the gradients that have been collected are still
    needed.
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
    """Remove what a failed step has left, before a unit is called outside of the model.

    Other units that are whole stay so. Units that were prefetched before an interrupt
    from the keyboard are freed.
    """
    if conductor.passes:
        recover(conductor)
    take_interrupted_away()
    conductor.release()
    if unit.state is State.SHARDED:
        expire(conductor, unit)


def forget_failed(conductor: Any) -> None:
    """Drop the gradients of earlier backward passes before a new one, if all of them failed."""
    if only_failed(conductor):
        forget(conductor)


def forget(conductor: Any) -> None:
    """Drop the gradients that failed backward passes have collected."""
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
    """End a unit's interrupted forward passes. If a forward pass around them continues,
    the unit stays whole.

    :param driver: [the unit's hooks](hooks.py#Hooks)
    :param interrupted: the uses, which have been removed from the hooks' list
    """
    for use in interrupted:
        take_away(use.pair)
    if interrupted and len(driver.uses) == 1:
        driver.unit.free()


def expire(conductor: Any, unit: Unit) -> None:
    """Make a unit gather in every forward pass, except between micro-batches.

    Another rank may have stepped since the last forward pass. Between micro-batches no
    rank can have: while gradients wait for their exchange [no optimizer may
    step](optimizer_guard.py#before_step) on any rank.

    Other code may change the parameters between micro-batches, and PyTorch counts such
    writes in the version, unless they go through `.data`. That is how a program often
    swaps averaged weights in for an evaluation and out again. So an evaluation without
    gradients always gathers, and so does the forward pass after it.
    """
    version = unit.version if torch.is_grad_enabled() else None
    if not conductor.kept or version is None or version != conductor.versions.get(unit):
        unit.expire()
    conductor.versions[unit] = version
