r"""# The layout of a flat vector

> Parameters of all shapes become one vector, and every rank stores an equal piece of it.

A collective moves equal pieces of one vector. But the parameters of a module have many
shapes. This chapter lays the parameters out in one vector, and thereby decides which
rank stores which value.

**Whole parameters for each rank.** Rank 0 could store the first weight and rank 1 the
second. Then one rank stores a large embedding and another a few biases. No single
all-gather fits, because the pieces differ in size.

**Rows of each parameter.** Every parameter could be cut along its rows. A bias of 5
values on 4 ranks then becomes 2, 2, 1 and 0 values, so rank 0 stores the most of every
such parameter.

**The flat vector** ignores the shapes. All values of a unit are lined up in one vector,
which is cut into equal pieces. A cut may go through the middle of a matrix. Every rank
stores the same number of elements, and a collective moves the vector in one call,
however many parameters it holds.

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
FP32, without [a policy](policy.py), the padding is less than 16 elements for each
parameter and less than $16 N_d$ at the end. With 16 bits both bounds are twice as
large. For a transformer block of 12 FP32 parameters on 8 ranks that is less than 320
elements, beside some millions of values. If the model is
[repeated](collectives.py#module/ranks-that-share-a-model), the bound at the end is
multiplied by the number of copies.

**Whole matrices.** An optimizer such as Muon computes with a whole matrix. For it the
cuts of a vector can fall between the parameters, [in a vector of their
own](#uncut_offsets). A rank's piece is then as long as the most that one rank stores:

| rank | of a transformer block of width $d$ in 2 pieces | elements | padding |
|---|---|---|---|
| 0 | the first matrix of the MLP; queries, keys and values | $7d^2$ | 0 |
| 1 | the second matrix of the MLP; the output of attention | $5d^2$ | $2d^2$ |

PyTorch's FSDP2 has left the flat vector and cuts each parameter along its first
dimension. Each parameter then has a dtype and a `requires_grad` of its own, and the
saved pieces are rows of named parameters. The price is a copy before and after each
collective, since the pieces of a unit no longer lie side by side. This book keeps the
flat vector, because the program is simpler: one collective writes straight into the
memory with which modules compute.

:figure: vector_of_a_block
:notation $N_d$: `world_size`, the number of ranks
:notation $d$: the width of a transformer block
:notation $\Psi_u$: `numel`, the number of values in one flat vector, without its padding
:notation $P_u$: `padded`, the number of elements of one flat vector with its padding
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter

import torch
from torch import Tensor, nn

__all__ = [
    "ALIGN_BYTES",
    "Layout",
    "Slot",
    "flatten",
    "plan",
    "views",
]

# Every parameter, and every rank's piece, starts at a multiple of 64 bytes, as torch's
# own CPU tensors do. A kernel chooses its order of addition by the address. If a weight
# starts a few bytes after such a boundary, the last bits of a result can differ from
# those of an unsharded model.
ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Layout:
    r"""The place of every value in one flat vector.

    A layout is a plan, without memory. It follows from the parameters' names, shapes,
    dtypes and `requires_grad`, from the dtype in which modules compute, from the choice
    of what is not cut, and from the numbers of ranks and of copies of the model. All
    ranks know these, so they need no message to lay out alike.

    >>> model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 8))
    >>> (layout,) = plan(model.named_parameters(), world_size=2)
    >>> [(*slot.names, slot.offset, slot.numel) for slot in layout.slots]
    [('0.weight', 0, 15), ('0.bias', 16, 5), ('1.weight', 32, 40), ('1.bias', 80, 8)]
    >>> layout.numel, layout.padded, layout.shard_numel
    (68, 96, 48)

    :param dtype: the dtype in which the parameters are stored
    :param computes_in: the dtype in which the modules compute with them
    :param trainable: whether the parameters require gradients; one layout never mixes
        the two kinds
    :param uncut: whether each parameter belongs whole to one rank; the slots then stand
        in the order of the ranks
    :param numel: $\Psi_u$, the number of values of all slots together
    :param padded: $P_u$, the number of elements of the vector, padding included; a
        multiple of $N_d$
    """

    dtype: torch.dtype
    computes_in: torch.dtype
    trainable: bool
    uncut: bool
    slots: tuple[Slot, ...]
    world_size: int
    numel: int
    padded: int

    @property
    def shard_numel(self) -> int:
        """The number of elements in one rank's piece of the vector."""
        return self.padded // self.world_size

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """The padding, as ranges of the vector.

        A function that writes a flat vector must write these, too.

        >>> plan(nn.Linear(3, 5).named_parameters(), world_size=1)[0].gaps
        ((15, 16), (21, 32))
        """
        starts = [slot.offset + slot.numel for slot in self.slots]
        stops = [*(slot.offset for slot in self.slots[1:]), self.padded]
        return tuple(gap for gap in zip(starts, stops, strict=True) if gap[0] < gap[1])

    def piece(self, slot: Slot, rank: int) -> tuple[int, int]:
        """The slice of a parameter that lies in a rank's piece.

        Most ranks hold nothing of a given parameter. The slice is then empty, but still
        inside the piece, so that slicing with it is safe.

        >>> (layout,) = plan([("weight", nn.Parameter(torch.ones(40)))], world_size=2)
        >>> [layout.piece(layout.slots[0], rank) for rank in range(2)]  # 32 elements a rank
        [(0, 32), (0, 8)]

        :returns: start and stop, counted from the first element of the rank's piece
        """
        start = slot.offset - rank * self.shard_numel
        size = self.shard_numel
        return _clamp(start, size), _clamp(start + slot.numel, size)

    def shape_of(self, slot: Slot, numel: int) -> tuple[int, ...]:
        """The shape in which a rank has its slice of a parameter.

        A slice has one dimension. If the parameter is not cut, one rank has it in its
        shape, and the others have none of its rows.

        >>> weight = nn.Parameter(torch.ones(5, 8))
        >>> (layout,) = plan([("weight", weight)], 2, uncut=["weight"])
        >>> [layout.shape_of(layout.slots[0], numel) for numel in (40, 0)]
        [(5, 8), (0, 8)]

        :param numel: the number of elements of the slice
        """
        if not self.uncut:
            return (numel,)
        return tuple(slot.shape) if numel == slot.numel else (0, *slot.shape[1:])


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one parameter in the vector.

    A slot has several names if several modules share the parameter. A parameter of
    shape `()` has one value. One of shape `(0, 3)` has no value, so its slot takes no
    room but stores the shape.
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
    uncut: Container[str] = (),
) -> tuple[Layout, ...]:
    """One layout for each dtype, and separate layouts for trainable and frozen
    parameters, and for those that are not cut.

    A vector has one dtype. If it mixed frozen parameters with trainable ones, values
    that never change would need gradient memory and a reduce-scatter. For the same
    reason parameters are separated by the dtype in which modules [compute with
    them](flat.py#Flat/master-weights).

    >>> layer = nn.Linear(3, 5)
    >>> layer.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
    >>> [(layout.trainable, layout.numel) for layout in plan(layer.named_parameters(), 4)]
    [(True, 15), (False, 5)]

    :param named: names and parameters in a fixed order; a shared parameter once for
        each of its names
    :param world_size: the number of ranks that share the vector
    :param copies: the number of such groups of ranks. They average each rank's piece,
        so it must divide by their number, too
    :param computes_in: the dtype in which modules compute with a parameter; by default
        the parameter's own
    :param uncut: the names of parameters that belong whole to one rank; these have
        layouts of their own
    :raises ValueError: if there are no ranks, or the parameters are not on one device
    """
    if world_size < 1:
        raise ValueError(
            f"parameters cannot be split over {world_size} ranks; start at least one"
        )
    # A **shared** or tied parameter is one object under several names, such as an
    # embedding that is also the output layer. Its key here is the object, so it gets
    # one slot. Two slots would train two copies that drift apart, without any error.
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in named:
        names.setdefault(parameter, []).append(name)
    _refuse_mixed_devices(names)
    kinds: dict[tuple[torch.dtype, torch.dtype, bool, bool], list[nn.Parameter]] = {}
    for parameter, known in names.items():
        low, trained = computes_in(parameter), parameter.requires_grad
        kind = parameter.dtype, low, trained, any(name in uncut for name in known)
        kinds.setdefault(kind, []).append(parameter)
    return tuple(
        _lay_out(group, names, world_size, copies, low, whole)
        for (_, low, _, whole), group in kinds.items()
    )


def flatten(layout: Layout, tensors: Sequence[Tensor], out: Tensor) -> None:
    """Copy tensors into their places in the vector.

    The values are copied in the order of rows, whatever the strides. A transposed
    weight needs no copy of its own first.

    >>> (layout,) = plan([("weight", nn.Parameter(torch.ones(2, 2)))], world_size=1)
    >>> out = torch.full((layout.padded,), float("nan"))
    >>> flatten(layout, [torch.tensor([[1.0, 2.0], [3.0, 4.0]]).t()], out)
    >>> out[:6]
    tensor([1., 3., 2., 4., 0., 0.])

    :param tensors: one for each slot, of its shape, on any device and of any strides
    :param out: receives the values, cast to its own dtype; 1-D, `layout.padded`
        elements
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
    # The padding must be zero, because fresh memory holds any values, NaN included. No
    # parameter ever reads the padding. But a norm or an overflow check reads the whole
    # vector, and a NaN in the padding would make its result wrong.
    for start, stop in layout.gaps:
        out[start:stop].zero_()


def views(layout: Layout, full: Tensor) -> tuple[Tensor, ...]:
    """The parameters as views of the vector, without a copy.

    A view has the parameter's shape, and its values are elements of the vector. When an
    all-gather writes into `full`, the parameters change at once.

    Every view holds the storage of the *whole* vector. The view at offset 0 even has
    the vector's address, and looks like a tensor that owns its memory. To free the
    memory through one view frees that of all its neighbours. So only the owner of
    `full` may free it.

    >>> (layout,) = plan(nn.Linear(3, 5).named_parameters(), world_size=1)
    >>> full = torch.zeros(layout.padded)
    >>> weight, bias = views(layout, full)
    >>> full[16] = 7.0
    >>> bias
    tensor([7., 0., 0., 0., 0.])

    :param full: 1-D, `layout.padded` elements, contiguous
    :returns: one tensor for each slot, in order, of its shape
    """
    _check_length(layout, full)
    return tuple(
        full[slot.offset : slot.offset + slot.numel].view(slot.shape)
        for slot in layout.slots
    )


def _lay_out(
    group: list[nn.Parameter],
    names: dict[nn.Parameter, list[str]],
    world_size: int,
    copies: int,
    computes_in: torch.dtype,
    uncut: bool,
) -> Layout:
    """One layout, whose offsets grow in the order of the names if the parameters are cut.

    Parameters that are used together then lie side by side.
    """
    # An offset that is aligned in the narrower of the two dtypes is aligned in both.
    align = ALIGN_BYTES // min(group[0].element_size(), computes_in.itemsize)
    sizes = [parameter.numel() for parameter in group]
    offsets, end = [], 0
    for size in sizes:
        offsets.append(_round_up(end, align))
        end = offsets[-1] + size
    if uncut:
        offsets, end = uncut_offsets(sizes, world_size, align * copies)
    places = sorted(zip(offsets, group, strict=True), key=itemgetter(0))
    slots = [
        Slot(tuple(names[parameter]), parameter.shape, parameter.numel(), offset)
        for offset, parameter in places
    ]
    # The end is rounded up, too, so that the pieces of all ranks are aligned, and not
    # only the first. It becomes a multiple of $16 N_d$ elements if the narrower dtype
    # is FP32, and of $32 N_d$ if it has 16 bits. If the model is repeated, the ranks
    # that hold the same piece each average a part of it, and these parts are aligned,
    # too.
    return Layout(
        dtype=group[0].dtype,
        computes_in=computes_in,
        trainable=group[0].requires_grad,
        uncut=uncut,
        slots=tuple(slots),
        world_size=world_size,
        numel=sum(slot.numel for slot in slots),
        padded=_round_up(end, align * world_size * copies),
    )


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _clamp(number: int, high: int) -> int:
    return max(0, min(number, high))


# sidelit: depth Parameters that are not cut or on two devices, and a vector of another length.


def uncut_offsets(
    sizes: Sequence[int], world_size: int, align: int
) -> tuple[list[int], int]:
    """Give each parameter whole to one rank, so that the ranks store about equally many
    elements.

    The largest parameter is given away first, each to the rank that stores the fewest so
    far. If a unit has fewer such parameters than there are ranks, some ranks store
    nothing of it. Larger units, of several blocks, are shared out more evenly.

    >>> uncut_offsets([48, 16, 64, 64], world_size=2, align=16)
    ([64, 176, 0, 112], 224)

    :param sizes: the numbers of elements of the parameters
    :returns: the first place of each parameter, and the length of the vector
    """
    ends = [0] * world_size
    homes = {}
    for place in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        rank = min(range(world_size), key=ends.__getitem__)
        homes[place] = rank, ends[rank]
        ends[rank] += _round_up(sizes[place], align)
    length = max(ends)
    homes_in_order = (homes[place] for place in range(len(sizes)))
    return [
        rank * length + start for rank, start in homes_in_order
    ], world_size * length


def _refuse_mixed_devices(names: dict[nn.Parameter, list[str]]) -> None:
    """Refuse a module that is on two devices, and name a parameter of the second one.

    A vector is on one device, so a model that is moved half-way is a mistake.
    """
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
