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
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
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
from shardbook.state.checked_elements import Archives, Elements, Pieces, take
from shardbook.state.checkpoint_index import Damaged, index_of
from shardbook.state.file_list import elements_in
from shardbook.state.tensor_file import new_room

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
        """Read the index, on each rank."""
        return index_of(self.folder)

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
    def elements(self) -> dict[str, dict[int, Elements]] | None:
        """The positions of all elements, or `None` if the checkpoint has no list."""
        return elements_in(self.folder)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what this rank needs, one file after another, each from front to back.

        :raises Changed: if a file differs from what was written
        """
        if self.elements is None:
            return super().read_data(plan, planner)
        items = [(self.storage_data[item.storage_index], item) for item in plan.items]
        items.sort(key=lambda pair: (pair[0].relative_path, pair[0].offset))
        by_file: dict[str, list[tuple[int, ReadItem]]] = {}
        for place, item in items:
            by_file.setdefault(place.relative_path, []).append((place.offset, item))
        room = new_room()
        for name, wanted in by_file.items():
            with (self.folder / Path(name).name).open("rb") as file:
                for begin, item in wanted:
                    where = self.listed(name, begin)
                    index = item.storage_index
                    box = self.boxes[MetadataIndex(index.fqn, index.offset)]
                    target = planner.resolve_tensor(item)
                    offsets = item.storage_offsets
                    take(file, where, box, offsets, target.detach(), room)
                    planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    # sidelit: depth An index and a list of files that do not fit together.

    def listed(self, name: str, begin: int) -> Elements:
        """Look up a box in the list.

        :raises Damaged: if the list lacks the box
        """
        found = (self.elements or {}).get(name, {}).get(begin)
        if found is None:
            raise Damaged(f"the list of its files lacks a part of {name}")
        return found
