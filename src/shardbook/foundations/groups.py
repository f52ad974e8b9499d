r"""# Who shares with whom

> A model can be shared by all ranks, or shared by some and repeated by others.

Eight ranks on one machine exchange vectors faster than eight machines do. In stage 3
a unit is gathered twice in a step, so its ranks should be on one machine. A mesh
of two dimensions says so: the ranks of one row share one copy of the model, and the
ranks of one column hold the same part of different copies. Here each row is a machine:

| | shard 0 | shard 1 |
|---|---|---|
| **replica 0** | rank 0 | rank 1 |
| **replica 1** | rank 2 | rank 3 |

A gradient is averaged along the row first, which leaves each rank $1/N_d$ of it, and
then along the column. Only that part travels between the machines. For a vector of $B$
bytes and $R$ replicas a rank sends in a step

$$2\,\frac{R-1}{R}\,\frac{B}{N_d}$$

bytes to other machines. That is the price of the replicas; one copy over all ranks
would instead send each gather over the slow links. The memory is a price, too: each
machine stores a whole copy.

The mean takes three exchanges: a reduce-scatter along the row, then a reduce-scatter
and an all-gather down the column. If a rank waited for each of them in turn, the last
two would hide behind nothing. So [the conductor](conductor.py#Conductor.advance) starts
each one when the next unit's gradients are ready, and the rank computes meanwhile.

While one group reduces, another may gather. On NCCL that is safe only if all ranks
carry out the exchanges of both groups in one order. So [the order](exchange_order.py)
covers all exchanges of a mesh and is the same on each of its ranks, and an exchange of
one group [waits for that of the other](collectives.py#take_turn).

:notation $N_d$: `world_size`, the number of ranks that share one copy
:notation $R$: `copies`, the number of replicas
:notation $B$: the bytes of the whole vector
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import Work
from torch.distributed.device_mesh import DeviceMesh

from shardbook.foundations.collectives import (
    all_gather,
    broadcast,
    reduce_scatter_mean,
    world,
)

__all__ = ["Groups", "Mean", "all_reduce_mean", "groups_of"]
# sidelit: show


@dataclass(frozen=True, slots=True)
class Groups:
    """The process groups that one rank of a sharded model belongs to.

    As everywhere in `torch.distributed`, `None` is the group of all ranks.

    :param shards: the ranks that share one copy of the model: a row of the mesh
    :param everyone: the ranks of all copies
    :param replicas: the ranks that hold the same part of other copies: a column of the
        mesh; `None` if there is one copy only
    """

    shards: Any = None
    everyone: Any = None
    replicas: Any = None

    @property
    def copies(self) -> int:
        """How many copies of the model there are."""
        return 1 if self.replicas is None else world(self.replicas)[1]

    def repeated(self) -> Groups:
        """The same ranks with nothing shared: every rank holds a copy of its own."""
        return Groups(shards=self.everyone, everyone=self.everyone)

    def partners(self) -> dict[str, Sequence[int]]:
        """The ranks that meet this one in an exchange, by [what it is
        called](exchange_order.py#Order.before), where these are not all.
        """
        if self.copies == 1:
            return {}
        row = dist.get_process_group_ranks(self.shards)
        column = dist.get_process_group_ranks(self.replicas)
        return {**dict.fromkeys(IN_ROWS, row), **dict.fromkeys(BETWEEN_COPIES, column)}

    def copy_from_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor on every rank with the values of the first rank.

        They travel down the first column and then along each row.
        """
        if self.replicas is not None:
            broadcast(tensor, source=0, group=self.replicas)
        broadcast(tensor, source=0, group=self.shards)

    def mean(self, vector: Tensor) -> Mean:
        """Start to average a gradient over the rows and over all copies of the model.

        :param vector: as for
            [`reduce_scatter_mean`](collectives.py#reduce_scatter_mean)
        """
        later = BETWEEN_COPIES if self.copies > 1 else ()
        return Mean(self.exchanges(vector), later)

    def exchanges(self, vector: Tensor) -> Generator[list[Work], None, Tensor]:
        """The exchanges of a mean, one after the other. Each is started, and its end is
        waited for only when the generator goes on.
        """
        row = reduce_scatter_mean(vector, group=self.shards)
        yield row.works
        return (yield from self.mean_over_replicas(row.wait()))

    def mean_over_replicas(self, piece: Tensor) -> Generator[list[Work], None, Tensor]:
        """The exchanges for the mean of a rank's part over all copies of the model."""
        if self.copies > 1:
            yield from all_reduce_mean(piece, group=self.replicas)
        return piece


# What the exchanges of a mesh are called.
IN_ROWS = ("gather", "reduce")
BETWEEN_COPIES = ("average the copies of", "gather the average of")


class Mean:
    """A mean under way.

    :param exchanges: the exchanges that it takes; the first one is started at once
    :param later: what the others are called [in the common
        order](exchange_order.py#Order.before)
    """

    def __init__(
        self, exchanges: Generator[list[Work], None, Tensor], later: Iterable[str]
    ) -> None:
        self.exchanges, self.later = exchanges, list(later)
        self.works = next(exchanges)

    @property
    def following(self) -> str | None:
        """What the next exchange is called; `None` if the one under way is the last."""
        return self.later[0] if self.later else None

    def advance(self) -> Tensor | None:
        """Wait for the exchange under way, and start the next.

        :returns: the mean, once there is no next one
        """
        del self.later[:1]
        try:
            self.works = next(self.exchanges)
        except StopIteration as end:
            self.works = []
            mean: Tensor = end.value
            return mean
        return None

    # sidelit: depth A backward pass that failed while its mean was under way.

    def abandon(self) -> None:
        """Wait for the exchange under way, and start no other."""
        for work in self.works:
            work.wait()


def groups_of(mesh: Any) -> Groups:
    """The groups that a process group or a mesh stands for.

    :param mesh: `None`, a process group, or a `DeviceMesh`. Of two dimensions the first
        repeats the model and the second shards it, as in PyTorch's `fully_shard`.
    :raises ValueError: if the mesh has more than two dimensions, or its ranks stand in
        another order than PyTorch numbers them
    :raises TypeError: if it is neither a mesh nor a group
    """
    refuse_unfit_mesh(mesh)
    if not isinstance(mesh, DeviceMesh):
        return Groups(shards=mesh, everyone=mesh)
    if mesh.ndim == 1:
        return Groups(shards=mesh.get_group(), everyone=mesh.get_group())
    # A mesh of all ranks needs no new group for them. For a part of them only its own
    # ranks can be asked to form one, because nobody else calls this function.
    everyone = None
    if mesh.size() < dist.get_world_size():
        everyone = dist.new_group(
            mesh.mesh.flatten().tolist(), use_local_synchronization=True
        )
    return Groups(
        shards=mesh.get_group(1), everyone=everyone, replicas=mesh.get_group(0)
    )


def all_reduce_mean(
    vector: Tensor, *, group: Any = None
) -> Generator[list[Work], None, None]:
    r"""The two exchanges that replace a vector by its mean over the ranks, on every rank.

    A reduce-scatter averages it piece by piece, and an all-gather puts the pieces
    together, straight into the vector that was sent. On gloo the sum then runs in rank
    order, as it does in [`reduce_scatter_mean`](collectives.py#reduce_scatter_mean).

    :param vector: 1-D, floating point, its number of elements a multiple of the ranks
    """
    reducing = reduce_scatter_mean(vector, group=group)
    yield reducing.works
    gathering = all_gather(vector, reducing.wait(), group=group)
    yield gathering.works
    gathering.wait()


# sidelit: depth A mesh of more than two dimensions, or one whose ranks are not in order.


def refuse_unfit_mesh(mesh: Any) -> None:
    """Refuse what stands for no groups of ranks."""
    if not isinstance(mesh, DeviceMesh | dist.ProcessGroup | None):
        raise TypeError(
            f"mesh={mesh!r} is neither a DeviceMesh nor a process group; "
            "pass one of them, or None for all ranks"
        )
    if not isinstance(mesh, DeviceMesh) or mesh.ndim == 1:
        return
    if mesh.ndim > 2:
        raise ValueError(
            f"a mesh of {mesh.ndim} dimensions is not supported; "
            "pass the two of them that replicate and shard the model"
        )
    # PyTorch sorts the ranks of each group. In a mesh that is not sorted, the ranks of
    # one column would hold different parts and average them with each other.
    ranks = mesh.mesh
    if any((ranks.diff(dim=dim) < 0).any() for dim in (0, 1)):
        raise ValueError(
            f"the ranks of the mesh {ranks.tolist()} are not in order; "
            "let them grow along each row and down each column"
        )
