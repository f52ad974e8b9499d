r"""# Saving while training goes on

> What is saved is copied to the host at once, and a thread writes the copy.

To write a checkpoint takes as long as the disk needs, and the numbers must not change
meanwhile. So `Checkpoints(..., background=True)` copies what this rank writes, which is
quick, and returns. A thread writes the copy while the next steps run:

| | this thread | the other one |
|---|---|---|
| `save(100, …)` | copies | |
| steps 101, 102, … | train | writes, waits for the other ranks, gives the checkpoint its name |
| `save(200, …)` | waits for the other thread, if it is still at work; copies | |

The ranks exchange a few messages for each checkpoint. Those of the threads must not mix
with those of the training, so the threads have a process group of their own.

The copy takes memory on the host: as much as a rank writes. An error of the thread is
raised by the next `save` or by `wait`. A program has to call `wait` before it ends.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import torch.distributed as dist

__all__ = ["Background"]
# sidelit: show


class Background:
    """A thread that does one thing after another, and tells of what went wrong."""

    def __init__(self) -> None:
        # Every rank makes the group, as it makes its first checkpoint.
        self.group = dist.new_group(backend="gloo")
        self.thread: Thread | None = None
        self.error: BaseException | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Begin with some work. What was begun before has ended."""
        assert self.thread is None
        self.thread = Thread(target=self.run, args=(work,), name="checkpoint")
        self.thread.start()

    def run(self, work: Callable[[], None]) -> None:
        """What happens in the thread."""
        try:
            work()
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Wait for the work, and raise its error."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        error, self.error = self.error, None
        if error is not None:
            raise error
