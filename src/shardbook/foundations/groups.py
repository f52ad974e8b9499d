r"""# Ranks that share a model, and ranks that repeat it

> All ranks can share one copy of a model, or groups of ranks can each hold a copy.

Eight ranks on one machine exchange vectors faster than eight machines do. In stage 3 a
unit is gathered twice in a step, so the ranks that share it should be on one machine.
For that you pass a mesh of two dimensions. The ranks of one row share one copy of the
model, and the ranks of one column hold the same part of different copies, the
*replicas*. In this example each row is a machine:

| | shard 0 | shard 1 |
|---|---|---|
| **replica 0** | rank 0 | rank 1 |
| **replica 1** | rank 2 | rank 3 |

A gradient is averaged along the row first, which leaves each rank $1/N_d$ of it, and
then along the column. Only this part is sent between the machines. For a vector of $B$
bytes and $R$ replicas a rank sends in each step

$$2\,\frac{R-1}{R}\,\frac{B}{N_d}$$

bytes to other machines. One copy over all ranks would instead send every gather over
the slow links between the machines. The replicas cost memory, too: each machine stores
a whole copy.

The mean takes three exchanges: a reduce-scatter along the row, then a reduce-scatter
and an all-gather along the column. If a rank waited for each of them at once, no
computation would hide the last two. So [the conductor](conductor.py#Conductor.advance)
starts each one when the next unit's gradients are ready, and the rank computes
meanwhile.

One group may reduce while another gathers. On NCCL that is safe only if all ranks run
the exchanges of both groups in one order. So [the order](exchange_order.py) covers all
exchanges of a mesh and is the same on each of its ranks. And an exchange of one group
[waits for that of the other](collectives.py#take_turn).

:notation $N_d$: `world_size`, the number of ranks that share one copy
:notation $R$: `copies`, the number of replicas
:notation $B$: the bytes of the whole vector
"""

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


@dataclass(frozen=True, slots=True)
class Groups:
    """The process groups to which one rank of a sharded model belongs.

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
        """The number of copies of the model."""
        return 1 if self.replicas is None else world(self.replicas)[1]

    def repeated(self) -> Groups:
        """The same ranks in groups that share nothing, so that every rank holds a copy of the model."""
        return Groups(shards=self.everyone, everyone=self.everyone)

    def partners(self) -> dict[str, Sequence[int]]:
        """The ranks that take part in an exchange with this one, where these are not
        all ranks.

        :returns: the ranks, by [the action](exchange_order.py#Order.before) of the
            exchange
        """
        if self.copies == 1:
            return {}
        row = dist.get_process_group_ranks(self.shards)
        column = dist.get_process_group_ranks(self.replicas)
        return {**dict.fromkeys(IN_ROWS, row), **dict.fromkeys(BETWEEN_COPIES, column)}

    def copy_from_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor on every rank with the values of the first rank.

        The values are sent down the first column and then along each row.
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
        """The exchanges of a mean, one after the other.

        Each one is started before the generator yields. The generator waits for its end
        only when it is resumed.
        """
        row = reduce_scatter_mean(vector, group=self.shards)
        yield row.works
        return (yield from self.mean_over_replicas(row.wait()))

    def mean_over_replicas(self, piece: Tensor) -> Generator[list[Work], None, Tensor]:
        """The exchanges that average a rank's part over all copies of the model."""
        if self.copies > 1:
            yield from all_reduce_mean(piece, group=self.replicas)
        return piece


# The actions of a mesh's exchanges, as they are named in the common order.
IN_ROWS = ("gather", "reduce")
BETWEEN_COPIES = ("average the copies of", "gather the average of")


class Mean:
    """A mean under way.

    :param exchanges: its exchanges; the first one is started at once
    :param later: the actions of the others [in the common
        order](exchange_order.py#Order.before)
    """

    def __init__(
        self, exchanges: Generator[list[Work], None, Tensor], later: Iterable[str]
    ) -> None:
        self.exchanges, self.later = exchanges, list(later)
        self.works = next(exchanges)

    @property
    def following(self) -> str | None:
        """The action of the next exchange; `None` if the one under way is the last."""
        return self.later[0] if self.later else None

    def advance(self) -> Tensor | None:
        """Wait for the exchange under way, and start the next, if there is one.

        :returns: the mean after the last exchange, else `None`
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
    """The groups of a process group or of a mesh.

    :param mesh: `None`, a process group, or a `DeviceMesh`. Of two dimensions the first
        repeats the model and the second shards it, as in PyTorch's `fully_shard`.
    :raises ValueError: if the mesh has more than two dimensions, or its ranks are in
        another order than PyTorch numbers them
    :raises TypeError: if it is neither a mesh nor a group
    """
    refuse_unfit_mesh(mesh)
    if not isinstance(mesh, DeviceMesh):
        return Groups(shards=mesh, everyone=mesh)
    if mesh.ndim == 1:
        return Groups(shards=mesh.get_group(), everyone=mesh.get_group())
    # If the mesh holds all ranks, the default group serves for them. If it holds only
    # some, these ranks alone form a group, because no other rank calls this function.
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
    r"""The two exchanges that replace a vector by its mean over the ranks, on every
    rank.

    A reduce-scatter averages the vector piece by piece. An all-gather then puts the
    pieces together, straight into the vector that was sent. On gloo the values are
    added in rank order, as in
    [`reduce_scatter_mean`](collectives.py#reduce_scatter_mean).

    :param vector: 1-D, floating point, its number of elements a multiple of the number
        of ranks
    :param group: the process group; `None` means the default group
    """
    reducing = reduce_scatter_mean(vector, group=group)
    yield reducing.works
    gathering = all_gather(vector, reducing.wait(), group=group)
    yield gathering.works
    gathering.wait()


# sidelit: depth A mesh of more than two dimensions, or one whose ranks are not in order.


def refuse_unfit_mesh(mesh: Any) -> None:
    """Refuse a mesh that names no groups of ranks."""
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
    # one column would hold different parts, and would average these with each other.
    ranks = mesh.mesh
    if any((ranks.diff(dim=dim) < 0).any() for dim in (0, 1)):
        raise ValueError(
            f"the ranks of the mesh {ranks.tolist()} are not in order; "
            "let them grow along each row and down each column"
        )
