r"""# Training on several machines

> If the network between machines is slow, each machine holds a copy of the model and
> shards it among its own ranks.

Four ranks on two machines could share one copy of a model. Then each unit would be
gathered over the network between the machines, once for the forward pass and once for
the backward pass. With `--mesh 2x2` there are two copies, and the two ranks of a machine
share one. Units are gathered inside a machine, and only [the mean of the
gradients](groups.py) is computed between machines. A GPT of 33.7 million parameters in
FP32 has 135 MB. In one step, one machine sends to the other:

| | formula | with $A = 2$ machines of $S = 2$ ranks |
|---|---|---|
| `--mesh 2x2` | $2\,\frac{A-1}{A}\,B$ | 135 MB |
| one copy, at least | $(2 + S)\,\frac{A-1}{A}\,B$ | 270 MB |

In the first row each of the $S$ ranks of a machine averages its part of the gradients,
$B/S$ bytes, with the other copies. In the second row a machine stores $B/A$ bytes, and
two gathers send them to each other machine. The gathers send more if a collective sends
one piece to several ranks of the same machine. For the reduce-scatter, each rank sends
[over gloo](exchange.py) one piece to every rank of the other machines. `python -m
benchmarks.two_nodes` measures both rows over a network of limited speed.

The price of the copies is memory. With $A$ copies a rank stores $1/S$ of parameters,
gradients and moments instead of $1/(A\,S)$.

You start the same line on every machine. The line names the machine where all of them
meet:

```sh
torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 \
    --rdzv-backend c10d --rdzv-endpoint first-machine:29500 --rdzv-id run-1 \
    -m shardbook.train --mesh 2x8 --checkpoints /shared/run
```

`torchrun` numbers the ranks of one machine consecutively, and a row of the mesh
consists of consecutive ranks. So each row is one machine. The folder of [the
checkpoints](saving.py) has to be on a disk that all machines see, because each rank
writes its part. The folder `examples/` of the repository has this line as a script, a
script for Slurm and a `PyTorchJob` for Kubernetes.

:notation $A$: `copies`, the number of copies of the model, here one for each machine
:notation $S$: `ranks`, the number of ranks that share one copy
:notation $B$: the bytes of all parameters
"""

from __future__ import annotations

import argparse
import re
import time
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore

from shardbook.command import Mistake, short, whole

__all__ = ["Shape", "mesh_of", "part_of_store", "refuse_unfit_shape", "shape"]


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
