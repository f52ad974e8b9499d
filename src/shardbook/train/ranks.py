r"""# Starting the ranks

> Each process reads its rank from the environment, chooses its device, and joins the
> process group.

`torchrun` starts one process for each rank, and sets environment variables: `RANK=1`
and `WORLD_SIZE=4` make a process rank 1 of 4. `MASTER_ADDR` and `MASTER_PORT` say where
the ranks meet. This chapter reads these variables, joins the process group, and leaves
it at the end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
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

__all__ = ["LAUNCH", "machine", "start"]

LAUNCH = "torchrun --standalone --nproc-per-node 2 -m shardbook.train"


@contextmanager
def start(options: argparse.Namespace) -> Iterator[torch.device]:
    """Join the process group, and leave it at the end.

    :returns: the device of this rank
    :raises Mistake: if the environment's variables contradict each other, or the device
        does not exist
    """
    launched = was_launched()
    rank, world_size = environment() if launched else (0, 1)
    device, backend = choose_device(options)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    limit = timedelta(minutes=5)
    # A process that was started without `torchrun` is the only rank, so its store is in
    # its own memory.
    store = dist.HashStore() if not launched else meeting_place(rank, world_size, limit)  # type: ignore[attr-defined]
    # If one rank fails, the others should wait for it at most five minutes. The default
    # of the backend is longer.
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


def meeting_place(rank: int, world_size: int, limit: timedelta) -> Any:
    """The store through which the ranks exchange their addresses.

    `torchrun` may [start the ranks again](saving.py). The store survives the restart,
    with the addresses of ranks that no longer exist. So the new ranks [agree on a new
    part of the store](machines.py#part_of_store).
    """
    store, _, _ = next(dist.rendezvous("env://", rank, world_size, timeout=limit))  # type: ignore[attr-defined]
    return part_of_store(store, rank, world_size, limit)


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
