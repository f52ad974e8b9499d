r"""# One flat vector

> Parameters of all shapes become one vector, and every rank stores an equal piece of it.

A collective moves equal pieces of one vector. A module has parameters of many shapes.
This chapter turns the one into the other, and decides once and for all which rank
stores which value.

**The naive picture** gives whole parameters to ranks: rank 0 stores the first weight,
rank 1 the second. Then one rank stores a large embedding and another a few biases, and
no single all-gather fits, because the pieces differ in size. **The next idea** cuts
every parameter along its rows. A bias of 5 values on 4 ranks becomes 2, 2, 1 and 0
values, so rank 0 stores the most of every such parameter.

**The flat vector** forgets the shapes. All values of a unit stand in one row, and the
cut falls where it falls, through the middle of a matrix if need be. Every rank stores
the same number of elements. A collective moves the vector in one call, however many
parameters it holds.

Here are `Linear(3, 5)` and `Linear(5, 8)` in FP32 on 2 ranks. The flat vector has 96
elements, so each rank stores 48:

| parameter | shape | values | offset | rank 0 stores | rank 1 stores |
|---|---|---|---|---|---|
| `0.weight` | 5 × 3 | 15 | 0 | 0 to 15 | |
| `0.bias` | 5 | 5 | 16 | 16 to 21 | |
| `1.weight` | 8 × 5 | 40 | 32 | 32 to 48 | 48 to 72 |
| `1.bias` | 8 | 8 | 80 | | 80 to 88 |

A range ends before its second number. The cut at 48 leaves 16 values of `1.weight` on
rank 0 and 24 on rank 1. The elements between the parameters, and those from 88 to 96,
are **padding**: 28 elements beside 68 values. Padding does not grow with the values. In
FP32, and without [a policy](policy.py), it is fewer than 16 elements for each parameter
and fewer than $16 N_d$ at the end; with 16 bits, twice as many. For a transformer block
of 12 FP32 parameters on 8 ranks that is fewer than 320, beside some millions of values.
Where the model is [repeated](groups.py), the end takes as many times more as there are
copies.

PyTorch's FSDP2 has left the flat vector and cuts each parameter along its first
dimension. Then each parameter has a dtype and a `requires_grad` of its own, and what a
rank saves are rows with a name. The price is a copy before and after each collective,
since the pieces of a unit no longer lie side by side. This book keeps the flat vector,
because one collective straight into the memory that is computed with is the simpler
program.

:figure: vector_of_a_block
:notation $N_d$: `world_size`, the number of ranks
:notation $\Psi_u$: `numel`, the number of values in one flat vector, without its padding
:notation $P_u$: `padded`, the number of elements of one flat vector with its padding
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import torch
from torch import Tensor, nn

from shardbook.foundations.torch_private import storage_id

__all__ = [
    "ALIGN_BYTES",
    "Layout",
    "Slot",
    "flatten",
    "plan",
    "shares_storage",
    "views",
]
# sidelit: show

# Every parameter, and every rank's piece, starts at a multiple of 64 bytes, as torch's
# own CPU tensors do. A kernel looks at the address before it chooses how to add. With
# weights a few bytes past such a boundary the last bits of a result can differ from
# those of an unsharded model.
ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Layout:
    r"""A layout is a plan, not memory. It says where every value of one flat vector belongs. It follows from
    the parameters' names, shapes, dtypes and `requires_grad`, from the dtype that is
    computed with, and from the numbers of ranks and of copies of the model. All ranks
    know these, so no message is needed.

    >>> model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 8))
    >>> (layout,) = plan(model.named_parameters(), world_size=2)
    >>> [(*slot.names, slot.offset, slot.numel) for slot in layout.slots]
    [('0.weight', 0, 15), ('0.bias', 16, 5), ('1.weight', 32, 40), ('1.bias', 80, 8)]
    >>> layout.numel, layout.padded, layout.shard_numel
    (68, 96, 48)

    :param dtype: the dtype in which the parameters are stored.
    :param computes_in: the dtype in which the modules compute with them.
    :param trainable: whether the parameters require gradients; one layout never mixes
        the two.
    :param numel: $\Psi_u$, the values of all slots together.
    :param padded: $P_u$, the elements of the vector, padding included; a multiple of
        $N_d$.
    """

    dtype: torch.dtype
    computes_in: torch.dtype
    trainable: bool
    slots: tuple[Slot, ...]
    world_size: int
    numel: int
    padded: int

    @property
    def shard_numel(self) -> int:
        """Elements in one rank's piece of the vector."""
        return self.padded // self.world_size

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """The padding, as ranges of the vector. Whoever writes a flat vector must also write these.

        >>> plan(nn.Linear(3, 5).named_parameters(), world_size=1)[0].gaps
        ((15, 16), (21, 32))
        """
        starts = [0, *(slot.offset + slot.numel for slot in self.slots)]
        stops = [*(slot.offset for slot in self.slots), self.padded]
        return tuple(gap for gap in zip(starts, stops, strict=True) if gap[0] < gap[1])

    def piece(self, slot: Slot, rank: int) -> tuple[int, int]:
        """The slice of a parameter that lies in a rank's piece. Most pairs of rank and parameter have
        nothing in common: then the slice is empty, and still lies inside the piece, so
        that slicing with it is safe.

        >>> (layout,) = plan([("weight", nn.Parameter(torch.ones(40)))], world_size=2)
        >>> [layout.piece(layout.slots[0], rank) for rank in range(2)]  # 32 elements a rank
        [(0, 32), (0, 8)]

        :returns: start and stop, counted from the first element of the rank's piece.
        """
        start = slot.offset - rank * self.shard_numel
        size = self.shard_numel
        return _clamp(start, size), _clamp(start + slot.numel, size)


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter's place. It has several names when several modules share the parameter. A parameter
    of shape `()` has one value, and one of shape `(0, 3)` has none: its slot takes no
    room, but remembers the shape.
    """

    names: tuple[str, ...]
    shape: torch.Size
    numel: int
    offset: int


def plan(
    named: Iterable[tuple[str, nn.Parameter]],
    world_size: int,
    copies: int = 1,
    computes_in: Callable[[nn.Parameter], torch.dtype] = attrgetter("dtype"),
) -> tuple[Layout, ...]:
    """One layout for each dtype, and for trainable and frozen parameters apart. A vector has one dtype.
    And a vector that mixed frozen parameters with trainable ones would need gradient
    memory and a reduce-scatter for values that never change. The same holds for the
    dtype in which the parameters [are computed with](masters.py).

    >>> layer = nn.Linear(3, 5)
    >>> layer.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
    >>> [(layout.trainable, layout.numel) for layout in plan(layer.named_parameters(), 4)]
    [(True, 15), (False, 5)]

    :param named: names and parameters in a fixed order; pass a shared parameter once
        for each of its names.
    :param world_size: the number of ranks that share the vector.
    :param copies: how many such groups of ranks there are. They average each rank's
        piece, so it must divide by their number, too.
    :param computes_in: the dtype in which a parameter is computed with; its own by
        default.
    :raises ValueError: if there are no ranks, or the parameters are not on one device
    """
    if world_size < 1:
        raise ValueError(
            f"parameters cannot be split over {world_size} ranks; start at least one"
        )
    # A **shared** or tied parameter is one object under several names, such as an
    # embedding that is also the output layer. Keyed by the object, it gets one slot.
    # Two slots would train two copies that drift apart, and nobody would notice.
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in named:
        names.setdefault(parameter, []).append(name)
    _refuse_mixed_devices(names)
    kinds: dict[tuple[torch.dtype, torch.dtype, bool], list[nn.Parameter]] = {}
    for parameter in names:
        kind = parameter.dtype, computes_in(parameter), parameter.requires_grad
        kinds.setdefault(kind, []).append(parameter)
    return tuple(
        _lay_out(group, names, world_size, copies, low)
        for (_, low, _), group in kinds.items()
    )


def flatten(layout: Layout, tensors: Sequence[Tensor], out: Tensor) -> None:
    """Copy tensors into their places. The values go in row by row whatever the strides, so a transposed
    weight needs no copy of its own first.

    >>> (layout,) = plan([("weight", nn.Parameter(torch.ones(2, 2)))], world_size=1)
    >>> out = torch.full((layout.padded,), float("nan"))
    >>> flatten(layout, [torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()], out)
    >>> out[:6]
    tensor([1., 3., 2., 4., 0., 0.])

    :param tensors: one for each slot, of its shape, on any device and of any strides.
    :param out: receives the values, cast to its own dtype; 1-D, `layout.padded`
        elements.
    :raises ValueError: if a shape does not fit
    """
    _check_length(layout, out)
    out = out.detach()
    for slot, tensor, place in zip(
        layout.slots, tensors, views(layout, out), strict=True
    ):
        if tensor.shape != slot.shape:
            wanted, got = tuple(slot.shape), tuple(tensor.shape)
            raise ValueError(f"{slot.names[0]} has shape {wanted}, not {got}")
        place.copy_(tensor.detach())
    # The padding must be zero. Fresh memory holds anything, NaN included. No parameter
    # ever reads the padding, but whoever treats the vector as a whole does, for a norm
    # or an overflow check.
    for start, stop in layout.gaps:
        out[start:stop].zero_()


def views(layout: Layout, full: Tensor) -> tuple[Tensor, ...]:
    """The way back costs no copy. Each parameter is a view: its shape, laid over the elements of the
    vector. What an all-gather writes into `full`, the parameters show at once.

    Every view holds the storage of the *whole* vector. The one at offset 0 even has the
    vector's address, and looks like a tensor that owns its memory. Freed through that
    view, the memory of all its neighbours is gone. Only the owner of `full` may free
    it.

    >>> (layout,) = plan(nn.Linear(3, 5).named_parameters(), world_size=1)
    >>> full = torch.zeros(layout.padded)
    >>> weight, bias = views(layout, full)
    >>> full[16] = 7.0
    >>> bias
    tensor([7., 0., 0., 0., 0.])

    :param full: 1-D, `layout.padded` elements, contiguous.
    :returns: one tensor for each slot, in order, of its shape.
    """
    _check_length(layout, full)
    return tuple(
        full[slot.offset : slot.offset + slot.numel].view(slot.shape)
        for slot in layout.slots
    )


def shares_storage(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are views of one storage. Storages are compared as objects, since an empty one
    has no address to compare.
    """
    return storage_id(one.untyped_storage()) == storage_id(other.untyped_storage())


def _lay_out(
    group: list[nn.Parameter],
    names: dict[nn.Parameter, list[str]],
    world_size: int,
    copies: int,
    computes_in: torch.dtype,
) -> Layout:
    """Offsets grow in the order of the names, so that parameters used together stand together."""
    # An offset that is aligned in the narrower of the two dtypes is aligned in both.
    align = ALIGN_BYTES // min(group[0].element_size(), computes_in.itemsize)
    slots: list[Slot] = []
    end = 0
    for parameter in group:
        offset = _round_up(end, align)
        slots.append(
            Slot(tuple(names[parameter]), parameter.shape, parameter.numel(), offset)
        )
        end = offset + parameter.numel()
    # The end is rounded up, too, so that all ranks' pieces are aligned, and not only
    # the first: to a multiple of $16 N_d$ elements if the narrower dtype is FP32, and
    # of $32 N_d$ if it has 16 bits. If the model is repeated, the ranks that hold the
    # same piece each average a part of it, and that is aligned as well.
    return Layout(
        dtype=group[0].dtype,
        computes_in=computes_in,
        trainable=group[0].requires_grad,
        slots=tuple(slots),
        world_size=world_size,
        numel=sum(slot.numel for slot in slots),
        padded=_round_up(end, align * world_size * copies),
    )


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _clamp(number: int, high: int) -> int:
    return max(0, min(number, high))


# sidelit: depth Parameters on two devices, and a vector of another length than its layout.


def _refuse_mixed_devices(names: dict[nn.Parameter, list[str]]) -> None:
    """A vector lives on one device. A model that is half moved is a mistake, so the parameter is named."""
    for parameter, (name, *_) in names.items():
        first = next(iter(names))
        if parameter.device != first.device:
            raise ValueError(
                f"{name} is on {parameter.device}, but {names[first][0]} is on {first.device}; "
                "move the module to one device first"
            )


def _check_length(layout: Layout, flat: Tensor) -> None:
    if flat.shape != (layout.padded,):
        raise ValueError(
            f"the layout has {layout.padded} elements, but the tensor {tuple(flat.shape)}"
        )
