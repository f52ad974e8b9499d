"""Start many ranks in a test: one process each, gloo over the loopback, one thread each.

    def double(x):                       # at module level, so that a rank can import it
        ...                              # torch.distributed is initialised here
        return x                         # anything that can be pickled

    assert ranks.run(2, double, 21) == [42, 42]

The processes are forked from a server that has imported the test's file once, and has never run anything:
`spawn` would import torch, the book and the file again in every rank, and a plain `fork` hangs once the
parent has run a backward pass. Every call starts fresh processes, so no test sees what another left behind.
The server of one file is itself forked from one that has imported torch and the book. What else the ranks of
a file would all import, such as a library of models, a function `preload` of the file imports in its server.

What goes wrong is told whole: the traceback of every rank, with what an assert compared, and the rank that
failed first at the head; a rank that died, with its exit code; a rank that hangs, with the stacks of its
threads. Nothing is left running.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import importlib.util
import itertools
import multiprocessing
import os
import pickle
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any

# Every optimizer imports torch._dynamo, which takes seconds: once for all files.
PRELOAD = ["pytest", "hypothesis", "torch", "torch.distributed", "torch._dynamo", "shardbook"]
# What some of the versions of PyTorch that the tests run on say; `pyproject.toml` has the same.
SAID_BY_SOME = [
    "shardbook was tested with PyTorch",
    "Warning. Profiler clears events at the end of each cycle",
    "Guards may run slower on Python 3.13.0",
]
GRACE_S = 10.0  # what the other ranks get, after one has failed, to fail as well and say where

_servers = multiprocessing.get_context("forkserver")
_ranks = multiprocessing.get_context("fork")


class RanksFailed(AssertionError):
    """At least one rank raised, died or hung; the message holds what each had to say."""


def run(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 120,
    backend: str = "gloo",
    environ: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call `function(*args)` on `world_size` ranks at once and return their results in rank order.

    `function` stands at the top level of an importable module or of a test file; arguments and results are
    pickled. A run that takes longer than `timeout` seconds is killed. The ranks have the late device of
    `device/` if the backend names it. `environ` are variables of each rank, in which `{rank}` is its number.
    Raises `RanksFailed` with all that the ranks said.
    """
    __tracebackhide__ = True
    results, story = _server_of(function).ask(
        _Task.of(function, args, world_size, backend, environ or {}), timeout
    )
    if story:
        raise RanksFailed(story)
    return [pickle.loads(result) for result in results]


Answer = tuple[list[bytes], str]


class _Server:
    """A process that has imported a file and starts the ranks of its tests."""

    def __init__(self, module: str, file: str) -> None:
        _servers.set_forkserver_preload(PRELOAD)
        self.file = file
        self.pipe, there = _servers.Pipe()
        # Not a daemon, since it has children. At the end of its pipe it ends.
        self.process = _servers.Process(target=_serve, args=(there, module, file), name="rank-server")
        self.process.start()
        there.close()

    def ask(self, task: _Task, timeout: float) -> Answer:
        """Let it start the ranks of a task, and wait until they have ended."""
        try:
            self.pipe.send((task, timeout))
            return self.pipe.recv()  # type: ignore[no-any-return]
        except EOFError:
            self.process.join()
            return [], f"the process that starts the ranks died, exit code {self.process.exitcode}"
        except BaseException:
            # The test is over, such as by its own time limit: its ranks must not stay.
            self.kill()
            raise

    def close(self) -> None:
        """Let it end. It has no ranks now."""
        self.pipe.close()
        self.process.join()

    def kill(self) -> None:
        """End its ranks, and it."""
        global _current
        _current = None
        self.process.terminate()
        self.close()


_current: _Server | None = None


def _server_of(function: Callable[..., Any]) -> _Server:
    """The server of the file that a function stands in. One is enough: the tests of a file run in a row."""
    global _current
    file = str(sys.modules[function.__module__].__file__)
    if _current is None or _current.file != file or not _current.process.is_alive():
        _close()
        _current = _Server(function.__module__, file)
    return _current


@atexit.register
def _close() -> None:
    if _current is not None:
        _current.close()


@dataclass(frozen=True)
class _Task:
    """What every rank needs to find and call the function; plain strings and bytes."""

    module: str
    file: str
    name: str
    args: bytes
    world_size: int
    backend: str
    environ: dict[str, str]

    @staticmethod
    def of(
        function: Callable[..., Any], args: Any, world_size: int, backend: str, environ: Mapping[str, str]
    ) -> _Task:
        name = function.__qualname__
        if "<" in name:
            raise TypeError(
                f"a rank cannot import {name}; define the function at the top level of its module"
            )
        file = sys.modules[function.__module__].__file__
        return _Task(
            function.__module__, str(file), name, pickle.dumps(args), world_size, backend, {**environ}
        )

    def function(self) -> Callable[..., Any]:
        found: Any = _load(self.module, self.file)
        for part in self.name.split("."):
            found = getattr(found, part)
        return found  # type: ignore[no-any-return]


def _load(name: str, file: str) -> ModuleType:
    """Import a file as pytest does, which may use a name that no import path leads to."""
    if name not in sys.modules:
        hook = None
        # Without pytest, as on a machine that only runs `make gpu`, an assert says less.
        if importlib.util.find_spec("pytest"):
            from rank_asserts import hook

        spec = importlib.util.spec_from_file_location(name, file, loader=hook)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _serve(pipe: Connection, module: str, file: str) -> None:
    """What runs in the server of a file."""
    import torch

    # The signal that ends the server raises in it, so that it ends its ranks first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # An argument may be a function of a test file, whose name begins with the folder's: `tests.book`.
    sys.path.append(str(Path(__file__).parents[1]))
    # A pool of threads would not be there in a rank.
    torch.set_num_threads(1)
    # What is wrong with the file each rank tells, as it imports it once more.
    with suppress(Exception):
        getattr(_load(module, file), "preload", bool)()
    # No rank has to look through all of this for garbage, and copy its pages on the way.
    gc.collect()
    gc.freeze()
    port = _start_store()
    for run in itertools.count():
        try:
            task, timeout = pipe.recv()
        except EOFError:
            return
        pipe.send(_ranks_of(task, timeout, (port, f"run-{run}")))


def _start_store() -> int:
    """Start the store through which the ranks of all runs find each other; its port.

    As under torchrun, it belongs to none of the ranks and outlives them. It runs threads, and so in a process
    of its own. A `FileStore` would look for news every 10 ms only, and ranks agree on their order through it.
    """
    here, there = _ranks.Pipe()
    _ranks.Process(target=_keep_store, args=(there, here), name="rank-store", daemon=True).start()
    there.close()
    port: int = here.recv()
    _kept.append(here)
    return port


# At the end of this pipe the store ends.
_kept: list[Connection] = []


def _keep_store(pipe: Connection, other_end: Connection) -> None:
    import torch.distributed as dist

    other_end.close()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    with suppress(EOFError):
        pipe.recv()


Store = tuple[int, str]  # its port, and what the keys of one run begin with


def _ranks_of(task: _Task, timeout: float, store: Store) -> Answer:
    """Start the ranks of a task, wait for what they have to say, and leave nothing running."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
        started = [_start(task, folder, store, rank) for rank in range(task.world_size)]
        try:
            _listen(started, time.monotonic() + timeout)
            if all(rank.result is not None for rank in started):
                _let_go(started)
        finally:
            _end(started)
        if all(rank.result is not None and not rank.story for rank in started):
            return [rank.result for rank in started if rank.result is not None], ""
        return [], _tell(started, timeout)


@dataclass
class _Rank:
    """One rank, seen from the test's process."""

    number: int
    process: Any
    pipe: Connection
    stacks: Path
    result: bytes | None = None
    story: str = ""
    failed_at: float = float("inf")


def _start(task: _Task, folder: str, store: Store, rank: int) -> _Rank:
    here, there = _ranks.Pipe()
    process = _ranks.Process(
        target=_rank_main, args=(task, folder, store, rank, there), name=f"rank-{rank}", daemon=True
    )
    process.start()
    there.close()
    return _Rank(rank, process, here, Path(folder, f"stacks-{rank}"))


def _listen(started: list[_Rank], deadline: float) -> None:
    """Take one message from each rank, until the deadline or the end of the grace after a first failure."""
    silent = {rank.pipe: rank for rank in started}
    while silent and (left := deadline - time.monotonic()) > 0:
        for pipe in wait(list(silent), timeout=left):
            assert isinstance(pipe, Connection)
            rank = silent.pop(pipe)
            try:
                rank.result, rank.story, rank.failed_at = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionError):
                rank.process.join()
                # A death outranks every traceback: the others failed because their peer was gone.
                rank.failed_at = 0
                rank.story = f"died without a word, exit code {rank.process.exitcode}\n{_stacks(rank)}"
            if rank.story:
                deadline = min(deadline, time.monotonic() + GRACE_S)


def _let_go(started: list[_Rank]) -> None:
    """Let the ranks destroy their group only now: one that leaves early cuts off those that still receive."""
    for rank in started:
        rank.pipe.send_bytes(b"go")
    for rank in started:
        rank.process.join(GRACE_S)
        if rank.process.exitcode is None:
            rank.story = "returned, but its process does not end"
        elif rank.process.exitcode:
            rank.story = (
                f"returned, but its process ended with exit code {rank.process.exitcode}\n{_stacks(rank)}"
            )


def _end(started: list[_Rank]) -> None:
    """Kill what still runs, and keep the stacks of what hung."""
    for rank in started:
        if rank.process.is_alive():
            hangs = rank.result is None and not rank.story
            # It may have ended since, and then its own story is the one to tell.
            with suppress(ProcessLookupError):
                os.kill(rank.process.pid, signal.SIGABRT if hangs else signal.SIGKILL)
            rank.process.join(GRACE_S)
            rank.process.kill()
            if hangs:
                rank.story = f"HANGS\n{_stacks(rank)}"
        rank.process.join()
        rank.process.close()
        rank.pipe.close()


def _stacks(rank: _Rank) -> str:
    return rank.stacks.read_text() if rank.stacks.exists() else ""


def _tell(started: list[_Rank], timeout: float) -> str:
    bad = sorted((rank for rank in started if rank.story), key=lambda rank: rank.failed_at)
    hanging = [str(rank.number) for rank in bad if rank.story.startswith("HANGS")]
    head = f"{len(bad)} of {len(started)} ranks failed"
    if hanging:
        limit = f"{timeout:g} s" if len(hanging) == len(bad) else f"{GRACE_S:g} s after the first failure"
        head += f"; no answer within {limit} from rank {', '.join(hanging)}"
    return "\n".join([head, *(f"\n--- rank {rank.number}: {rank.story.rstrip()}" for rank in bad)])


def _rank_main(task: _Task, folder: str, store: Store, rank: int, pipe: Connection) -> None:
    """What runs in a rank's own process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with Path(folder, f"stacks-{rank}").open("w") as stacks:
        faulthandler.enable(file=stacks)
        try:
            result = _call(task, store, rank)
        except BaseException:
            pipe.send_bytes(pickle.dumps((None, traceback.format_exc(), time.monotonic())))
            # No tidying: closing the sockets at once is what tells the other ranks.
            os._exit(1)
        pipe.send_bytes(pickle.dumps((result, "", float("inf"))))
        pipe.recv_bytes()
        _leave()
        faulthandler.disable()


def _call(task: _Task, place: Store, rank: int) -> bytes:
    import torch
    import torch.distributed as dist

    os.environ.update({name: value.replace("{rank}", str(rank)) for name, value in task.environ.items()})
    warnings.simplefilter("default" if os.environ.get("RANK_WARNINGS") == "default" else "error")
    for message in SAID_BY_SOME:
        warnings.filterwarnings("ignore", message)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    if "late" in task.backend:
        from device import runtime

        runtime.install()
    port, prefix = place
    store = dist.PrefixStore(prefix, dist.TCPStore("127.0.0.1", port))
    dist.init_process_group(task.backend, store=store, rank=rank, world_size=task.world_size)
    # A rank that ends or fails while others still connect to it would fail them, too.
    store.set(f"connected/{rank}", "")
    store.wait([f"connected/{other}" for other in range(task.world_size)])
    return pickle.dumps(task.function()(*pickle.loads(task.args)))


def _leave() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
