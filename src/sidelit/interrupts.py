"""# Ctrl-C

> Who stops a command gets the prompt back at once: no traceback, and nothing half-written is left.

Python turns Ctrl-C into an exception, which may be raised while a module is being imported, inside a callback
that prints and forgets it, or twice. A command of the press is simpler to stop: what it is writing is not in
its place yet, so it is removed, and the process ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

# What a process does before it ends; only a door of the press calls `arm`, so in other programs this is idle.
_tidying: list[Callable[[], object]] = []
_armed_in = 0


def arm() -> None:
    """End this process at Ctrl-C, or when it is told to terminate, with the exit code that a shell expects.

    The code is 128 and the number of the signal: 130 after Ctrl-C. A signal that is ignored, or that somebody
    else takes care of, stays as it is.
    """
    global _armed_in
    if threading.current_thread() is not threading.main_thread():
        return
    _armed_in = os.getpid()
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _stop)


def disarm() -> None:
    """Give both signals back their usual meaning."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is _stop:
            signal.signal(number, usual)


@contextmanager
def tidied(tidy: Callable[[], object]) -> Iterator[None]:
    """Call `tidy` behind this block, and also when the process is stopped inside it."""
    _tidying.append(tidy)
    try:
        yield
    finally:
        tidy()
        _tidying.remove(tidy)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    # A process that was forked from this one has the same handler, and nothing to say or to remove.
    if os.getpid() == _armed_in:
        os.write(2, b"Stopped.\n")
        _end_children()
        for tidy in reversed(_tidying):
            tidy()
    os._exit(128 + number)


def _end_children() -> None:
    """End the processes that share the work, if there are any: they would wait for more of it."""
    if "multiprocessing.process" in sys.modules:
        children = sys.modules["multiprocessing.process"].active_children()
        for child in children:
            child.kill()
        # Until it has ended, a process may still write into what is removed next.
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
