r"""# Sharded checkpoints

> Each rank writes the elements that it has, and later reads those that it needs,
> whatever number of ranks saved them.

Four ranks save a matrix of 8 rows, two rows each. Later three ranks load it, and rank 0
needs the first 22 elements. If the matrix has 8 columns, they are in the file of the
first rank (rows 0 and 1) and in that of the second (6 elements of row 2). PyTorch's
distributed checkpoint finds this out. It writes files in parallel, keeps an index of
all [boxes](file_formats.py#module/cutting-a-slice-into-boxes), and searches the index for
boxes that overlap.

PyTorch calls a *planner* to learn what a rank writes or reads, and [a writer or a
reader](#module/the-files-of-a-sharded) to transfer the elements. The two planners in
this chapter return the boxes of [this rank's
stretches](optimizer_entries.py#module/what-a-rank-stores-in):

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

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
)
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import (
    create_read_items_for_chunk_list,
)
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from shardbook.foundations.torch_private import StorageInfo
from shardbook.state.file_formats import Box, Damaged, index_of, reading
from shardbook.state.optimizer_entries import Stretch
from shardbook.state.tensor_file import new_room
from shardbook.state.together import WHOLE, Archives, Pieces, contents, on_each, take

if TYPE_CHECKING:
    from shardbook.state.schema import Whole

__all__ = ["Reader", "Writer", "read", "write"]


def write(
    folder: Path, stretches: Iterable[Stretch], values: Mapping[str, Any], **how: Any
) -> dict[str, Any]:
    """Write a checkpoint. Collective.

    :param folder: an empty folder
    :param stretches: the tensors of this rank
    :param values: values that are not tensors, such as learning rates; rank 0 writes
        them
    :param how: options of `torch.distributed.checkpoint.save`
    :returns: the files that this rank has written, for [the
        list](together.py#module/the-list-of-a-checkpoints)
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


# sidelit: core


# ## The files of a sharded checkpoint
#
# > Each rank writes one file, and reads from all files the parts that it needs.
#
# PyTorch's engine decides which rank writes which box, and calls a *writer* and a
# *reader*. The two in this section keep PyTorch's format, so other programs can read the
# files. They need less memory than PyTorch's, and are as fast as one large `torch.save`:
#
# | | PyTorch's writer and reader | this section's |
# |---|---|---|
# | write a box | copy it, and keep the copy until the file is complete | write it in pieces of 1 MiB |
# | read a part of a box | read the box, then copy the part | read the part into its memory |
# | checksums | not compared | [compared on the way](together.py#module/checksums-of-a-checkpoints-elements) |
#
# If a folder has no [list of its files](together.py#module/the-list-of-a-checkpoints),
# another program wrote it. PyTorch's own reader reads such a folder.


class Writer(FileSystemWriter):
    """Writes the files, and an index that lists a tied parameter under each of its names.

    :param names: for the first name of each tensor, all of its names
    """

    def __init__(self, folder: Path, names: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(folder, overwrite=False)
        self.folder, self.names = folder, names
        # The files that this rank has written, for [the list](together.py#module/the-list-of-a-checkpoints).
        self.written: dict[str, Any] = {}

    def write_data(
        self, plan: SavePlan, planner: SavePlanner
    ) -> Future[list[WriteResult]]:
        """Write the file of this rank, and wait until it is on the disk."""
        name = f"{plan.storage_data.prefix}0.distcp"
        results = []
        with (self.folder / name).open("wb") as file, Pieces() as pieces:
            archives = Archives(file, pieces)
            for item in plan.items:
                begin, value = archives.end, planner.resolve_data(item)
                if isinstance(value, Tensor):
                    archives.add(value)
                else:
                    archives.write(value.getbuffer())
                place = StorageInfo(name, begin, archives.end - begin)
                results.append(WriteResult(item.index, place.length, place))
            file.flush()
            os.fsync(file.fileno())
        self.written[name] = {"size": archives.end, "elements": archives.elements}
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the index. One rank does this after all files are complete."""
        tensors = metadata.state_dict_metadata
        for name in list(tensors):
            for other in self.names.get(name, ()):
                tensors[other] = tensors[name]
        more = [
            replace(result, index=replace(result.index, fqn=other))
            for rank in results
            for result in rank
            for other in self.names.get(result.index.fqn, ())[1:]
        ]
        super().finish(metadata, [*results, more])


class Reader(FileSystemReader):
    """Reads from the files that the index names."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.folder = folder
        self.boxes: dict[MetadataIndex, Any] = {}

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """Read the index.

        :raises Damaged: if it cannot be read, or does not fit the files
        """
        index = index_of(self.folder)
        refuse_misfit(self.folder, index, self.listed)
        return index

    def set_up_storage_reader(self, metadata: Metadata, *how: Any, **more: Any) -> None:
        """Keep the dtype and shape of each box in the index."""
        super().set_up_storage_reader(metadata, *how, **more)
        self.boxes = {
            MetadataIndex(name, chunk.offsets): (said.properties.dtype, chunk.sizes)
            for name, said in metadata.state_dict_metadata.items()
            if isinstance(said, TensorStorageMetadata)
            for chunk in said.chunks
        }

    @cached_property
    def listed(self) -> Whole | None:
        """The list of the files, with the positions of all elements; `None` if there is none."""
        return contents(self.folder) if (self.folder / WHOLE).exists() else None

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what this rank needs, one file after another, each from front to back.

        :raises Damaged: if a file differs from what was written
        """
        if self.listed is None:
            with reading("a part of a file is no tensor"):
                return super().read_data(plan, planner)
        items = [(self.storage_data[item.storage_index], item) for item in plan.items]
        items.sort(key=lambda pair: (pair[0].relative_path, pair[0].offset))
        by_file: dict[str, list[tuple[int, ReadItem]]] = {}
        for place, item in items:
            by_file.setdefault(place.relative_path, []).append((place.offset, item))
        room = new_room()
        for name, wanted in by_file.items():
            with (self.folder / name).open("rb") as file:
                for begin, item in wanted:
                    where = self.listed.files[name].elements[begin]
                    index = item.storage_index
                    box = self.boxes[MetadataIndex(index.fqn, index.offset)]
                    target = planner.resolve_tensor(item)
                    offsets = item.storage_offsets
                    take(file, where, box, offsets, target.detach(), room)
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


# sidelit: depth An index that does not fit the files.


def refuse_misfit(folder: Path, index: Metadata, listed: Whole | None) -> None:
    """Refuse an index that places a box outside of its file.

    A size in the index decides how much memory is taken. So each box is compared with the
    bytes in its file, and each tensor with its boxes.

    :param listed: the list of the files; without it the files tell their sizes
    :raises Damaged: naming the first tensor or file that does not fit
    """
    sizes: dict[str, int] = {}
    for name in {place.relative_path for place in index.storage_data.values()}:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise Damaged(
                f"the index of {folder} names {name!r}, which is no file in it"
            )
        if listed is None:
            sizes[name] = (folder / name).stat().st_size
        elif name in listed.files:
            sizes[name] = listed.files[name].size
    for key, where in index.storage_data.items():
        if where.offset + where.length > sizes.get(where.relative_path, -1):
            raise Damaged(f"{key.fqn} lies outside of {where.relative_path}")
    for name, tensor in index.state_dict_metadata.items():
        if not isinstance(tensor, TensorStorageMetadata):
            continue
        numel = 0
        for chunk in tensor.chunks:
            where = index.storage_data.get(MetadataIndex(name, chunk.offsets))
            numel += prod(chunk.sizes)
            nbytes = prod(chunk.sizes) * tensor.properties.dtype.itemsize
            if where is None or not fits(tensor.size, chunk):
                raise Damaged(f"the index of {folder} does not say where {name} is")
            if listed is not None:
                elements = listed.files[where.relative_path].elements
                if elements.get(where.offset, (0, -1))[1] != nbytes:
                    raise Damaged(
                        f"the list of its files lacks a part of {where.relative_path}"
                    )
            elif nbytes > where.length and not where.transform_descriptors:
                raise Damaged(
                    f"{name} is larger than its part of {where.relative_path}"
                )
        if prod(tensor.size) > numel:
            raise Damaged(f"the index of {folder} does not say where all of {name} is")


def fits(size: Sequence[int], chunk: ChunkStorageMetadata) -> bool:
    """Whether a box lies inside a tensor of this size."""
    return len(chunk.offsets) == len(chunk.sizes) == len(size) and all(
        at + length <= end
        for at, length, end in zip(chunk.offsets, chunk.sizes, size, strict=True)
    )
