r"""# Sharded checkpoints

> Each rank writes the elements that it has, and later reads those that it needs,
> whatever number of ranks saved them.

Four ranks save a matrix of 8 rows, two rows each. Later three ranks load it, and rank 0
needs the first 22 elements. If the matrix has 8 columns, they are in the file of the
first rank (rows 0 and 1) and in that of the second (6 elements of row 2). PyTorch's
distributed checkpoint finds this out. It writes files in parallel, keeps an index of
all [boxes](boxes.py), and searches the index for boxes that overlap.

PyTorch calls a *planner* to learn what a rank writes or reads. The two planners in this
chapter return the boxes of [this rank's stretches](stored.py):

| step | when writing | when reading |
|---|---|---|
| plan, on each rank | this rank's boxes | this rank's boxes, and the parts of the files that overlap them |
| plan, on one rank | the index: which box is in which file | |
| transfer | the memory of each box, as source | the memory of each box, as target |

Only writing the index needs all ranks. A rank that reads has the complete index, so it
plans alone.

Another number of ranks, another stage, or a program with `fully_shard` can read the
same files. Nothing is gathered, so a rank needs no memory for the model in addition to
its own elements.
"""

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


def write(
    folder: Path, stretches: Iterable[Stretch], values: Mapping[str, Any], **how: Any
) -> dict[str, Any]:
    """Write a checkpoint. Collective.

    :param folder: an empty folder
    :param stretches: the tensors of this rank
    :param values: values that are not tensors, such as learning rates; rank 0 writes
        them
    :param how: options of `torch.distributed.checkpoint.save`
    :returns: the files that this rank has written, for [the list](file_list.py)
    """
    planner = Written(list(stretches))
    names = {stretch.name: stretch.names for stretch in planner.stretches}
    writer = Writer(folder, names)
    save(dict(values), storage_writer=writer, planner=planner, **how)
    return writer.written


def read(
    reader: Reader, index: Metadata, stretches: Iterable[Stretch], *, cast: bool = False
) -> None:
    """Read the elements of this rank into their memory. Collective.

    :param index: the index of the checkpoint
    :param cast: whether elements of another dtype are converted
    :raises ValueError: on every rank, if the checkpoint lacks a tensor, or holds it in
        another shape or dtype, or holds only a part of it
    :raises OSError: on every rank, if one of them cannot read
    """
    planner = Wanted(list(stretches), cast=cast)

    def act() -> None:
        planner.set_up_planner({}, index)
        reader.set_up_storage_reader(index, is_coordinator=False)
        reader.read_data(planner.create_local_plan(), planner).wait()

    on_each(act)


class Written(DefaultSavePlanner):
    """The planner for writing.

    :param stretches: the tensors of this rank; if several ranks have the same elements,
        this rank writes its share of them
    """

    def __init__(self, stretches: list[Stretch]) -> None:
        super().__init__(flatten_state_dict=False)
        self.stretches = stretches
        self.memory: dict[MetadataIndex, Tensor] = {}

    def create_local_plan(self) -> SavePlan:
        """Plan this rank's boxes, and on rank 0 the values that are not tensors."""
        values = super().create_local_plan().items if self.is_coordinator else []
        boxes = [item for each in self.stretches for item in self.items(each)]
        self.plan = SavePlan([*values, *boxes])
        return self.plan

    def items(self, stretch: Stretch) -> Iterable[WriteItem]:
        """Make a write request for each box of a stretch."""
        parts = list(stretch.own.views())
        if not prod(stretch.shape) and self.is_coordinator:
            # A tensor without elements is on no rank, but a reader expects its name.
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
        """The elements of a box, on the host.

        PyTorch's writer would copy them from a GPU without blocking, and then wait for
        a stream of the *current* GPU. If the elements were on another GPU, the file
        could hold old bytes of the host's memory. This copy is blocking, so it is safe.
        """
        found = self.memory.get(index)
        return super().lookup_object(index) if found is None else found.cpu()


class Wanted(DefaultLoadPlanner):
    """The planner for reading.

    :param stretches: the tensors of this rank, which receive the elements
    :param cast: whether elements of another dtype are converted
    """

    def __init__(self, stretches: list[Stretch], *, cast: bool) -> None:
        super().__init__(flatten_state_dict=False)
        self.stretches, self.cast = stretches, cast
        self.memory: dict[MetadataIndex, Tensor] = {}

    def create_local_plan(self) -> LoadPlan:
        """Plan the parts of the files that hold elements of this rank."""
        assert self.metadata is not None
        found = self.metadata.state_dict_metadata
        return LoadPlan(
            [item for each in self.stretches for item in self.items(each, found)]
        )

    def items(self, wanted: Stretch, found: Mapping[str, Any]) -> list[ReadItem]:
        """Make the read requests for one stretch."""
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
        """The memory that receives the elements of a box."""
        return self.memory[index]


def chunk(box: Box) -> ChunkStorageMetadata:
    """A box as PyTorch's index describes it."""
    return ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))


# sidelit: depth Checkpoints that lack a tensor or a part of one, or hold another shape or dtype.


def tensor_for(
    wanted: Stretch, found: Mapping[str, Any], *, cast: bool
) -> TensorStorageMetadata:
    """Find the description of a stretch's tensor in a checkpoint.

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
    """Refuse a checkpoint whose boxes do not cover a stretch.

    PyTorch would read the elements that exist, and keep old values in the gaps.

    :raises ValueError: naming the tensor
    """
    there = sum(prod(item.lengths) for item in items)
    if there != wanted.values.numel():
        raise ValueError(
            f"of {wanted.name} the checkpoint holds {there} of the "
            f"{wanted.values.numel()} elements that this rank needs"
        )


def short(dtype: torch.dtype) -> str:
    """The name of a dtype for a message."""
    return str(dtype).removeprefix("torch.")
