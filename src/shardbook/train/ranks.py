r"""# Starting the ranks

> Each process reads its rank from the environment, chooses its device, and joins the
> process group.

`torchrun` starts one process for each rank, and sets environment variables: `RANK=1`
and `WORLD_SIZE=4` make a process rank 1 of 4. `MASTER_ADDR` and `MASTER_PORT` say where
the ranks meet. This chapter reads these variables, joins the process group, and leaves
it at the end. When the ranks meet, [they compare their options](same_options.py) first.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist

from shardbook.command import (
    Mistake,
    OwnMistake,
    rank_and_ranks,
    real,
    variable,
    was_launched,
)
from shardbook.train.machines import RANKS, part_of_store
from shardbook.train.same_options import given, refuse_different

__all__ = ["LAUNCH", "machine", "start"]

LAUNCH = "torchrun --standalone --nproc-per-node 2 -m shardbook.train"


@contextmanager
def start(options: argparse.Namespace) -> Iterator[torch.device]:
    """Join the process group, and leave it at the end.

    :returns: the device of this rank
    :raises Mistake: if the environment's variables contradict each other, the device
        does not exist, the ranks do not meet, or their options differ
    """
    launched = was_launched()
    rank, world_size = environment() if launched else (0, 1)
    device, backend = choose_device(options)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # If one rank fails, the others should wait for it at most five minutes. The default
    # of the backend is longer.
    limit = timedelta(minutes=5)
    # A process that was started alone meets nobody, so its meeting place is in its own
    # memory.
    store = dist.HashStore()  # type: ignore[attr-defined]
    if launched:
        mine = given(options) | {"--device": device.type, "--backend": backend}
        store = meeting_place(rank, world_size, limit, mine)
    dist.init_process_group(
        backend,
        rank=rank,
        world_size=world_size,
        store=store,
        timeout=limit,
    )
    try:
        yield device
    finally:
        dist.destroy_process_group()


def meeting_place(
    rank: int, world_size: int, limit: timedelta, mine: dict[str, str]
) -> Any:
    """The store through which the ranks exchange their addresses.

    `torchrun` may [start the ranks again](saving.py). The store survives the restart,
    with the addresses of ranks that no longer exist. So the new ranks [agree on a new
    part of the store](machines.py#part_of_store).

    :param mine: the options of this rank
    :raises Mistake: if the ranks do not meet in time, or their options differ
    """

    def meet() -> Any:
        # Connecting ends by itself a little later than the limit. Then PyTorch prints
        # the stack of its own functions.
        longer = limit + timedelta(minutes=1)
        store, _, _ = next(
            dist.rendezvous("env://", rank, world_size, timeout=longer)  # type: ignore[attr-defined]
        )
        store.set_timeout(limit)
        part = part_of_store(store, rank, world_size, limit)
        refuse_different(
            part, rank, world_size, {**mine, "WORLD_SIZE": str(world_size)}
        )
        return part

    return waited_for(meet, rank, world_size, limit)


def environment() -> tuple[int, int]:
    """The rank of this process and the world size, as set by `torchrun`."""
    return rank_and_ranks(LAUNCH)


def choose_device(options: argparse.Namespace) -> tuple[torch.device, str]:
    """Choose the device of this rank, and the backend that connects such devices."""
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    here = number("LOCAL_WORLD_SIZE", least=1, default="1")
    kind = options.device
    if kind == "auto":
        kind = "cuda" if gpus >= here else "cpu"
    backend = options.backend
    if backend == "auto":
        backend = "nccl" if kind == "cuda" else "gloo"
    refuse_missing(kind, backend, gpus, here)
    if kind == "cpu":
        return torch.device("cpu"), backend
    return torch.device(
        "cuda", number("LOCAL_RANK", least=0, default="0") % gpus
    ), backend


def machine(add: Callable[..., Any]) -> None:
    """The options for the device, the backend, and a plan of the memory."""
    add(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="auto: a GPU for each rank, else the CPU",
    )
    add(
        "--backend",
        choices=["auto", "gloo", "nccl"],
        default="auto",
        help="gloo lets ranks share one GPU",
    )
    add(
        "--plan",
        action="store_true",
        help="only say what a rank would store and send, and whether it fits",
    )
    add(
        "--ranks",
        type=RANKS,
        metavar="NUMBER",
        help="with --plan: the number of ranks; left out: those that were started",
    )
    add(
        "--memory",
        type=real(1e-9, 1e12),
        metavar="GB",
        help="with --plan: what one rank may take; left out: its share of this machine",
    )


# sidelit: depth Surroundings in which no rank can start.


def waited_for(
    meet: Callable[[], Any], rank: int, world_size: int, limit: timedelta
) -> Any:
    """Let the ranks meet, and say after some seconds which address this rank waits for.

    A wrong address may belong to another program, which never answers. PyTorch's time
    limit does not end such a wait. So another thread waits, which the end of the
    program does not wait for.

    :param meet: returns when all ranks are there
    :returns: what `meet` returns
    :raises OwnMistake: if they are not there in time, or the port is in use
    """
    place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    where = f"at {place} (MASTER_ADDR:MASTER_PORT)"
    ended: list[tuple[Any, BaseException | None]] = []

    def wait() -> None:
        try:
            ended.append((meet(), None))
        except BaseException as error:
            ended.append((None, error))

    thread = Thread(target=wait, name="meeting", daemon=True)
    thread.start()
    thread.join(PATIENCE.total_seconds())
    # Most often, the address is wrong or a rank was not started. The line lets the user
    # see which, long before the time limit.
    if not ended:
        print(
            f"rank {rank}: still waiting for all {world_size} ranks {where}",
            file=sys.stderr,
        )
        thread.join((limit - PATIENCE).total_seconds())
    # The errors of PyTorch name neither the variables nor what to do.
    result, error = ended[0] if ended else (None, TimeoutError())
    if isinstance(error, TimeoutError):
        raise OwnMistake(
            f"not all of {world_size} ranks have met {where} within {limit}; start all "
            "of them, with the address of rank 0's machine"
        ) from error
    if "EADDRINUSE" in str(error):
        raise OwnMistake(
            f"port {os.environ['MASTER_PORT']} (MASTER_PORT) of this machine is in use; "
            "choose another one for all ranks"
        ) from error
    if isinstance(error, dist.DistError):
        reason = str(error).partition("\n")[0]
        raise OwnMistake(f"the ranks cannot meet {where}: {reason}") from error
    if error is not None:
        raise error
    return result


PATIENCE = timedelta(seconds=10)


def number(name: str, *, least: int, default: str | None = None) -> int:
    """Read a whole number from the environment."""
    return variable(name, LAUNCH, least=least, default=default)


def refuse_missing(kind: str, backend: str, gpus: int, here: int) -> None:
    """Refuse a device that does not exist, or that the backend does not connect.

    :param gpus: the number of GPUs on this machine
    :param here: the number of ranks on this machine
    :raises Mistake: naming the option or the number
    """
    if kind == "cpu":
        if backend == "nccl":
            raise Mistake(
                "--backend nccl connects GPUs only; use --backend gloo on the CPU"
            )
    elif gpus == 0:
        raise OwnMistake(
            "--device cuda: torch sees no CUDA device here; use --device cpu"
        )
    elif backend == "nccl" and gpus < here:
        raise OwnMistake(
            f"{here} ranks were started on this machine, but it has {gpus} GPUs and nccl wants one for each; "
            "start fewer ranks, or let them share with --backend gloo"
        )
