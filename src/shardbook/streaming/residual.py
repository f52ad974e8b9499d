r"""# Activation checkpoints in pieces, or on the host

> Between its two uses, a checkpoint can be split over the ranks, or wait in the host's
> memory.

[Checkpointing](checkpointing.py) drops a layer's activations and keeps the layer's
input, here called the checkpoint. With many layers the checkpoints add up. A GPT has
one for each layer, of the size

$$A = b\,B\,T\,d \text{ bytes}$$

The [ZeRO paper](bib:rajbhandari2020zero) calls all memory besides parameters, gradients
and optimizer state the *residual* states. Its part about them is
[ZeRO-R](tensor_parallel.py#module/zero-r). This chapter holds the two ideas of ZeRO-R
that concern checkpoints.

**Partition.** In tensor parallel training each rank of a group has a part of every
layer's matrices. Without sequence parallelism the layer's input is not split. So every
one of the $N$ ranks computes the same input and keeps the same bytes. With `partition`
each rank keeps one piece of it, and the ranks gather the whole input when the backward
pass needs it.

**Offload.** Between its two uses a checkpoint waits for the rest of the forward pass
and a part of the backward pass. With `offload` it waits [on the
host](offload.py#module/copies-between-device-and-host).

For 96 layers of width 12288, four sequences of 2048 positions and 16-bit values:

| | kept on the device, each layer | all layers | moved in the backward pass, each layer |
|---|---|---|---|
| plain checkpointing | 201.3 MB | 19.3 GB | nothing |
| `partition`, 8 ranks | 25.2 MB | 2.4 GB | each rank sends 176.2 MB |
| `offload` | nothing | nothing | 201.3 MB from the host |
| both, 8 ranks | nothing | nothing | 25.2 MB from the host; each rank sends 176.2 MB |

With `offload` the same bytes also go to the host in the forward pass.

Both are contexts around the forward pass, and the model does not change:

```python
with partition(group, offload=True):
    loss = model(batch)
loss.backward()
```

Such a context replaces each tensor that autograd saves, and puts it back when the
tensor is used. Inside a checkpointed layer autograd saves nothing, so the context sees
the inputs of the layers only. Around a layer without a checkpoint the context sees all
activations. `offload` works there, too. `partition` does not: in tensor parallel
training most activations inside a layer differ from rank to rank. The gather would put
pieces of different tensors together, into values that no rank had.

:notation $N$: `world_size`, the number of ranks that hold the same checkpoint
:notation $n$: `numel`, the number of values of a vector that is cut into pieces
:notation $A$: the size of one checkpoint
:notation $b$: the bytes of one value
:notation $B$: the number of sequences
:notation $T$: the number of positions of a sequence
:notation $d$: the number of values that stand for one position
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from shardbook.checkpointing.determinism import digest
from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.collectives import all_gather, world
from shardbook.foundations.hook_context import in_backward, machinery
from shardbook.foundations.torch_private import base_of, writes_to
from shardbook.zero.offload import PendingCopy, to_host

__all__ = ["Residual", "offload", "partition"]

LEAST, ACTIVATIONS = 2**16, "activations"


def partition(
    group: Any = None,
    *,
    offload: bool = False,
    least: int = LEAST,
    check: bool = False,
) -> Residual:
    """Make each rank of a group keep one piece of every tensor that autograd saves.

    Each use in the backward pass is an all-gather. So the ranks must run the same
    backward pass.

    Source: [ZeRO](bib:rajbhandari2020zero), the partition of activations in ZeRO-R.

    :param group: the ranks that hold the same values; `None` means all ranks
    :param offload: whether the pieces are kept on the host until the backward pass
    :param least: the size in bytes below which tensors stay as they are. A move of a
        few bytes takes as long as a move of some thousand
    :param check: whether the ranks compare each tensor before they keep pieces of it.
        The comparison costs an exchange and a pass over the values, and is meant for
        the first step
    :returns: a context that may be entered many times
    :raises Disagreement: inside the context, on every rank, if `check` finds a rank
        that holds other values
    :raises RuntimeError: if there is no process group
    """
    world(group)
    return Residual(Sharing(group, check), on_host=offload, least=least)


def offload(*, least: int = LEAST) -> Residual:
    """Keep every tensor that autograd saves on the host until it is needed.

    :param least: the size in bytes below which tensors stay as they are
    :returns: a context that may be entered many times
    """
    return Residual(None, on_host=True, least=least)


class Residual(saved_tensors_hooks):
    """The context that moves saved tensors.

    Autograd calls `put` for each tensor that it saves, and `take` when the backward
    pass uses the tensor.
    """

    def __init__(self, sharing: Sharing | None, *, on_host: bool, least: int) -> None:
        super().__init__(self.put, take)
        alone = sharing is None or world(sharing.group)[1] == 1
        self.sharing = None if alone else sharing
        self.on_host = on_host
        self.least = least
        # The values that are kept, by their storage. When a storage is freed, its
        # entries go with it, so a reused address does not lead to old values.
        self.kept: WeakKeyDictionary[
            torch.UntypedStorage, WeakValueDictionary[Any, KeptValues]
        ] = WeakKeyDictionary()

    @machinery
    def put(self, tensor: Tensor) -> Untouched | Placed:
        """The object that autograd keeps instead of a tensor.

        If every layer reads the same attention mask, autograd saves it in every layer.
        The context keeps the mask once for all of them, unless it is written to in
        between. Each write raises the mask's version, which is a part of the key.
        """
        if self.stays(tensor):
            return Untouched(tensor.detach(), writes_to(tensor))
        rows, form = lie_flat(tensor.detach())
        entries = self.kept.setdefault(tensor.untyped_storage(), WeakValueDictionary())
        key = (*place_of(rows), writes_to(tensor))
        kept = entries.get(key)
        if kept is None:
            vector = rows.resolve_conj().resolve_neg().reshape(-1)
            kept = KeptValues(vector, Writes(tensor), self.sharing, self.on_host)
            entries[key] = kept
        return Placed(kept, form)

    def stays(self, tensor: Tensor) -> bool:
        """Whether a move of a tensor would save nothing.

        The graph's view of a parameter takes no memory of its own, and in stage 3 [its
        unit frees](unit.py#Unit.empty) the memory below it. A tensor that a
        recomputation saves is used at once. Tensors of another kind, such as sparse
        ones, are not one vector of values.
        """
        return (
            (self.sharing is None and not self.on_host)
            or in_backward()
            or type(tensor) is not Tensor
            or tensor.layout is not torch.strided
            or tensor.nbytes < max(1, self.least)
            or isinstance(base_of(tensor), nn.Parameter)
        )


@machinery
def take(saved: Untouched | Placed) -> Tensor:
    """The tensor, with the values that it had when it was saved."""
    return saved.tensor()


@dataclass(frozen=True, slots=True)
class Placed:
    """One view of a kept vector. `x` and `x.t()`, for example, are two of them."""

    kept: KeptValues
    form: Form

    def tensor(self) -> Tensor:
        """The tensor, as an alias whose version is 0.

        The gather has copied values into the vector's memory, which counts as a write.
        Without the alias, [a check](determinism.py) would take the tensor for one that
        the program has changed.
        """
        self.kept.writes.refuse()
        return self.form.of(self.kept.vector().data)


class KeptValues:
    """A vector of values, or this rank's piece of it, on the device or on the host.

    :param vector: 1-D; it may be a view of the tensor that is to be freed
    :param writes: counts the writes to that tensor
    """

    def __init__(
        self, vector: Tensor, writes: Writes, sharing: Sharing | None, on_host: bool
    ) -> None:
        self.writes = writes
        self.numel = vector.numel()
        self.device = vector.device
        self.sharing = sharing
        piece = vector if sharing is None else sharing.piece(vector)
        self.here: Tensor | PendingCopy = (
            to_host(piece, ACTIVATIONS) if on_host else piece
        )

    def vector(self) -> Tensor:
        """All values, on the device.

        The computation waits here until the values have arrived. On their way to the
        host nothing waits.

        Each use brings the values anew. If they were kept for a second use, one rank
        might have freed them and another not. The first would then wait in a gather for
        the second.
        """
        piece = self.here
        if isinstance(piece, PendingCopy):
            piece = piece.back(self.device, ACTIVATIONS).wait()
        return piece if self.sharing is None else self.sharing.whole(piece, self.numel)


@dataclass(frozen=True, slots=True)
class Sharing:
    """The ranks that hold the same values, and the piece that each of them keeps.

    [Parameters](unit.py#module/stage-3) are sharded because every rank would otherwise store the same
    ones. The input of a layer in tensor parallel training is another such case. But the
    input is a new tensor in each step, so no layout can be made in advance. A vector of
    $n$ values is cut into $N$ pieces, one for each rank, and one all-gather puts it
    together again.

    If the ranks hold different values, the all-gather does not detect it. Each rank
    gets a vector of pieces from different tensors, and trains on with wrong numbers. So
    the ranks can compare their values first, by [a digest](determinism.py#digest).
    """

    group: Any
    check: bool

    def piece(self, vector: Tensor) -> Tensor:
        """A copy of this rank's piece. A view would keep the whole vector in memory.

        Pieces must have one length, so those at the end are padded with zeros.
        """
        if self.check:
            self.compare(vector)
        rank, world_size = world(self.group)
        size = piece_numel(vector.numel(), world_size)
        piece, mine = vector.new_zeros(size), vector[rank * size : (rank + 1) * size]
        piece[: len(mine)] = mine
        return piece

    def whole(self, piece: Tensor, numel: int) -> Tensor:
        """The vector, gathered from all ranks, without its padding."""
        full = piece.new_empty(piece.numel() * world(self.group)[1])
        all_gather(full, piece, group=self.group).wait()
        return full[:numel]

    # sidelit: depth Ranks that hold different values.

    def compare(self, vector: Tensor) -> None:
        """Raise an error on every rank if one holds other values than the first.

        :raises Disagreement: naming that rank
        """
        answers: list[Any] = [None] * world(self.group)[1]
        mine = (vector.numel(), str(vector.dtype), digest(vector))
        dist.all_gather_object(answers, mine, group=self.group)
        for rank, theirs in enumerate(answers):
            if theirs != answers[0]:
                raise Disagreement(
                    f"rank {rank} of the group saves {theirs[0]} values of "
                    f"{theirs[1]} for the backward pass, and they are not those of "
                    "rank 0; use partition only where all ranks of the group compute "
                    "the same, such as around a checkpointed layer"
                )


def piece_numel(numel: int, world_size: int) -> int:
    r"""The length of a piece: $\left\lceil n / N \right\rceil$ values.

    All pieces together have fewer than $N$ elements of padding.

    >>> checkpoint = 4 * 2048 * 12288
    >>> [96 * 2 * piece_numel(checkpoint, world_size) for world_size in (1, 8)]
    [19327352832, 2415919104]
    """
    return -(-numel // world_size)


# sidelit: depth Transposed and expanded tensors, and views that share one memory.


@dataclass(frozen=True, slots=True)
class Form:
    """The shape and strides of a tensor over its vector.

    With other strides a kernel may add in another order. So the strides are restored,
    too.
    """

    shape: torch.Size
    rows: torch.Size
    places: list[int]

    def of(self, vector: Tensor) -> Tensor:
        return vector.view(self.rows).permute(self.places).expand(self.shape)


def lie_flat(tensor: Tensor) -> tuple[Tensor, Form]:
    """The same elements in the order in which they lie in memory, each of them once.

    >>> rows, form = lie_flat(torch.arange(6).view(2, 3).t().expand(4, 3, 2))
    >>> rows.flatten().tolist(), form.of(rows.flatten()).stride()
    ([0, 1, 2, 3, 4, 5], (0, 1, 3))
    """
    shape = tensor.shape
    for dim, stride in enumerate(tensor.stride()):
        # Elements that `expand` repeats are stored once.
        tensor = tensor.narrow(dim, 0, 1) if stride == 0 else tensor
    order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    rows, places = tensor.permute(order), [order.index(dim) for dim in sorted(order)]
    return rows, Form(shape, rows.shape, places)


def place_of(rows: Tensor) -> tuple[Any, ...]:
    """A key that differs for two views of one storage if they show different values."""
    steps = zip(rows.shape, rows.stride(), strict=True)
    walk = tuple((size, stride) for size, stride in steps if size > 1)
    return rows.storage_offset(), walk, rows.dtype, rows.is_conj(), rows.is_neg()


# sidelit: core
# sidelit: depth Writes to a tensor between its two uses.


@dataclass(frozen=True, slots=True)
class Untouched:
    """A tensor that stays where it is.

    Without hooks autograd compares versions itself. If a hook is set, autograd leaves
    the comparison to the hook. Without the check here a write to the tensor would lead
    to wrong gradients, and to no error.
    """

    values: Tensor
    version: int

    def tensor(self) -> Tensor:
        if writes_to(self.values) != self.version:
            refuse_write(self.values.shape)
        return self.values


class Writes:
    """Counts the writes to a tensor from now on, and does not keep its memory.

    On a GPU a copy to the host is queued, and the thread continues. If the program then
    writes to the tensor, the copy may read the new values. Without hooks autograd
    raises an error for such a write. So this class does so, too, even if the copy came
    first.
    """

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tensor.shape
        self.version = writes_to(tensor)
        # An alias has the count of its tensor, and keeps the count without the memory.
        self.alias = tensor.detach()
        self.alias.data = tensor.detach().new_empty(0)

    def refuse(self) -> None:
        """
        :raises RuntimeError: if there was a write
        """
        if writes_to(self.alias) != self.version:
            refuse_write(self.shape)


def refuse_write(shape: torch.Size) -> NoReturn:
    raise RuntimeError(
        f"a tensor of shape {tuple(shape)} was changed in place after autograd had saved "
        "it for the backward pass; change a copy of it instead"
    )
