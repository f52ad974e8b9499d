r"""# The server of the ranks

> A process that has imported PyTorch, and has done nothing else, forks the ranks of a
> lab.

How does a notebook get four more processes? There are two usual ways, and both fail.

* *Fork* the notebook's kernel. After its first backward pass the kernel has threads, and
  a forked copy does not. The copy waits forever for a thread that does not exist.
* *Spawn* new interpreters. Each imports PyTorch and this library once more. On a laptop
  that takes five seconds, for every call. And each runs the file that started it again,
  unless the file is written in a special way.

So there is a third process, the server. It starts once, imports everything, runs nothing,
and has no threads. Forking it takes milliseconds. Every call forks new ranks, so no call
sees what another has left behind.

The server also watches its ranks. It passes on what they print, up to a limit, so that a
rank never waits until somebody has read its lines. It ends ranks when their time is over,
and has them end when it ends itself. When the kernel ends or is interrupted, a
pipe closes, and the server ends its ranks and itself. No process is left.
"""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, NoReturn

import torch

from shardbook.labs import rank_process
from shardbook.labs.rank_outcomes import Ended, Outcome, Stuck, standing
from shardbook.labs.rank_process import Task
from shardbook.labs.reader_lines import Frame

__all__ = ["serve"]

# A machine that is busy with other programs may take as long to start the ranks.
START = 120.0
# The time that the other ranks get to fail as well, after one has failed, and that an
# aborted rank gets to write its stacks.
GRACE = 3.0
# The time that a rank has to end after its last message.
END = 10.0


def serve(descriptor: int) -> None:
    """Run tasks until the kernel closes its end of the pipe.

    :param descriptor: this process's end
    """
    client = Connection(descriptor)
    # Ctrl-C in a terminal reaches the kernel, and the kernel closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    import_everything()
    with suppress(EOFError, ConnectionError):
        while True:
            task = client.recv()
            client.send(Run(task, client).outcomes())


def import_everything() -> None:
    """Import what every rank would import."""
    # A pool of threads would not exist in a forked rank.
    torch.set_num_threads(1)
    # The first optimizer of a process imports the compiler, which takes seconds.
    torch.optim.SGD([torch.zeros(1)])
    importlib.import_module("shardbook")
    # A rank has no need to search all of this for garbage, and to copy it on the way.
    gc.collect()
    gc.freeze()


class Run:
    """The ranks of one task."""

    def __init__(self, task: Task, client: Connection) -> None:
        self.task, self.client = task, client
        self.seconds = START
        self.deadline = time.monotonic() + START
        self.ranks: list[Started] = []

    def outcomes(self) -> list[Outcome]:
        """Start the ranks, and follow them until the last has ended.

        :returns: one outcome for each rank, the first failure at the head
        :raises EOFError: if the kernel has gone
        """
        try:
            for number in range(self.task.count):
                self.ranks.append(self.start(number))
            first = self.listen(self.ranks, self.hear)
            begun = [each for each in first if each.begun]
            if len(begun) == self.task.count:
                self.seconds = self.task.seconds
                self.deadline = time.monotonic() + self.seconds
            order = [each for each in first if not each.begun]
            order += self.listen(begun, self.hear)
            if not self.failed():
                for each in self.ranks:
                    each.pipe.send("go")
                self.deadline = time.monotonic() + END
                order = self.listen(self.ranks, Started.say_goodbye)
            self.abort([each for each in self.ranks if each not in order])
        finally:
            # In whatever way this block is left, no process stays.
            for each in self.ranks:
                each.reap()
        for each in self.ranks:
            self.print_lines(each)
            if each.left_out:
                self.client.send((each.outcome.rank, each.left_out))
            each.close()
        late = [each for each in self.ranks if each not in order]
        # Of two failures at the same place in this order, the earlier one comes first.
        found = [each.outcome for each in [*order, *late]]
        return sorted(found, key=lambda outcome: outcome.place)

    def failed(self) -> bool:
        return any(each.outcome.result is None for each in self.ranks)

    def listen(
        self, ranks: Iterable[Started], hear: Callable[[Started], None]
    ) -> list[Started]:
        """Take one message of each rank, and print what they print meanwhile.

        :returns: the ranks that have sent one before the deadline, in their order
        """
        silent = {each.pipe: each for each in ranks}
        printing = {each.output: each for each in self.ranks}
        order: list[Started] = []
        while silent and (left := self.deadline - time.monotonic()) > 0:
            for ready in wait([self.client, *silent, *printing], timeout=left):
                if ready is self.client:
                    raise EOFError
                if isinstance(ready, int):
                    if not self.print_lines(printing[ready]):
                        del printing[ready]
                else:
                    each = silent.pop(ready)  # type: ignore[call-overload]
                    hear(each)
                    order.append(each)
        return order

    def hear(self, rank: Started) -> None:
        """Take that a rank has begun, or its result, or its error."""
        try:
            if (message := rank.pipe.recv()) is None:
                rank.begun = True
            else:
                rank.outcome.result, rank.outcome.failure = message
        except (EOFError, OSError):
            # The process ends, and all that it could say is its exit code.
            rank.outcome.failure = Ended(rank.reap(), rank.stands())
        if rank.outcome.failure is not None:
            self.deadline = min(self.deadline, time.monotonic() + GRACE)

    def abort(self, ranks: list[Started]) -> None:
        """End ranks that still run, and find out at which lines they stood."""
        seconds = None if any(r.outcome.failure for r in self.ranks) else self.seconds
        for each in ranks:
            # At this signal the process writes its stacks, and ends. A stopped process
            # gets it when it goes on.
            os.kill(each.process, signal.SIGABRT)
            os.kill(each.process, signal.SIGCONT)
        self.deadline = time.monotonic() + GRACE
        self.listen(ranks, Started.say_goodbye)
        for each in ranks:
            each.outcome.result = None
            each.outcome.failure = Stuck(seconds, each.stands())

    def print_lines(self, rank: Started) -> bool:
        """Pass on what a rank has printed.

        :returns: whether more may follow
        """
        lines, more = rank.read_lines()
        shown = rank.shorten(lines)
        if shown:
            self.client.send((rank.outcome.rank, shown))
        return more

    def start(self, number: int) -> Started:
        """Fork a rank."""
        here, there = Pipe()
        output, own_output = os.pipe()
        os.set_blocking(output, False)
        stacks = tempfile.TemporaryFile("w+")  # noqa: SIM115
        process = os.fork()
        if process == 0:
            # If a rank held the ends of the others' pipes, none would see them close.
            for each in [self.client, here, *(other.pipe for other in self.ranks)]:
                each.close()
            for inherited in [output, *(other.output for other in self.ranks)]:
                os.close(inherited)
            become(self.task, number, there, own_output, stacks)
        there.close()
        os.close(own_output)
        return Started(process, here, output, stacks, Outcome(number))


def become(
    task: Task, number: int, pipe: Connection, output: int, stacks: IO[str]
) -> NoReturn:
    """Turn a forked process into a rank. It never returns into the server's code."""
    code = 1
    try:
        # A process that the rank starts belongs to the same group, and ends with it.
        os.setpgid(0, 0)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.close(output)
        reopen_output()
        rank_process.run(task, number, pipe, stacks)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def reopen_output() -> None:
    """Send each line at once, even if a sign in it cannot be encoded."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        stream = open(  # noqa: SIM115
            descriptor,
            "w",
            1,
            encoding="utf-8",
            errors="backslashreplace",
            closefd=False,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


# A longer line is passed on in pieces.
LONGEST = 2**16
# So many characters of a rank are passed on, and the lines after them are counted.
MOST = 2**20


@dataclass(slots=True, eq=False)
class Started:
    """A rank, seen from the server.

    :param process: its number at the operating system
    :param output: what it prints can be read here
    :param stacks: its stacks are written here if it is aborted
    :param begun: whether it has called the reader's function
    :param room: how many characters of it may still be passed on
    :param left_out: how many of its lines were not passed on
    """

    process: int
    pipe: Connection
    output: int
    stacks: IO[str]
    outcome: Outcome
    begun: bool = False
    room: int = MOST
    left_out: int = 0
    unfinished: bytes = b""
    code: int | None = None

    def say_goodbye(self) -> None:
        """Take the last message of a rank, or the end of its pipe."""
        with suppress(EOFError, OSError):
            self.pipe.recv()

    def read_lines(self) -> tuple[list[str], bool]:
        """The lines that have been printed since, and whether more may follow."""
        more = True
        with suppress(BlockingIOError):
            while piece := os.read(self.output, LONGEST):
                self.unfinished += piece
                if len(self.unfinished) >= LONGEST:
                    break
            else:
                more = False
        *whole, self.unfinished = self.unfinished.split(b"\n")
        if not more or len(self.unfinished) >= LONGEST:
            whole += [self.unfinished] * bool(self.unfinished)
            self.unfinished = b""
        # A progress bar returns to the start of its line and writes it anew.
        return [
            line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
            for line in whole
        ], more

    def shorten(self, lines: list[str]) -> list[str]:
        """The lines for which there is room. All that follow are counted."""
        shown = []
        for line in lines:
            self.room -= len(line) + 1
            if self.room >= 0:
                shown.append(line)
        self.left_out += len(lines) - len(shown)
        return shown

    def stands(self) -> list[Frame]:
        """The lines at which an aborted process stood."""
        self.stacks.seek(0)
        return standing(self.stacks.read(), str(rank_process.__file__))

    def reap(self) -> int:
        """End the process with all that it has started, and return its exit code.

        The code is that of the process if it has ended by itself.
        """
        if self.code is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process, signal.SIGKILL)
            # Between its fork and its own group the process is in none of these.
            with suppress(ProcessLookupError):
                os.kill(self.process, signal.SIGKILL)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        return self.code

    def close(self) -> None:
        self.pipe.close()
        os.close(self.output)
        self.stacks.close()
