r"""# The files of a sharded checkpoint

> Each rank writes one file, and reads from all files the parts that it needs.

PyTorch's engine decides which rank writes which box, and calls a *writer* and a
*reader*. The two in this chapter keep PyTorch's format, so other programs can read the
files. They need less memory than PyTorch's, and are as fast as one large `torch.save`:

| | PyTorch's writer and reader | this chapter's |
|---|---|---|
| write a box | copy it, and keep the copy until the file is complete | write it in pieces of 1 MiB |
| read a part of a box | read the box, then copy the part | read the part into its memory |
| checksums | not compared | [compared on the way](checked_elements.py) |

If a folder has no [list of its files](file_list.py), another program wrote it. PyTorch's
own reader reads such a folder.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from shardbook.foundations.torch_private import StorageInfo
from shardbook.state.checked_elements import Archives, Pieces, take
from shardbook.state.checkpoint_index import Damaged, index_of, reading
from shardbook.state.file_list import WHOLE, contents
from shardbook.state.tensor_file import new_room

if TYPE_CHECKING:
    from shardbook.state.schema import Whole

__all__ = ["Reader", "Writer"]


class Writer(FileSystemWriter):
    """Writes the files, and an index that lists a tied parameter under each of its names.

    :param names: for the first name of each tensor, all of its names
    """

    def __init__(self, folder: Path, names: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__(folder, overwrite=False)
        self.folder, self.names = folder, names
        # The files that this rank has written, for [the list](file_list.py).
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
