r"""# Starting ranks from a notebook

> One call runs a function on several ranks, shows what they print, and returns their
> results.

```python
def mean(x):
    value = torch.tensor(x + labs.rank())
    dist.all_reduce(value)
    print("the sum is", value.item())
    return value.item() / dist.get_world_size()

labs.ranks(2, mean, 10.0)
```

The cell shows `rank 0 | the sum is 21.0`, the same line of rank 1, and the list `[10.5,
10.5]`. In the function `torch.distributed` is initialised: `torchrun` would start the
same processes, but it needs a file, and it prints into a terminal.

The call works in Jupyter, Colab, VS Code and a plain script, with functions and classes
from the cells, and after a backward pass. The ranks are processes that a
[server](rank_server.py) forks.

Where they compute depends on the machine. With a GPU for each rank they use NCCL. If
there are fewer GPUs, the ranks share them, and gloo connects them. Without a GPU they
compute on the CPU, with one thread each.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any, TypeVar

import cloudpickle
import torch
import torch.distributed as dist

from shardbook.labs.lab_language import language
from shardbook.labs.progress_bar import Waiting, say
from shardbook.labs.rank_outcomes import RanksFailed, Results
from shardbook.labs.rank_process import Task
from shardbook.labs.words import tell

__all__ = ["ranks", "warm_up"]

Result = TypeVar("Result")


def ranks(
    count: int, function: Callable[..., Result], *arguments: Any, timeout: float = 120
) -> list[Result]:
    """Call `function(*arguments)` on `count` ranks at once.

    The function and its arguments reach each rank as a copy, and so do the variables
    that the function uses. Every rank begins with the same random seed. What a rank
    prints appears at once, with its number before each line. After a million characters of
    a rank, its further lines are only counted.

    :param count: the number of ranks, at least 1
    :param function: may be defined in a cell
    :param timeout: seconds after which ranks that still run are ended, counted from the
        moment at which all of them have begun
    :returns: the results, in the order of the ranks
    :raises RanksFailed: if a rank raised an error, died, or did not return in time
    :raises TypeError: if the function or an argument cannot be sent to another process
    :raises RuntimeError: if no ranks can be started here
    """
    if count < 1:
        raise ValueError(f"count is {count}, but at least one rank must be started")
    if not hasattr(os, "fork"):
        raise RuntimeError(
            tell("Ranks need Linux or macOS. On Windows, start the lab in WSL.")
        )
    if dist.is_initialized():
        raise RuntimeError(
            tell("This process is a rank already, and a rank cannot start others.")
        )
    task = Task(
        count,
        pickled(function, arguments),
        *meeting_place(),
        gpus(),
        timeout,
        {**os.environ, "SHARDBOOK_LANG": language()},
        sys.path,
        str(Path.cwd()),
    )
    with LOCK:
        server = current()
        try:
            outcomes = server.run(task)
        # The pipe may hold half a message now, such as after Ctrl-C. So this server ends,
        # with its ranks, and another one starts.
        except BaseException:
            server.close()
            warm_up()
            raise
    failed = [each for each in outcomes if each.failure is not None]
    if failed:
        raise RanksFailed(failed)
    by_rank = sorted(outcomes, key=lambda each: each.rank)
    return Results(pickle.loads(each.result) for each in by_rank)


def pickled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """What a rank unpickles."""
    try:
        return bytes(cloudpickle.dumps((function, arguments)))
    # Each class raises an error of its own if its objects cannot be copied.
    except Exception as error:
        raise TypeError(
            tell(
                "{function} or one of its arguments cannot be sent to a rank: {error}",
                function=getattr(function, "__name__", function),
                error=error,
            )
        ) from error


def gpus() -> int:
    """The number of GPUs that the ranks may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


# ## The store


@functools.cache
def store(process: int) -> Any:
    """The store through which the ranks find each other.

    It belongs to no rank, as under `torchrun`. So it outlives each of them, and no rank
    that fails takes it from the others.

    :param process: this process, since a forked copy of it has no store
    """
    # Left to itself, the store would listen to the whole network.
    listener = socket.create_server(("127.0.0.1", 0))
    return dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1",
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


TASKS = itertools.count()


def meeting_place() -> tuple[int, str]:
    """The port of the store, and a part of its keys that no other task uses."""
    return store(os.getpid()).port, f"task-{next(TASKS)}"


# ## The server's process


class Server:
    """The process that forks the ranks, seen from the notebook."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.has_ranks = False
        self.pipe, there = Pipe()
        there_as_number = there.fileno()
        # The code finds this library where the notebook has found it. It does not run the
        # notebook's file.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from shardbook.labs.rank_server import serve; "
            f"serve({there_as_number})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**QUIET, **os.environ, "OMP_NUM_THREADS": "1", **FOR_MACOS},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[there_as_number],
            # Ctrl-C in a terminal goes to all processes of a session.
            start_new_session=True,
        )
        there.close()

    def run(self, task: Task) -> list[Any]:
        """Let it run a task, and print what the ranks print.

        :returns: the outcomes, the first failure at the head
        """
        self.has_ranks = True
        waiting = Waiting(tell("the ranks compute"))
        try:
            self.pipe.send(task)
            while not isinstance(message := self.message(waiting), list):
                number, lines = message
                prefix = tell("rank {number}", number=number)
                if isinstance(lines, int):
                    lines = [tell("… and {count:,} more lines.", count=lines)]
                say("\n".join(f"{prefix} | {line}" for line in lines))
        except (EOFError, ConnectionError) as error:
            code = self.process.wait()
            raise RuntimeError(
                tell(
                    "The process that starts the ranks ended with exit code {code}.",
                    code=code,
                )
            ) from error
        finally:
            waiting.close()
        self.has_ranks = False
        return message

    def message(self, waiting: Waiting) -> Any:
        """The next message of the server; the reader sees how long it takes."""
        while not self.pipe.poll(TICK):
            waiting.tick()
        return self.pipe.recv()

    def usable(self) -> bool:
        """Whether it runs, and belongs to this process and not to one that was forked."""
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        """End it, with its ranks."""
        # A forked copy of the notebook's process must not end the original's server.
        if self.owner != os.getpid():
            return
        self.pipe.close()
        # Without ranks it may end at once, even if it still imports PyTorch. With ranks it
        # ends them first, as soon as it sees that the pipe is closed.
        if not self.has_ranks:
            self.process.terminate()
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# The time is shown anew as often as this.
TICK = 0.5
# Importing PyTorch may take as long as this on a slow disk, and only then the server
# reads its pipe.
PATIENCE = 30.0
# macOS ends forked processes that use some of its libraries, unless this is set.
FOR_MACOS = {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
# A rank that looks into the store while it waits makes PyTorch warn of a time limit.
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
LOCK = threading.RLock()
servers: list[Server] = []


def current() -> Server:
    """The server of this process. It is started if there is none."""
    if not servers or not servers[-1].usable():
        servers[:] = [Server()]
    return servers[-1]


def warm_up() -> None:
    """Start the server, so that it can import PyTorch while the reader still reads."""
    if hasattr(os, "fork"):
        current()


@atexit.register
def close() -> None:
    """End the server together with the notebook."""
    for server in servers:
        server.close()
