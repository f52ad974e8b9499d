r"""# The fork server

> A process that has imported PyTorch forks the ranks, passes on what they print, and ends
> those whose time is over.

The [program that needs ranks](ranks.py) sends a task through a pipe. The fork server forks
one process for each rank, and sends back what they print, and at the end what became of
each.

It passes on what they print up to a limit, so that a rank never waits until somebody has
read its lines. It ends ranks when their time is over, and has them end when it ends itself.
When the program ends or is interrupted, the pipe closes, and the fork server ends its ranks
and itself. No process is left.

A program may have a hook for its tasks, such as the import of a library that only these
need. Then a copy of the fork server runs the hook, and forks the ranks from then on. What
the hook has imported is gone as soon as the copy ends.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import os
import pickle
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import IO, Any

import torch
import torch.distributed as dist

from shardbook.foundations.ranks import (
    Ended,
    Outcome,
    Place,
    Raised,
    Stuck,
    Task,
    call,
    raised,
)

__all__ = ["serve"]


# A machine that is busy with other programs may take as long to start the ranks.
START = 120.0
# The time that a rank has to end after its last message.
END = 10.0


def serve(descriptor: int, modules: Sequence[str]) -> None:
    """Import what every rank would import, and run tasks until the program closes its end
    of the pipe.

    :param descriptor: this process's end
    """
    # A pool of threads would not exist in a forked rank.
    torch.set_num_threads(1)
    # The first optimizer of a process imports the compiler, which takes seconds.
    torch.optim.SGD([torch.zeros(1)])
    for name in modules:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    freeze()
    answer(Connection(descriptor), None)


def freeze() -> None:
    """Spare the ranks to search all of this for garbage, and to copy it on the way."""
    gc.collect()
    gc.freeze()


def answer(client: Connection, fault: BaseException | None) -> None:
    """Do what the program sends: tasks, or hooks that prepare for tasks.

    :param fault: what the hook has raised that this process was prepared with
    """
    with suppress(EOFError, ConnectionError):
        while (message := client.recv()) is not None:
            if isinstance(message, bytes):
                answer_in_copy(client, message)
            else:
                task, place = message
                client.send(Run(client, task, place, fault).outcomes())


def answer_in_copy(client: Connection, hook: bytes) -> None:
    """Let a copy of this process call a hook, and do what the program sends meanwhile.

    So what one hook imports is not there for the next.
    """

    def prepared() -> None:
        fault = None
        try:
            pickle.loads(hook)()
        # The ranks raise it: the program learns of it as of any error.
        except BaseException as error:
            fault = error
        freeze()
        answer(client, fault)

    # A copy that was killed leaves the program without an answer.
    if os.waitpid(fork(prepared), 0)[1]:
        os._exit(1)


def fork(body: Callable[[], None]) -> int:
    """Call a function in a copy of this process, which never returns into other code."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


@dataclass(eq=False)
class Run:
    """The ranks of one task."""

    client: Connection
    task: Task
    place: Place
    fault: BaseException | None
    ranks: list[Started] = field(default_factory=list)
    seconds: float = START

    def outcomes(self) -> list[Outcome]:
        """Start the ranks, and follow them until the last has ended.

        :returns: one outcome for each rank, in the order in which they ended
        :raises EOFError: if the program has gone
        """
        self.deadline = time.monotonic() + START
        try:
            for number in range(self.task.count):
                self.ranks.append(self.start(number))
            order = self.ended()
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
        return [each.outcome for each in [*order, *late]]

    def ended(self) -> list[Started]:
        """Follow the ranks to their results, and let them go.

        :returns: the ranks that ended by themselves, in their order
        """
        first = self.listen(self.ranks, self.hear)
        begun = [each for each in first if each.begun]
        if len(begun) == self.task.count:
            self.seconds = self.task.seconds
            self.deadline = time.monotonic() + self.seconds
        order = [each for each in first if not each.begun]
        order += self.listen(begun, self.hear)
        if all(each.outcome.result is not None for each in self.ranks):
            for each in self.ranks:
                each.pipe.send("go")
            self.deadline = time.monotonic() + END
            order = self.listen(self.ranks, self.hear)
        self.abort([each for each in self.ranks if each not in order])
        return order

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
        """Take that a rank has begun, its result or its error, or that it is about to end."""
        try:
            if (message := rank.pipe.recv()) is None:
                rank.begun = True
            else:
                rank.outcome.result, rank.outcome.failure = message
        except (EOFError, OSError):
            # The process ends, and all that it could say is its exit code.
            rank.outcome.failure = Ended(rank.reap(), rank.stands())
        if rank.outcome.failure is not None:
            self.deadline = min(self.deadline, time.monotonic() + self.task.grace)

    def abort(self, ranks: list[Started]) -> None:
        """End ranks that still run, and find out at which lines they stood."""
        failed = any(each.outcome.failure for each in self.ranks)
        for each in ranks:
            # At this signal the process writes its stacks, and ends. A stopped process
            # gets it when it goes on.
            os.kill(each.process, signal.SIGABRT)
            os.kill(each.process, signal.SIGCONT)
        self.deadline = time.monotonic() + self.task.grace
        self.listen(ranks, Started.say_goodbye)
        for each in ranks:
            stacks = each.stands()
            each.outcome.failure = Stuck(None if failed else self.seconds, stacks)

    def print_lines(self, rank: Started) -> bool:
        """Pass on what a rank has printed.

        :returns: whether more may follow
        """
        lines, more = rank.read_lines()
        if shown := rank.shorten(lines):
            self.client.send((rank.outcome.rank, shown))
        return more

    def start(self, number: int) -> Started:
        """Fork a rank."""
        here, there = Pipe()
        output, own_output = os.pipe()
        os.set_blocking(output, False)
        stacks = tempfile.TemporaryFile("w+")  # noqa: SIM115

        def become_rank() -> None:
            # If a rank held the ends of the others' pipes, none would see them close.
            for pipe in [self.client, here, *(other.pipe for other in self.ranks)]:
                pipe.close()
            for inherited in [output, *(other.output for other in self.ranks)]:
                os.close(inherited)
            take_output(own_output)
            faulthandler.enable(stacks)
            live(self.task, self.place, number, there, self.fault)

        process = fork(become_rank)
        there.close()
        os.close(own_output)
        return Started(process, here, output, stacks, Outcome(number))


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
    :param begun: whether it has called the task's function
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

    def stands(self) -> str:
        """The stacks of an aborted process."""
        self.stacks.seek(0)
        return self.stacks.read()

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


# ## A rank
#
# > A rank joins the process group, calls the function of its task, and leaves the group
# > when all ranks have returned.
#
# A rank's own output goes into a pipe, and the server takes it from there line by line. The
# rank says when it begins with the function, because the time limit of the function begins
# then. When the function has returned, the rank waits until all others have returned as
# well. If it left the process group earlier, it would cut off a rank that still receives.


def take_output(output: int) -> None:
    """Send each line of this process at once, even if a sign in it cannot be encoded."""
    # A process that the rank starts belongs to the same group, and ends with it.
    os.setpgid(0, 0)
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(output, descriptor)
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
    os.close(output)


def live(
    task: Task, place: Place, number: int, pipe: Connection, fault: BaseException | None
) -> None:
    """Live as a rank, and send `None` before the function is called, and afterwards its
    result or its error.

    :param pipe: to the server; at its other end's end this process ends, too
    """
    # Windows has no such module, and no ranks either.
    import resource

    # An aborted rank leaves no file with its memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    go = threading.Event()
    threading.Thread(target=follow, args=(pipe, go), daemon=True).start()
    try:
        if fault is not None:
            raise fault
        function, arguments = join(task, place, number)
        pipe.send(None)
        result = task.dumps(call(function, arguments))
        sent: tuple[bytes | None, Raised | None] = (result, None)
    # A function may also end with `sys.exit`.
    except BaseException as error:
        sent = (None, raised(error))
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send(sent)
    if sent[1] is None:
        go.wait()
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send(None)
    # A rank that failed closes its connections at once. So the others fail as well, and
    # do not wait for it.


def follow(pipe: Connection, go: threading.Event) -> None:
    """Wait until all ranks have returned. If the server has gone, end this rank."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        os._exit(1)
    go.set()


def join(task: Task, place: Place, number: int) -> tuple[Callable[..., object], Any]:
    """Initialise `torch.distributed`, and wait until every rank has done so.

    :returns: the function and its arguments
    """
    os.environ.clear()
    os.environ.update(place.environment)
    sys.path[:] = place.path
    os.chdir(place.folder)
    for loopback in {name for _, name in socket.if_nameindex()} & {"lo", "lo0"}:
        # Otherwise gloo looks the machine's own name up, which needs a network.
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
    device = task.begin(number) if task.begin else None
    # The constructors of stores have no types in PyTorch.
    stores: Any = dist
    store = stores.PrefixStore(place.prefix, stores.TCPStore("127.0.0.1", place.port))
    dist.init_process_group(
        task.backend,
        store=store,
        rank=number,
        world_size=task.count,
        # The task's own limit comes first, and can say where each rank stands.
        timeout=timedelta(seconds=max(1800, task.seconds + 60)),
        device_id=device,
    )
    # A rank that fails while others still connect to it would fail them, too.
    store.set(f"connected/{number}", "")
    store.wait([f"connected/{other}" for other in range(task.count)])
    unpickled: tuple[Callable[..., object], Any] = pickle.loads(task.call)
    return unpickled
