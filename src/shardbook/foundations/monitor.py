r"""# A monitor thread for ranks that wait

> Where a waiting rank cannot read the store, a separate thread reads it.

On gloo a rank waits for an exchange in its own thread, and
[reads](exchange_order.py#Order.watch) the store meanwhile. On NCCL the device waits,
and the thread continues. Suppose another rank has left the common order, so that the
exchange never ends. The thread blocks only when it waits for the device itself, and
then it cannot raise anything: at the time limit of the process group the backend ends
the process.

So each order has a monitor thread. On such backends the monitor reads the store once a
second. If it finds that the ranks disagree, it does two things:

- It writes the error to the log, so the log has the reason even if the process is
  ended.
- It makes the program raise the same error at its next exchange, or before its
  optimizer steps. A program that is already waiting for the device cannot be
  interrupted.

On all backends the monitor writes down how many exchanges its rank has started, and
reports [a standstill](standstill.py), in which the ranks agree on the next exchange but
one of them does not come.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.standstill import Standstill, after

__all__ = ["start_monitor"]

# How often a rank writes its progress: every 5 seconds, and at least 12 times within
# the time after which a standstill is reported.
BEAT, BEATS = timedelta(seconds=5), 12


def start_monitor(order: Any) -> threading.Thread | None:
    """Start the monitor of an [order](exchange_order.py#Order).

    The thread ends with the order, with its process group, or with the program.

    :returns: the thread, which also ends once the ranks disagree; `None` if it would
        have nothing to do
    """
    looks, meeting, standstill = not order.blocks, order.meeting, None
    period, beat = order.glance.total_seconds(), 0.0
    if after.limit is not None:
        waits = (type(order).arrived.__code__, type(meeting).wait_for.__code__)
        standstill = Standstill(
            meeting,
            order.progress,
            blocks=order.blocks,
            waits=waits,
            limit=after.limit,
        )
        beat = min(BEAT, after.limit / BEATS).total_seconds()
        period = min(beat, period) if looks else beat
    elif not looks:
        return None
    over = threading.Event()
    # The thread refers to the meeting, which holds no tensors. A reference to the order
    # would keep the order, and its model's tensors, forever.
    thread = threading.Thread(
        target=monitor,
        args=(meeting, standstill, looks, over, period, beat),
        name="shardbook monitor",
        daemon=True,
    )
    thread.start()
    weakref.finalize(order, stop, over, thread)
    return thread


def monitor(
    meeting: Any,
    standstill: Standstill | None,
    looks: bool,
    over: threading.Event,
    period: float,
    beat: float,
) -> None:
    """Read the store until the ranks disagree, or their process group has ended.

    :param looks: whether only this thread looks for a disagreement
    :param over: set when the order no longer needs the thread
    :param period: the seconds between two looks for a disagreement
    :param beat: the seconds between two looks for a standstill
    """
    group, due, store = weakref.ref(dist.group.WORLD), 0.0, None
    while not over.wait(period):
        try:
            joined = dist.group.WORLD
            if meeting.verdict is not None or joined is None or group() is not joined:
                return
            store = store or own_connection(meeting.store)
            if looks:
                meeting.glimpse(meeting.issued, store)
            now = time.monotonic()
            if standstill is not None and now >= due:
                standstill.tick(now, store)
                due = now + beat
        except Disagreement as error:
            logging.getLogger("shardbook").error("%s", error)
            return
        except RuntimeError:
            # The store has ended with the process that kept it.
            return


def own_connection(store: Any) -> Any:
    """The same keys over another connection.

    A connection serves one caller at a time. The rank itself may be using its own, in a
    call that waits for another rank.
    """
    try:
        return store.clone()
    except RuntimeError:
        # A store that a program has written in Python may allow no second connection.
        return store


def stop(over: threading.Event, thread: threading.Thread) -> None:
    """End a thread, and wait for its last look, so that the program does not end in it."""
    over.set()
    with suppress(RuntimeError):
        thread.join(1)
