r"""# Sharded checkpoints

> Each rank writes what lies on it, and reads what lies on it now, whatever number of ranks has written.

PyTorch's distributed checkpoint does the work: files in parallel, an index of all
[boxes](boxes.py), and a search for the boxes that overlap. It asks a *planner* what
there is to write or to read. The two planners here answer with the boxes of [this
rank's stretches](stored.py):

| step | to write | to read |
|---|---|---|
| plan, on each rank | its boxes | its boxes, and the parts of the files that overlap them |
| plan, on one rank | the index: which box is in which file | |
| write or read | where the numbers of a box lie in memory | where they belong |

Only the index needs all ranks. Whoever reads has it, and asks nobody.

So a program with another number of ranks, in another stage, or with `fully_shard` finds
its numbers in the same files. Nothing is gathered: beside its own elements a rank needs
no memory for the model.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import (
    create_read_items_for_chunk_list,
)
from torch.distributed.checkpoint.state_dict_saver import save

from shardbook.state.boxes import Box
from shardbook.state.sharded_files import Reader, Writer
from shardbook.state.stored import Stretch
from shardbook.state.together import on_each

__all__ = ["read", "write"]
# sidelit: show


def write(
    folder: Path, stretches: Iterable[Stretch], values: Mapping[str, Any], **how: Any
) -> dict[str, Any]:
    """Write a checkpoint. Collective.

    :param folder: that holds nothing yet
    :param stretches: what lies on this rank
    :param values: what is no tensor, such as learning rates; written by the first rank
    :param how: for `torch.distributed.checkpoint.save`
    :returns: what this rank has written, for [the list](file_list.py)
    """
    planner = Written(list(stretches))
    names = {stretch.name: stretch.names for stretch in planner.stretches}
    writer = Writer(folder, names)
    save(dict(values), storage_writer=writer, planner=planner, **how)
    return writer.written


def read(
    reader: Reader, index: Metadata, stretches: Iterable[Stretch], *, cast: bool = False
) -> None:
    """Read what lies on this rank into its place. Collective.

    :param index: that the reader has read
    :param cast: whether numbers of another dtype are converted
    :raises ValueError: on every rank, if the checkpoint lacks a tensor, or holds it in
        another shape or dtype, or only a part of it
    :raises OSError: on every rank, if one of them cannot read
    """
    planner = Wanted(list(stretches), cast=cast)

    def act() -> None:
        planner.set_up_planner({}, index)
        reader.set_up_storage_reader(index, is_coordinator=False)
        reader.read_data(planner.create_local_plan(), planner).wait()

    on_each(act)


class Written(DefaultSavePlanner):
    """Tells PyTorch what this rank writes.

    :param stretches: what lies on this rank; of what lies on several, it writes a share
    """

    def __init__(self, stretches: list[Stretch]) -> None:
        super().__init__(flatten_state_dict=False)
        self.stretches = stretches
        self.memory: dict[MetadataIndex, Tensor] = {}

    def create_local_plan(self) -> SavePlan:
        """The boxes of this rank, and on the first rank what is no tensor."""
        values = super().create_local_plan().items if self.is_coordinator else []
        boxes = [item for each in self.stretches for item in self.items(each)]
        self.plan = SavePlan([*values, *boxes])
        return self.plan

    def items(self, stretch: Stretch) -> Iterable[WriteItem]:
        """A request to write each box of a stretch."""
        parts = list(stretch.own.views())
        if not prod(stretch.shape) and self.is_coordinator:
            # No rank has an element of it, and a reader looks for its name.
            parts = [(Box((0,) * len(stretch.shape), stretch.shape), stretch.whole)]
        for box, values in parts:
            index = MetadataIndex(stretch.name, torch.Size(box.offsets))
            self.memory[index] = values
            yield WriteItem(
                index,
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=chunk(box),
                    properties=TensorProperties(dtype=values.dtype),
                    size=torch.Size(stretch.shape),
                ),
            )

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The numbers of a box, on the host.

        PyTorch's writer would copy them from a GPU without blocking, and then wait for
        a stream of the *current* GPU. If that is another one, the file could hold what
        the host's memory held before. This copy returns when it is done.
        """
        found = self.memory.get(index)
        return super().lookup_object(index) if found is None else found.cpu()


class Wanted(DefaultLoadPlanner):
    """Tells PyTorch what this rank reads, and where to.

    :param stretches: what lies on this rank
    """

    def __init__(self, stretches: list[Stretch], *, cast: bool) -> None:
        super().__init__(flatten_state_dict=False)
        self.stretches, self.cast = stretches, cast
        self.memory: dict[MetadataIndex, Tensor] = {}

    def create_local_plan(self) -> LoadPlan:
        """Of each file that holds elements of this rank, the part to read."""
        assert self.metadata is not None
        found = self.metadata.state_dict_metadata
        return LoadPlan(
            [item for each in self.stretches for item in self.items(each, found)]
        )

    def items(self, wanted: Stretch, found: Mapping[str, Any]) -> list[ReadItem]:
        """The requests for one stretch."""
        tensor = tensor_for(wanted, found, cast=self.cast)
        chunks = []
        for box, values in wanted.views():
            chunks.append(chunk(box))
            self.memory[MetadataIndex(wanted.name, torch.Size(box.offsets))] = values
        items = create_read_items_for_chunk_list(wanted.name, tensor, chunks)
        refuse_holes(wanted, items)
        name = next(name for name in wanted.names if name in found)
        return [
            replace(item, storage_index=replace(item.storage_index, fqn=name))
            for item in items
        ]

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        """Where the numbers of a box belong."""
        return self.memory[index]


def chunk(box: Box) -> ChunkStorageMetadata:
    """A box in PyTorch's words."""
    return ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))


# sidelit: depth Checkpoints that lack a tensor or a part of one, or hold another shape or dtype.


def tensor_for(
    wanted: Stretch, found: Mapping[str, Any], *, cast: bool
) -> TensorStorageMetadata:
    """What a checkpoint says of the tensor that a stretch belongs to.

    :raises ValueError: naming the tensor
    """
    name = next((name for name in wanted.names if name in found), None)
    if name is None:
        raise ValueError(f"the checkpoint has no {wanted.name}")
    tensor = found[name]
    if not isinstance(tensor, TensorStorageMetadata):
        raise ValueError(f"{name} is no tensor in the checkpoint")
    if tuple(tensor.size) != wanted.shape:
        raise ValueError(
            f"{name} has shape {tuple(tensor.size)} in the checkpoint and {wanted.shape} "
            "in the model"
        )
    if tensor.properties.dtype != wanted.values.dtype and not cast:
        raise ValueError(
            f"{name} is {short(tensor.properties.dtype)} in the checkpoint and "
            f"{short(wanted.values.dtype)} in the model"
        )
    return tensor


def refuse_holes(wanted: Stretch, items: Iterable[ReadItem]) -> None:
    """Refuse a checkpoint whose boxes leave out elements of a stretch.

    PyTorch would read what is there, and leave the old values in the holes.

    :raises ValueError: naming the tensor
    """
    there = sum(prod(item.lengths) for item in items)
    if there != wanted.values.numel():
        raise ValueError(
            f"of {wanted.name} the checkpoint holds {there} of the "
            f"{wanted.values.numel()} elements that this rank needs"
        )


def short(dtype: torch.dtype) -> str:
    """The name of a dtype, as a message says it."""
    return str(dtype).removeprefix("torch.")
