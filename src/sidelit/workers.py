"""# Sharing the work

> Where nothing depends on each other several processes work, and the result is the same.

A process is forked for each core. It begins with all that the first one has read, so that nothing has to be
sent to it but the number of an item, and what comes back are results. They are handed on in the order of the
items, whoever was faster.

A fork takes along one thread and all locks of the others, which nobody would ever open. So a process that has
more than one thread works alone, and so does one on a system that has no forks, or on macOS, whose libraries
do not bear them.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from sidelit.errors import SidelitError

Item = TypeVar("Item")
Result = TypeVar("Result")

# To start a process takes some hundredths of a second, and a page about four of them.
LEAST = 8

# How many new objects a process that shares the work makes before it looks for garbage among them, and how
# often it looks further; Python's own numbers are 700, 10 and 10.
_SELDOM = (50_000, 20, 100)


def cores() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def shared(
    function: Callable[[Item], Result], items: Sequence[Item], jobs: int | None = None
) -> Iterator[Result]:
    """The result of a function for each item, in the order of the items.

    `jobs` is the number of processes, by default one for each core; for few items there are fewer. What the
    function changes is changed in its own process only, unless there is one alone.

    Raises what the function raises for the first item that it fails for.
    """
    count = number(items, jobs)
    if count < 2:
        yield from map(function, items)
        return
    crew = _Crew(function, items, count)
    try:
        yield from crew.results()
    finally:
        crew.end()


def number(items: Sequence[object], jobs: int | None = None) -> int:
    """How many processes share so many items; one alone is this one."""
    count = min(cores() if jobs is None else jobs, len(items) // LEAST)
    return count if count > 1 and _may_fork() else 1


@contextmanager
def beside(function: Callable[[], object]) -> Iterator[None]:
    """Let a function run beside a block, in a process of its own where there can be one, else in a thread."""
    if not _may_fork():
        threading.Thread(target=function, daemon=True).start()
        yield
        return
    process = multiprocessing.get_context("fork").Process(
        target=_alone, args=(function, os.getpid()), daemon=True
    )
    process.start()
    try:
        yield
    finally:
        process.kill()
        process.join()


def _alone(function: Callable[[], object], first: int) -> None:
    _begin(first)
    function()


def _begin(first: int) -> None:
    """What a forked process does at its start; `first` is the process that was forked."""
    # Ctrl-C reaches all processes of a terminal; the first one ends the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with(first)


@contextmanager
def looking_seldom() -> Iterator[None]:
    """Look for garbage as seldom as a process that shares the work."""
    before = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _may_fork() -> bool:
    return hasattr(os, "fork") and sys.platform != "darwin" and threading.active_count() == 1


class _Crew:
    """Some processes, each with a connection to the first."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any], count: int) -> None:
        self._items = items
        self._processes = []
        self._connections: list[Connection] = []
        forked = multiprocessing.get_context("fork")
        for _ in range(count):
            own, other = forked.Pipe()
            # A process must not hold the ends of the others open: it ends when its own is closed.
            self._connections.append(own)
            process = forked.Process(
                target=_work,
                args=(function, items, other, tuple(self._connections), os.getpid()),
                daemon=True,
            )
            process.start()
            other.close()
            self._processes.append(process)

    def results(self) -> Iterator[Any]:
        """The results in order."""
        waiting, ready, following = iter(range(len(self._items))), dict[int, tuple[bool, Any]](), 0
        for connection in [*self._connections, *self._connections]:
            # Two each, so that nobody is idle while an answer is on its way.
            _send(connection, next(waiting))
        while following < len(self._items):
            for connection in _answering(self._connections):
                number, *outcome = _received(connection)
                ready[number] = outcome
                if (another := next(waiting, None)) is not None:
                    _send(connection, another)
            while following in ready:
                fine, value = ready.pop(following)
                following += 1
                if not fine:
                    raise value
                yield value

    def end(self) -> None:
        """Let everybody go; who still works is stopped."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for connection in self._connections:
            connection.close()


def _answering(connections: Sequence[Connection]) -> Iterator[Connection]:
    """Those that have something to say; waits until one has."""
    for connection in wait(connections):
        assert isinstance(connection, Connection)
        yield connection


def _send(connection: Connection, number: int) -> None:
    # Who is gone takes no more; that is told where its answer is waited for.
    with suppress(ConnectionError):
        connection.send(number)


def _received(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, ConnectionError):
        what = "a process that shared the work was ended from outside"
        hint = "it may have needed more memory than there is; try again with --jobs 1"
        raise SidelitError(what, hint=hint) from None


def _work(
    function: Callable[[Item], Any],
    items: Sequence[Item],
    own: Connection,
    others: Sequence[Connection],
    first: int,
) -> None:
    """What a forked process does: the items it is told, until nobody tells it any more.

    :param first: the process that was forked.
    """
    _begin(first)
    # Trees and tokens are many, and hardly any are garbage that counting does not find.
    gc.freeze()
    gc.set_threshold(*_SELDOM)
    for other in others:
        other.close()
    # Where the first one was killed, nobody listens any more.
    with suppress(EOFError, ConnectionError):
        while True:
            number = own.recv()
            try:
                outcome = True, function(items[number])
            except Exception as error:
                outcome = False, error
            own.send((number, *outcome))


def _end_with(parent: int) -> None:
    """End this process at once when its parent is killed.

    It would end behind its item anyway, but hold the parent's folder until then, which the next build then
    takes for one that somebody is making.
    """
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "prctl"):
        libc.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


# The number that the C library gives to these words.
_PARENT_DEATH_SIGNAL = 1
