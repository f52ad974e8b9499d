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
then along the column. Only that part travels between the machines.

:notation $N_d$: `world_size`, the number of ranks that share one copy
"""

# sidelit: hide
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from shardbook.collectives import all_gather, broadcast, reduce_scatter_mean, world

__all__ = ["Groups", "all_reduce_mean", "groups_of"]
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

    def copy_from_first(self, tensor: Tensor) -> None:
        """Overwrite a tensor on every rank with the values of the first rank.

        They travel down the first column and then along each row.
        """
        if self.replicas is not None:
            broadcast(tensor, source=0, group=self.replicas)
        broadcast(tensor, source=0, group=self.shards)

    def mean_over_replicas(self, piece: Tensor) -> Tensor:
        """The mean of a rank's part of the gradient over all copies of the model."""
        if self.replicas is not None:
            all_reduce_mean(piece, group=self.replicas)
        return piece


def groups_of(mesh: Any) -> Groups:
    """The groups that a process group or a mesh stands for.

    :param mesh: `None`, a process group, or a `DeviceMesh`. Of two dimensions the first
        repeats the model and the second shards it, as in PyTorch's `fully_shard`.
    :raises ValueError: if the mesh has more than two dimensions, or its ranks stand in
        another order than PyTorch numbers them
    :raises TypeError: if it is neither a mesh nor a group
    """
    if not isinstance(mesh, DeviceMesh | dist.ProcessGroup | None):
        raise TypeError(
            f"mesh={mesh!r} is neither a DeviceMesh nor a process group; "
            "pass one of them, or None for all ranks"
        )
    if not isinstance(mesh, DeviceMesh):
        return Groups(shards=mesh, everyone=mesh)
    if mesh.ndim == 1:
        return Groups(shards=mesh.get_group(), everyone=mesh.get_group())
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
    # A mesh of all ranks needs no new group for them. For a part of them only its own
    # ranks can be asked to form one, because nobody else calls this function.
    everyone = None
    if mesh.size() < dist.get_world_size():
        everyone = dist.new_group(
            ranks.flatten().tolist(), use_local_synchronization=True
        )
    return Groups(
        shards=mesh.get_group(1), everyone=everyone, replicas=mesh.get_group(0)
    )


def all_reduce_mean(vector: Tensor, *, group: Any = None) -> None:
    r"""Replace a vector by its mean over the ranks, on every rank.

    A reduce-scatter averages it piece by piece, and an all-gather puts the pieces
    together, straight into the vector that was sent. So the sum runs in rank order, as
    it does in [`reduce_scatter_mean`](collectives.py#reduce_scatter_mean).

    :param vector: 1-D, floating point, its number of elements a multiple of the ranks
    """
    piece = reduce_scatter_mean(vector, group=group).wait()
    all_gather(vector, piece, group=group).wait()
