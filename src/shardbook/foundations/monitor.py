r"""# A monitor beside the ranks that wait

> Where a rank cannot look into the store while it waits, a thread does it instead.

On gloo a rank waits for an exchange in its own thread, and
[looks](exchange_order.py#Order.watch) into the store meanwhile. On NCCL the device
waits, and the thread goes on. If another rank has left the common order, the exchange
never ends. The thread would learn nothing until it waits for the device itself, and
then it learns nothing at all: at the time limit of the process group the backend ends
the process.

So on such backends each order has a thread of its own that looks into the store once a
second. If it finds that the ranks disagree, it does two things. It writes the error to
the log, so that the reason is there even if the process is ended. And it lets the
program raise the same error at its next exchange, or before its optimizer steps. A
program that is waiting for the device at that moment cannot be interrupted. Its log
says why it will end.
"""

# sidelit: hide
from __future__ import annotations

import logging
import threading
import weakref
from typing import Any

from shardbook.foundations.agreement import Disagreement

__all__ = ["start_monitor"]
# sidelit: show


def start_monitor(order: Any) -> threading.Thread:
    """Start the thread of an [order](exchange_order.py#Order). It ends with the order, or with the
    program.

    :returns: the thread, which has ended once the ranks disagree
    """
    over = threading.Event()
    # A thread that referred to the order would keep it forever.
    weakref.finalize(order, over.set)
    thread = threading.Thread(
        target=monitor,
        args=(weakref.ref(order), over, order.glance.total_seconds()),
        name="shardbook monitor",
        daemon=True,
    )
    thread.start()
    return thread


def monitor(order: weakref.ref[Any], over: threading.Event, period: float) -> None:
    """Look into the store until the ranks disagree.

    :param over: set when nobody needs the order any longer
    :param period: the seconds between two looks
    """
    while not over.wait(period):
        one = order()
        if one is None:
            return
        try:
            one.meeting.glimpse(one.issued)
        except Disagreement as error:
            logging.getLogger("shardbook").error("%s", error)
            return
        except RuntimeError:
            # The store has ended with the process that kept it.
            return
        del one
