r"""# Starting the ranks

> Each process reads its rank from the environment, chooses its device, and joins the
> process group.

`torchrun` starts one process for each rank, and sets environment variables: `RANK=1`
and `WORLD_SIZE=4` make a process rank 1 of 4. `MASTER_ADDR` and `MASTER_PORT` say where
the ranks meet. This chapter reads these variables, joins the process group, and leaves
it at the end. When the ranks meet, [they compare their
options](ranks.py#module/the-same-options-on-all) first.

:notation $A$: `copies`, the number of copies of the model, here one for each machine
:notation $S$: `ranks`, the number of ranks that share one copy
:notation $B$: the bytes of all parameters
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore

from shardbook.command import (
    Mistake,
    OwnMistake,
    rank_and_ranks,
    real,
    short,
    variable,
    was_launched,
    whole,
)
from shardbook.foundations.agreement import FAREWELL, until
from shardbook.state.run_state import Compared

__all__ = [
    "LAUNCH",
    "RunOptions",
    "Shape",
    "given",
    "machine",
    "mesh_of",
    "part_of_store",
    "refuse_different",
    "refuse_unfit_shape",
    "shape",
    "start",
]

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
    part of the store](ranks.py#part_of_store).

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


# sidelit: core


# ## Training on several machines
#
# > If the network between machines is slow, each machine holds a copy of the model and
# > shards it among its own ranks.
#
# Four ranks on two machines could share one copy of a model. Then each unit would be
# gathered over the network between the machines, once for the forward pass and once for
# the backward pass. With `--mesh 2x2` there are two copies, and the two ranks of a
# machine share one. Units are gathered inside a machine, and only [the mean of the
# gradients](collectives.py#module/ranks-that-share-a-model) is computed between
# machines. A GPT of 33.7 million parameters in FP32 has 135 MB. In one step, one
# machine sends to the other:
#
# | | formula | with $A = 2$ machines of $S = 2$ ranks |
# |---|---|---|
# | `--mesh 2x2` | $2\,\frac{A-1}{A}\,B$ | 135 MB |
# | one copy, at least | $(2 + S)\,\frac{A-1}{A}\,B$ | 270 MB |
#
# In the first row each of the $S$ ranks of a machine averages its part of the
# gradients, $B/S$ bytes, with the other copies. In the second row a machine stores
# $B/A$ bytes, and two gathers send them to each other machine. The gathers send more if
# a collective sends one piece to several ranks of the same machine. For the
# reduce-scatter, each rank sends [over
# gloo](collectives.py#module/all-to-all-instead-of) one piece to every rank of the
# other machines. `python -m benchmarks.two_nodes` measures both rows over a network of
# limited speed.
#
# The price of the copies is memory. With $A$ copies a rank stores $1/S$ of parameters,
# gradients and moments instead of $1/(A\,S)$.
#
# You start the same line on every machine. The line names the machine where all of them
# meet:
#
# ```sh
# torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 \
#     --rdzv-backend c10d --rdzv-endpoint first-machine:29500 --rdzv-id run-1 \
#     -m shardbook.train --mesh 2x8 --checkpoints /shared/run
# ```
#
# `torchrun` numbers the ranks of one machine consecutively, and a row of the mesh
# consists of consecutive ranks. So each row is one machine. The folder of [the
# checkpoints](saving.py) has to be on a disk that all machines see, because each rank
# writes its part. The folder `examples/` of the repository has this line as a script, a
# script for Slurm and a `PyTorchJob` for Kubernetes.


class Shape(NamedTuple):
    """The number of copies of the model, and the number of ranks that share each copy."""

    copies: int
    ranks: int

    @property
    def size(self) -> int:
        """The number of all ranks."""
        return self.copies * self.ranks

    def __str__(self) -> str:
        return f"{self.copies}x{self.ranks}"


def shape(text: str) -> Shape:
    """Read a shape from the command line.

    >>> shape("2x4")
    Shape(copies=2, ranks=4)

    :raises argparse.ArgumentTypeError: if the text is no shape
    """
    numbers = re.fullmatch(r"(\d{1,6})x(\d{1,6})", text)
    if numbers is None or not all(map(int, numbers.groups())):
        raise argparse.ArgumentTypeError(
            f"is {short(text)}, which is no shape; write copies x ranks without blanks, such as 2x8"
        )
    return Shape(*map(int, numbers.groups()))


RANKS = whole(1, 10**6)


def mesh_of(options: argparse.Namespace, device: torch.device) -> Any:
    """The mesh for [`shard`](model.py#shard); `None` if all ranks share one copy.

    :raises Mistake: on every rank, if the shape is for another number of ranks
    """
    if options.mesh is None:
        return None
    refuse_unfit_shape(options, dist.get_world_size())
    mesh: DeviceMesh = init_device_mesh(device.type, tuple(options.mesh))
    return mesh


def part_of_store(
    store: Any, rank: int, world_size: int, limit: timedelta
) -> PrefixStore:
    """Agree on a part of a store that belongs to this attempt only.

    When a rank dies, `torchrun` ends the ranks of all machines and starts them again.
    The store survives with the entries of the earlier attempt.
    `TORCHELASTIC_RESTART_COUNT` does not distinguish the attempts: the `torchrun` on the
    machine of the dead rank counts the restart, and that of another machine may not
    count it.

    So rank 0 offers a new name, and each other rank accepts it. A rank may start early
    and find the name of an earlier rank 0. This rank 0 no longer answers, so the rank
    looks again. Each answer names one process, so an old answer cannot be mistaken for
    a new one.

    :param store: the same for all ranks
    :param limit: how long to wait for the other ranks
    :raises TimeoutError: on a rank that got no answer in this time
    """
    if rank:
        return PrefixStore(accepted_name(store, rank, limit), store)
    name = f"ranks {uuid4().hex}"
    store.set(OFFER, name)
    for other in range(1, world_size):
        process = store.get(f"{name} accepted by {other}").decode()
        store.set(f"{name} answered to {process}", "")
    return PrefixStore(name, store)


OFFER = "shardbook.train: offered name"


def accepted_name(store: Any, rank: int, limit: timedelta) -> str:
    """Wait for the name that rank 0 of this attempt offers, and for its answer."""
    process, name = uuid4().hex, ""
    until = time.monotonic() + limit.total_seconds()
    while time.monotonic() < until:
        if store.check([OFFER]):
            offered = store.get(OFFER).decode()
            if offered != name:
                name = offered
                store.set(f"{name} accepted by {rank}", process)
            if store.check([f"{name} answered to {process}"]):
                return name
        time.sleep(0.01)
    raise TimeoutError(f"rank 0 has not answered rank {rank} within {limit}")


# sidelit: depth A shape that does not fit the run.


def refuse_unfit_shape(options: argparse.Namespace, ranks: int) -> None:
    """Refuse a shape for another number of ranks.

    :raises Mistake: naming both numbers
    """
    if options.mesh is not None and options.mesh.size != ranks:
        raise Mistake(
            f"--mesh {options.mesh} is for {options.mesh.size} ranks, but there "
            f"{'is' if ranks == 1 else 'are'} {ranks}; let copies times ranks be {ranks}"
        )


# sidelit: core


# ## The same options on all ranks and in a resumed run
#
# > All ranks compare their options before the first step, and a resumed run compares its
# > options with those in the checkpoint.
#
# Every rank is started by its own command line. Suppose the line of one machine says
# `--lr 0.01`, and those of the others `--lr 0.001`. Then a few slices of each parameter
# move ten times as far as the others. No exchange notices it, and the loss may still
# fall. So each rank writes its options into [the store](ranks.py#meeting_place) where the
# ranks meet. If two of them differ, all ranks refuse to start, with the same sentence.
#
# A resumed run is compared with its checkpoint, too. Some options may change there:
#
# | option | on another rank | in a resumed run |
# |---|---|---|
# | `--optimizer`, `--heads`, … give the checkpoint its meaning | the same | the same |
# | `--lr`, `--batch`, `--precision`, … decide the next steps | the same | may change, which is printed |
# | `--save-every`, `--sample`, … change no step | the same | may change |
# | `--json`, `--cache`, … are places of one rank alone | may differ | may change |
#
# The paths of the text and of a pretrained model are like `--save-every`: a run may move
# to another disk. The contents are compared as well, by [a short
# hash](text.py#fingerprint), and must be the same in both columns. `--device auto`
# and `--backend auto` are compared by what they have chosen.


# Rank 0 writes most of these files, and each of these folders may lie on a disk of its
# own. `--config` names a file of options, and the options in it are compared.
OF_A_RANK = {"file", "cache", "json", "jsonl", "profile", "memory_snapshot"}
# A checkpoint has the values of one model, one optimizer and one order of the text.
OF_A_CHECKPOINT = {
    *("layers", "width", "heads", "context", "held_out", "seed", "optimizer"),
    *("train", "lora_rank", "lora_targets"),
}
# These change no step of a resumed run, so nothing is printed if they change.
BESIDE_THE_STEPS = {
    *("data", "tokenizer", "model", "device", "backend", "units", "track"),
    *("checkpoints", "save_every", "keep", "save_in_background", "out", "replace"),
    *("evaluate_every", "evaluate_batches", "sample", "prompt"),
}


def given(options: argparse.Namespace) -> dict[str, str]:
    """The options of this rank that must be the same on every rank, as text.

    The contents of files [are among them](text.py#prepare).

    >>> given(argparse.Namespace(lr=0.1, save_every=3, json="figures.json"))
    {'--lr': '0.1', '--save-every': '3'}
    """
    values = {
        flag(name): "left out" if value is None else str(value)
        for name, value in vars(options).items()
        if name not in OF_A_RANK and isinstance(value, PLAIN)
    }
    return values | getattr(options, "content", {})


# A program also stores what it has made from the options, such as a list of files.
PLAIN = (int, float, str, tuple, Path, type(None))


def flag(name: str) -> str:
    """The word of the command line for an option."""
    return "--" + name.replace("_", "-")


def refuse_different(
    store: Any, rank: int, world_size: int, mine: Mapping[str, str]
) -> None:
    """Refuse to start ranks with different options. Collective.

    Rank 0 reads the options of all ranks, and the others read its decision. So the
    number of messages grows with the number of ranks, and not with its square.

    :param store: a part of the store that belongs to these ranks
    :param mine: the options of this rank
    :raises Mistake: on every rank, with the same text
    """
    store.set(f"options of {rank}", json.dumps(mine))
    if rank == 0:
        every = [json.loads(store.get(f"options of {r}")) for r in range(world_size)]
        store.set("difference", difference(every))
    found = store.get("difference").decode()
    if found:
        # The process of rank 0 may keep the store, so no rank ends before all have read.
        store.add("read", 1)
        until(lambda: bool(store.add("read", 0) == world_size), FAREWELL)
        raise Mistake(found)


def difference(every: Sequence[Mapping[str, str]]) -> str:
    """Describe the first option that differs, and name the others; empty if all are equal.

    >>> lr, seed = {"--lr": "0.1", "--seed": "0"}, {"--lr": "0.1", "--seed": "1"}
    >>> difference([lr, seed, lr])
    '--seed differs between the ranks: 0 on rank 0, 1 on rank 1; start every rank with the same options'
    >>> difference([lr, lr])
    ''
    """
    names = dict.fromkeys(name for each in every for name in each)
    values = {name: [each.get(name, "unknown") for each in every] for name in names}
    differ = [name for name in names if len({*values[name]}) > 1]
    if not differ:
        return ""
    first, *others = differ
    also = f" (and {', '.join(others[:8])})" if others else ""
    return (
        f"{first}{also} differs between the ranks: {by_rank(values[first])}; start every "
        "rank with the same options"
    )


def by_rank(values: Sequence[str]) -> str:
    """Say which ranks have which value."""
    ranks: dict[str, list[str]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(str(rank))
    (value, _), *others = ranks.items()
    told = [f"{short(each)} on rank {listed(who)}" for each, who in others[:8]]
    return f"{short(value)} on rank 0, {', '.join(told)}"


def listed(ranks: Sequence[str]) -> str:
    """The first of some ranks, and how many there are more."""
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return ", ".join(ranks[:8]) + more


class RunOptions(Compared):
    """The options of a run, as [a part of its state](run_state.py#Compared).

    `changes` says which options of a resumed run have another value than before.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.now = given(options)
        self.changes = ""

    def state_dict(self) -> dict[str, str]:
        """The options as text."""
        return self.now

    def compare(self, saved: Mapping[str, str] | None) -> None:
        """Compare the options of a checkpoint with these.

        An option that an older version did not have or did not save is not compared.

        :raises ValueError: naming an option that must be the same
        """
        changed = {
            name: (before, self.now[name])
            for name, before in (saved or {}).items()
            if name in self.now and before != self.now[name]
        }
        # The contents of files have no flag, and must be the same.
        kept = {*map(flag, OF_A_CHECKPOINT), *(n for n in changed if n[:2] != "--")}
        for name, (before, now) in changed.items():
            if name in kept:
                raise ValueError(
                    f"{name} was {short(before)} when the checkpoint was saved, and is "
                    f"{short(now)} now; go on with the same, or name another folder"
                )
        told = [
            f"{name} {short(now)} instead of {short(before)}"
            for name, (before, now) in changed.items()
            if name not in {*map(flag, BESIDE_THE_STEPS)}
        ]
        self.changes = ", with " + ", ".join(told) if told else ""
