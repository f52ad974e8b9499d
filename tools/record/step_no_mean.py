"""The same step with the mean forgotten: the gradients are sums, and twice as long on two ranks.

With AdamW the loss does not show it, since AdamW divides each gradient by its own size. So the first step is
also taken with plain SGD, and the recording says how far each of them moves the parameters, with the mean and
without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.record import step as right
from tools.record.frame import ranks
from tools.record.lines import removed

from shardbook.foundations.collectives import PendingReduce
from shardbook.train.loop import step

WHERE = "shardbook/foundations/collectives.py#PendingReduce.wait"
LINE = "total /= self.world_size"


def record() -> Any:
    """The events without the division, and how far the first step moves the parameters of rank 0."""
    found = right.together(ranks(2, right.on_a_rank, without_the_mean))
    for event in found["events"]:
        if event["line"] == LINE:
            event["removed"] = True
    moved = {
        f"{optimizer}_{kind}": ranks(2, first_step, optimizer, spoil)[0]
        for optimizer in ("adamw", "sgd")
        for kind, spoil in (("mean", None), ("sum", without_the_mean))
    }
    return {"removed": {"at": WHERE, "line": LINE}, "values": moved, **found}


def without_the_mean() -> None:
    """Take the line out of this process."""
    PendingReduce.wait.__code__ = removed(PendingReduce.wait, LINE)


def first_step(optimizer: str, spoil: Callable[[], None] | None) -> float:
    """How far one step moves what this rank trains."""
    if spoil is not None:
        spoil()
    run = right.small_run(optimizer)
    before = right.values(run)
    step(run)
    return right.rounded(right.distance(before, right.values(run)))
