r"""# Asynchronous checkpoints

> `save` copies this rank's part to the host and returns. A thread writes the copy to
> disk while training goes on.

A disk that writes 2 GB a second needs five seconds for 10 GB. The parameters must not
change during these seconds, because the checkpoint would then hold parts of two steps.
So training waits, or the checkpoint is written from a copy. With
`Checkpoints(..., background=True)` this rank copies what it writes, and `save` returns.
A thread writes the copy during the next steps:

| | training thread | writing thread |
|---|---|---|
| `save(100, …)` | copies | |
| steps 101, 102, … | trains | writes, waits for the other ranks, names the checkpoint |
| `save(200, …)` | waits for the writing thread if it is still busy; copies | |

The ranks exchange a few messages for each checkpoint. The messages of the writing
threads must not mix with those of the training, so the writing threads have a process
group of their own.

The copy takes as much memory on the host as this rank writes. If the thread fails, the
next `save` or `wait` raises its error. Call `wait` before your program ends, because
the last checkpoint may still be without its name.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from threading import Thread
from typing import Any

import torch.distributed as dist

__all__ = ["Background"]


class Background:
    """Runs one piece of work at a time in a thread, and keeps its error for the caller."""

    def __init__(self) -> None:
        self.thread: Thread | None = None
        self.error: BaseException | None = None

    @cached_property
    def group(self) -> Any:
        """The process group of the writing threads.

        `new_group` needs all ranks, and would wait for one that saves without a thread.
        So the group is made in the first save, after the ranks have agreed that all of
        them save in this way.
        """
        return dist.new_group(backend="gloo")

    def start(self, work: Callable[[], None]) -> None:
        """Start a thread for this work. The thread of the work before must have ended."""
        assert self.thread is None
        self.thread = Thread(target=self.run, args=(work,), name="checkpoint")
        self.thread.start()

    def run(self, work: Callable[[], None]) -> None:
        """Do the work in the thread, and keep its error for `wait`."""
        try:
            work()
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Wait until the thread has ended, and raise its error if it has one."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        error, self.error = self.error, None
        if error is not None:
            raise error
