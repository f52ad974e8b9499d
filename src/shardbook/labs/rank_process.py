r"""# A rank of a lab

> A rank takes over the output, the seed and the device that a lab promises, joins the
> process group, and calls the reader's function.

The function arrives as bytes, because it was defined in a cell, and no other process
could import it. [cloudpickle](https://github.com/cloudpipe/cloudpickle) writes the code
itself into these bytes, with the classes, the modules and the variables that it uses.

A rank's own output goes into a pipe, and the [server](rank_server.py) takes it from
there line by line. The rank says when it begins with the function, because the time
limit of the function begins then. When the function has returned, the rank waits until all others have
returned as well. If it left the process group earlier, it would cut off a rank that
still receives.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import random
import socket
import sys
import threading
import warnings
from dataclasses import dataclass, replace
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import IO, Any

import cloudpickle
import torch
import torch.distributed as dist

from shardbook.labs.rank_outcomes import Raised, raised

__all__ = ["SEED", "Task", "device", "rank", "run"]

# Every rank begins with the same random numbers, and a lab gives the same results each
# time. A rank that needs others adds its number: `torch.manual_seed(SEED + rank())`.
SEED = 0


@dataclass(frozen=True, slots=True)
class Task:
    """What the ranks have to do, and where they meet.

    :param function: the pickled function with its arguments
    :param port: where the store listens through which the ranks find each other
    :param prefix: what the keys of this task begin with
    :param gpus: how many there are; 0: the ranks compute on the CPU
    :param seconds: the time that the function may take
    :param environment: the variables of the notebook's process
    :param path: where its imports are looked up
    :param folder: its working folder
    """

    count: int
    function: bytes
    port: int
    prefix: str
    gpus: int
    seconds: float
    environment: dict[str, str]
    path: list[str]
    folder: str

    @property
    def backend(self) -> str:
        """NCCL connects ranks that have a GPU each. Gloo connects all others."""
        return "nccl" if self.count <= self.gpus else "gloo"


def run(task: Task, number: int, pipe: Connection, stacks: IO[str]) -> None:
    """Live as a rank, and send `None` before the function is called, and afterwards its
    result or its error.

    :param pipe: to the server; at its other end's end this process ends, too
    :param stacks: the file for the stacks of a process that is aborted
    """
    faulthandler.enable(stacks)
    # Windows has no such module, and no ranks either.
    import resource

    # An aborted rank leaves no file with its memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    go = threading.Event()
    threading.Thread(target=follow, args=(pipe, go), daemon=True).start()
    try:
        result = prepare_and_call(task, number, pipe)
        sent: tuple[bytes | None, Raised | None] = (result, None)
    # A function may also end with `sys.exit`.
    except BaseException as error:
        sent = (None, own_part(raised(error)))
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send(sent)
    if sent[1] is None:
        go.wait()
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


def prepare_and_call(task: Task, number: int, pipe: Connection) -> bytes:
    """Join the process group, call the function, and pickle its result."""
    os.environ.clear()
    os.environ.update(task.environment)
    sys.path[:] = task.path
    os.chdir(task.folder)
    torch.set_num_threads(1)
    # An error is shown once. PyTorch would repeat it in a warning if a hook raises it
    # again.
    warnings.filterwarnings("ignore", "module forward hook with ``always_call")
    if task.gpus:
        torch.cuda.set_device(number % task.gpus)
    join(task, number)
    torch.manual_seed(SEED)
    random.seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)
    function, arguments = pickle.loads(task.function)
    pipe.send(None)
    return bytes(cloudpickle.dumps(call(function, arguments)))


def call(function: Any, arguments: tuple[Any, ...]) -> Any:
    """The frames above this one belong to the reader."""
    return function(*arguments)


def own_part(error: Raised) -> Raised:
    """The error without the frames of this module."""
    ours = [at for at, frame in enumerate(error.frames) if frame.file == __file__]
    # An error of the process group has no frames of the reader. All of it is shown.
    frames = error.frames[ours[-1] + 1 :] if ours else error.frames
    cause = None if error.cause is None else own_part(error.cause)
    return replace(error, frames=frames, cause=cause)


def join(task: Task, number: int) -> None:
    """Initialise `torch.distributed`, and wait until every rank has done so."""
    names = {name for _, name in socket.if_nameindex()}
    for loopback in names & {"lo", "lo0"}:
        # Otherwise gloo looks the machine's own name up, which needs a network.
        os.environ["GLOO_SOCKET_IFNAME"] = loopback
    meeting: Any = dist
    store = meeting.PrefixStore(task.prefix, meeting.TCPStore("127.0.0.1", task.port))
    dist.init_process_group(
        task.backend,
        store=store,
        rank=number,
        world_size=task.count,
        # The lab's own limit comes first, and can say where each rank stands.
        timeout=timedelta(seconds=task.seconds + 60),
        device_id=device() if task.backend == "nccl" else None,
    )
    # A rank that fails while others still connect to it would fail them, too.
    store.set(f"connected/{number}", "")
    store.wait([f"connected/{other}" for other in range(task.count)])


def rank() -> int:
    """The number of this rank.

    :raises RuntimeError: outside of the function that [`labs.ranks`](lab_ranks.py#ranks)
        runs
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "this process is no rank; labs.rank() has a value in a function that labs.ranks runs"
        )
    return dist.get_rank()


def device() -> torch.device:
    """Where to compute: in a rank its GPU, elsewhere the first GPU. Without a GPU, the
    CPU.

    >>> device().type in ("cpu", "cuda")
    True
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())
