r"""# Starting ranks on this machine

> A process that has imported PyTorch, and has done nothing else, forks the ranks of every
> task.

`torchrun` starts the ranks of a program. But a notebook, a test or a benchmark is a
program that runs already, and it needs a few ranks for one function:

```python
server = Server()
mean = Task(2, pickle.dumps((mean_over_ranks, (10.0,))))
server.run(mean)  # [10.5, 10.5]
```

How does a program get two more processes? There are two usual ways, and both fail.

* *Fork* the program. After its first backward pass the program has threads, and a forked
  copy does not. The copy waits forever for a thread that does not exist.
* *Spawn* new interpreters. Each imports PyTorch and this library once more. On a laptop
  that takes five seconds, for every call. And each runs the file that started it again,
  unless the file is written in a special way.

So there is a third process, the [fork server](forkserver.py). It starts once, imports
everything, runs nothing, and has no threads. Forking it takes milliseconds. Every task
forks new ranks, so no task sees what another has left behind.

When one rank fails, the ranks that wait for it fail after it. So the program gets one
error for the whole task, which shows [how each rank ended](#module/how-a-rank-ended).
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist

__all__ = [
    "Ended",
    "Frame",
    "Outcome",
    "Place",
    "Raised",
    "RanksFailed",
    "Server",
    "ServerEnded",
    "Stuck",
    "Task",
    "call",
    "frames_of",
    "raised",
]


@dataclass(frozen=True, slots=True)
class Task:
    """What the ranks have to do.

    :param count: the number of ranks
    :param call: the pickled pair of a function and its arguments; the ranks unpickle it
    :param seconds: the time that the function may take on all ranks
    :param grace: the time that the other ranks get to fail as well, after one has failed,
        and that an aborted rank gets to write its stacks
    :param begin: called on each rank before it joins the process group, with its number;
        returns the device to which NCCL binds the group, or `None`
    :param prepare: a pickled function that a copy of the server calls before it forks the
        ranks of this task, and of all that follow with the same bytes
    :param dumps: pickles what a rank returns
    """

    count: int
    call: bytes
    backend: str = "gloo"
    seconds: float = 120
    grace: float = 3
    begin: Callable[[int], torch.device | None] | None = None
    prepare: bytes = b""
    dumps: Callable[[object], bytes] = pickle.dumps


class Server:
    """The process that forks the ranks, seen from the program that needs them.

    It starts with the first task, and ends with the program.

    :param modules: what the ranks of all tasks would import, where it is installed
    """

    # Seconds from one call of `tick` to the next.
    interval = 0.5

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self.modules = list(modules)
        self.lock = threading.RLock()
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)

    def run(
        self,
        task: Task,
        show: Callable[[int, list[str] | int], object] | None = None,
        tick: Callable[[], object] = bool,
    ) -> list[Any]:
        """Start the ranks, and wait until the last of them has ended.

        :param show: called with the number of a rank and the lines that it has printed,
            or at the end with the number of lines that are left out
        :param tick: called again and again while the ranks compute
        :returns: the results, in the order of the ranks
        :raises RanksFailed: if a rank raised an error, died, or did not return in time
        :raises ServerEnded: if the server was killed
        """
        with self.lock:
            process = self.start()
            try:
                outcomes = self.outcomes(task, show or print_lines, tick)
            # The pipe may hold half a message now, such as after Ctrl-C. So this process
            # ends, with its ranks, and the next task starts another one.
            except BaseException as error:
                self.close()
                if isinstance(error, EOFError | ConnectionError):
                    raise ServerEnded(process.wait()) from error
                raise
        if any(each.failure for each in outcomes):
            raise RanksFailed(outcomes)
        by_rank = sorted(outcomes, key=lambda each: each.rank)
        return [pickle.loads(each.result or b"") for each in by_rank]

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process if there is none, so that it imports PyTorch meanwhile."""
        if running := self.running():
            return running
        self.owner, self.has_ranks, self.prepared = os.getpid(), False, b""
        self.pipe, there = Pipe()
        # The code finds this library where this program has found it. It does not run the
        # program's file.
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; "
            "from shardbook.foundations.forkserver import serve; "
            f"serve({there.fileno()}, {self.modules!r})"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={**QUIET, **os.environ, "OMP_NUM_THREADS": "1", **FOR_MACOS},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[there.fileno()],
            # Ctrl-C in a terminal goes to all processes of a session.
            start_new_session=True,
        )
        there.close()
        return self.process

    def running(self) -> subprocess.Popen[bytes] | None:
        """The process, if it runs and was not started by one that this is a fork of."""
        if self.process is None or self.owner != os.getpid():
            return None
        return self.process if self.process.poll() is None else None

    def outcomes(
        self,
        task: Task,
        show: Callable[[int, list[str] | int], object],
        tick: Callable[[], object],
    ) -> list[Outcome]:
        """Let the server run a task, and show what the ranks print.

        :returns: the outcomes, the first failure at the head
        """
        self.has_ranks = True
        self.prepare(task.prepare)
        self.pipe.send((task, Place.here()))
        while not isinstance(message := self.message(tick), list):
            show(*message)
        self.has_ranks = False
        return message

    def prepare(self, hook: bytes) -> None:
        """Let a copy of the server run a hook. The copy with an earlier hook ends."""
        if hook != self.prepared:
            if self.prepared:
                self.pipe.send(None)
            if hook:
                self.pipe.send(hook)
            self.prepared = hook

    def message(self, tick: Callable[[], object]) -> Any:
        """The next message of the server."""
        while not self.pipe.poll(self.interval):
            tick()
        return self.pipe.recv()

    def close(self) -> None:
        """End the process, with its ranks."""
        # A forked copy of the program must not end the original's server.
        if (process := self.running()) is None:
            return
        self.pipe.close()
        # Without ranks it may end at once, even if it still imports PyTorch. With ranks it
        # ends them first, as soon as it sees that the pipe is closed.
        if not self.has_ranks:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


# Importing PyTorch may take as long as this on a slow disk, and only then the server
# reads its pipe.
PATIENCE = 30.0
# macOS ends forked processes that use some of its libraries, unless this is set.
FOR_MACOS = {"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}
# A rank that looks into the store while it waits makes PyTorch warn of a time limit.
QUIET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}


def print_lines(rank: int, lines: list[str] | int) -> None:
    """Print what a rank has printed, with its number before each line."""
    if isinstance(lines, int):
        lines = [f"… and {lines:,} more lines."]
    print(*(f"rank {rank} | {line}" for line in lines), sep="\n", flush=True)


@dataclass(frozen=True, slots=True)
class Place:
    """What a rank takes over from the program, and where the ranks find each other.

    :param port: where the store listens
    :param prefix: what the keys of this task begin with
    """

    environment: dict[str, str]
    path: list[str]
    folder: str
    port: int
    prefix: str

    @staticmethod
    def here() -> Place:
        """This process, and a part of the store that no other task uses."""
        port = store(os.getpid()).port
        prefix = f"task-{next(TASKS)}"
        return Place({**os.environ}, sys.path, str(Path.cwd()), port, prefix)


TASKS = itertools.count()


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


# ## How a rank ended
#
# > The error of a task shows what happened to every rank, and begins with the rank that
# > failed first.
#
# When one rank raises an error, the other ranks wait for it in a collective, and fail a
# moment later because a connection was closed. That error says nothing about the cause, so
# it comes after the others.
#
# A rank may also end without an error, because the operating system killed it, or it may
# not end at all. Then the stacks of its threads show where it stood.


@dataclass(frozen=True, slots=True)
class Frame:
    """A line that was running."""

    file: str
    line: int
    function: str


@dataclass(frozen=True, slots=True)
class Raised:
    """A rank raised an error. It is sent as text, since its class may be unknown elsewhere.

    :param kind: the name of the error's class
    :param text: the error in words
    :param frames: from the function of the task to the line that raised the error
    :param cause: the error that it was raised from
    :param traceback: all that Python prints of the error
    """

    kind: str
    text: str
    frames: list[Frame]
    cause: Raised | None
    traceback: str

    @property
    def lost_connection(self) -> bool:
        """Whether another rank closed a connection, which is never the first failure."""
        closed = r"onnection (closed by peer|reset|refused)"
        return re.search(closed, self.text) is not None

    def __str__(self) -> str:
        return self.traceback


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank's process ended without a result and without an error.

    :param code: its exit code; negative for a signal, as in
        [`subprocess`](https://docs.python.org/3/library/subprocess.html)
    """

    code: int
    stacks: str = ""

    @property
    def frames(self) -> list[Frame]:
        """The lines of the function that were running."""
        return standing(self.stacks)

    def __str__(self) -> str:
        return f"died without a word, exit code {self.code}\n{self.stacks}"


@dataclass(frozen=True, slots=True)
class Stuck:
    """A rank was still running at the end of its time.

    :param seconds: the time that it had; `None` if it was ended because another failed
    """

    seconds: float | None
    stacks: str = ""

    @property
    def frames(self) -> list[Frame]:
        """The lines of the function that were running."""
        return standing(self.stacks)

    @property
    def limit(self) -> str:
        """When its time was over."""
        if self.seconds is None:
            return "after another had failed"
        return f"within {self.seconds:g} s"

    def __str__(self) -> str:
        return f"HANGS\n{self.stacks}"


@dataclass(slots=True)
class Outcome:
    """What became of one rank: a result, as pickled bytes, or a failure."""

    rank: int
    result: bytes | None = None
    failure: Raised | Ended | Stuck | None = None

    @property
    def place(self) -> int:
        """Where the outcome stands in the message: the lower, the nearer to the cause."""
        match self.failure:
            case Raised() if self.failure.lost_connection:
                return 2
            case Stuck() if self.failure.seconds is None:
                return 3
            # The others may have raised their errors because this rank had died.
            case Ended():
                return 0
        return 1


class RanksFailed(Exception):
    """At least one rank raised an error, died, or did not end in time.

    :param outcomes: of all ranks
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        failed = [each for each in outcomes if each.failure]
        self.outcomes = sorted(failed, key=lambda each: each.place)
        head = f"{len(failed)} of {len(outcomes)} ranks failed"
        hung = {e.rank: e.failure for e in failed if isinstance(e.failure, Stuck)}
        for stuck in [*hung.values()][:1]:
            numbers = ", ".join(map(str, hung))
            head += f"; no answer {stuck.limit} from rank {numbers}"
        told = (f"rank {each.rank}: {each.failure}".rstrip() for each in self.outcomes)
        super().__init__("\n\n--- ".join([head, *told]))


class ServerEnded(RuntimeError):
    """The server was killed, such as by a system whose memory ran out."""

    def __init__(self, code: int) -> None:
        self.code = code
        super().__init__(
            f"the process that starts the ranks ended with exit code {code}"
        )


def raised(error: BaseException, depth: int = 0) -> Raised:
    """What a rank sends about an error that it has caught.

    :param depth: how many errors have been raised from it
    """
    frames = frames_of(error.__traceback__)
    ours = [at for at, frame in enumerate(frames) if frame.file == __file__]
    cause = error.__cause__
    return Raised(
        type(error).__name__,
        str(error),
        # An error of the process group has no frames of the function. All of it is sent.
        frames[ours[-1] + 1 :] if ours else frames,
        # Two errors may name each other as their causes.
        raised(cause, depth + 1) if cause is not None and depth < 8 else None,
        "" if depth else "".join(traceback.format_exception(error)),
    )


def frames_of(trace: TracebackType | None) -> list[Frame]:
    """The frames of a traceback, the innermost last."""
    walked = traceback.walk_tb(trace)
    summary = traceback.StackSummary.extract(walked, lookup_lines=False)
    return [Frame(each.filename, each.lineno or 0, each.name) for each in summary]


def call(function: Callable[..., object], arguments: tuple[Any, ...]) -> object:
    """Call a task's function. The frames above this one belong to it."""
    return function(*arguments)


def standing(stacks: str, within: str = __file__) -> list[Frame]:
    r"""The frames of a rank in the text that
    [`faulthandler`](https://docs.python.org/3/library/faulthandler.html) has written.

    :param stacks: its text, with the stacks of all threads, the innermost frame first
    :param within: the file of `call`, which calls the task's function

    >>> text = 'Thread 0x1:\n  File "t.py", line 9 in wait\n\nCurrent thread 0x2:\n'
    >>> text += '  File "cell.py", line 3 in work\n  File "rank.py", line 50 in call\n'
    >>> standing(text, "rank.py")
    [Frame(file='cell.py', line=3, function='work')]
    """
    for stack in re.split(r"\n(?=\S)", stacks):
        found = [
            Frame(file, int(line), function)
            for file, line, function in re.findall(
                r'^  File "(.*)", line (\d+) in (.*)$', stack, re.MULTILINE
            )
        ]
        calls = [(frame.file, frame.function) for frame in found]
        if (within, "call") in calls:
            # The frames that follow belong to the rank's process.
            return found[: calls.index((within, "call"))][::-1]
    return []
