"""# Partition"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

ALIGN_BYTES = 64


@dataclass(frozen=True, slots=True)
class Slot:
    """One parameter's place in the flat vector."""

    names: tuple[str, ...]
    shape: torch.Size
    numel: int
    offset: int


@dataclass(frozen=True, slots=True)
class Layout:
    """One flat vector."""

    dtype: torch.dtype
    trainable: bool
    slots: tuple[Slot, ...]
    world_size: int
    numel: int
    padded: int

    @property
    def shard_numel(self) -> int:
        """Elements each rank keeps."""
        return self.padded // self.world_size

    @property
    def gaps(self) -> tuple[tuple[int, int], ...]:
        """Padding ranges."""
        edges = [
            0,
            *(edge for slot in self.slots for edge in (slot.offset, slot.offset + slot.numel)),
            self.padded,
        ]
        return tuple((a, b) for a, b in list(pairwise(edges))[::2] if a < b)

    def piece(self, slot: Slot, rank: int) -> tuple[int, int]:
        """The part of `slot` inside the shard of `rank`, counted from the shard's first element."""
        base = rank * self.shard_numel
        return (
            _clamp(slot.offset - base, self.shard_numel),
            _clamp(slot.offset + slot.numel - base, self.shard_numel),
        )

    def span(self, slot: Slot, rank: int) -> tuple[int, int]:
        """The same part, counted from the slot's first value."""
        base = rank * self.shard_numel
        return (
            _clamp(base - slot.offset, slot.numel),
            _clamp(base + self.shard_numel - slot.offset, slot.numel),
        )


def plan(named: Iterable[tuple[str, nn.Parameter]], world_size: int) -> tuple[Layout, ...]:
    """Lay parameters out in flat vectors, one per dtype and trainability."""
    if world_size < 1:
        raise ValueError(
            f"cannot split parameters over {world_size} ranks; the world size must be at least 1"
        )
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in named:
        names.setdefault(parameter, []).append(name)
    _refuse_mixed_devices(names)
    groups: dict[tuple[torch.dtype, bool], list[nn.Parameter]] = {}
    for parameter in names:
        groups.setdefault((parameter.dtype, parameter.requires_grad), []).append(parameter)
    return tuple(_lay_out(group, names, world_size) for group in groups.values())


def flatten(layout: Layout, tensors: Sequence[Tensor | None], out: Tensor) -> None:
    """Copy one tensor per slot into `out`; `None` and the gaps become zero."""
    _check_length(layout, out)
    out = out.detach()
    for slot, tensor in zip(layout.slots, tensors, strict=True):
        target = out.narrow(0, slot.offset, slot.numel)
        if tensor is None:
            target.zero_()
            continue
        if tensor.shape != slot.shape:
            raise ValueError(f"{slot.names[0]} has shape {tuple(slot.shape)}, but got {tuple(tensor.shape)}")
        target.view(slot.shape).copy_(tensor.detach())
    for start, stop in layout.gaps:
        out[start:stop].zero_()


def views(layout: Layout, full: Tensor) -> tuple[Tensor, ...]:
    """One shaped tensor per slot, all of them views into `full`."""
    _check_length(layout, full)
    return tuple(full.narrow(0, slot.offset, slot.numel).view(slot.shape) for slot in layout.slots)


def _lay_out(group: list[nn.Parameter], names: dict[nn.Parameter, list[str]], world_size: int) -> Layout:
    align = max(1, ALIGN_BYTES // group[0].element_size())
    slots, end = [], 0
    for parameter in group:
        offset = _round_up(end, align)
        slots.append(Slot(tuple(names[parameter]), parameter.shape, parameter.numel(), offset))
        end = offset + parameter.numel()
    return Layout(
        dtype=group[0].dtype,
        trainable=group[0].requires_grad,
        slots=tuple(slots),
        world_size=world_size,
        numel=sum(slot.numel for slot in slots),
        padded=_round_up(end, align * world_size),
    )


def _refuse_mixed_devices(names: dict[nn.Parameter, list[str]]) -> None:
    first = next(iter(names), None)
    for parameter, (name, *_) in names.items():
        if first is not None and parameter.device != first.device:
            raise ValueError(
                f"parameter {name} is on {parameter.device}, but {names[first][0]} is on {first.device}; "
                "move the whole module to one device before sharding it"
            )


def _check_length(layout: Layout, flat: Tensor) -> None:
    if flat.shape != (layout.padded,):
        raise ValueError(f"the flat vector has {layout.padded} elements, but got shape {tuple(flat.shape)}")


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _clamp(number: int, high: int) -> int:
    return max(0, min(number, high))
