r"""# What the files of a checkpoint may say

> A schema states the type and the range of each value in a file. A value outside of it
> is refused before the program uses it.

A file may be damaged, or a stranger may have written it. A step may be `"7"`, `-1` or
`1.5`, and the size of a text may be $2^{50}$ bytes. Without a check, such a value causes
an error far from the file, or takes all memory. So whatever is read from a file passes
one of these schemas first:

| schema | read from |
|---|---|
| `Whole`, `File` | [the list of a checkpoint's files](together.py#module/the-list-of-a-checkpoints) |
| `Index`, `TensorThere`, `Place`, `Key` | [the index](file_formats.py#index_of) |
| `Text`, `Group`, `OptimizerState` | [the state of a run](run_state.py), and files of other programs |
| `WeightMap` | [the index of a model's folder](folder_names.py) |

The library [msgspec](https://jcristharif.com/msgspec/) compares values and schemas. Only
this module imports it, and only a program that reads imports this module.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
import torch
from msgspec import Meta, Struct
from torch.distributed.checkpoint.metadata import MetadataIndex

from shardbook.state.tensor_file import PIECE

__all__ = [
    "Groups",
    "Index",
    "Keys",
    "OptimizerState",
    "Tensors",
    "Text",
    "Version",
    "WeightMap",
    "Whole",
    "decoded",
    "refuse_unlike",
]

# sidelit: hide
T = TypeVar("T")
# sidelit: show

Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Shape = Annotated[tuple[Natural, ...], Meta(max_length=64)]


class File(Struct):
    """A file of a checkpoint. An index has one `sum`, and others have those of their `elements`."""

    size: Natural
    sum: Natural | None = None
    elements: dict[Natural, tuple[Natural, Natural, list[Natural]]] = {}

    def __post_init__(self) -> None:
        for start, nbytes, sums in self.elements.values():
            if start + nbytes > self.size or len(sums) != -(-nbytes // PIECE):
                raise ValueError(
                    "elements lie outside of their file, or lack checksums"
                )


class Version(Struct):
    """The format of a list, whatever else is in it."""

    format: Positive


class Whole(Version):
    """The list of a checkpoint's files."""

    step: Natural
    files: dict[str, File]


class Properties(Struct):
    """The dtype of a tensor in the index."""

    dtype: torch.dtype


class Chunk(Struct):
    """A box of a tensor in the index."""

    offsets: Shape
    sizes: Shape


class TensorThere(Struct):
    """A tensor in the index."""

    properties: Properties
    size: Shape
    chunks: list[Chunk]


class Place(Struct):
    """The place of a box in a file."""

    relative_path: str
    offset: Natural
    length: Natural


class Key(Struct):
    """The name of a box, and the coordinates of its first element."""

    fqn: str
    offset: Shape | None


Tensors, Keys = list[TensorThere], list[Key]


class Index(Struct):
    """The index of a checkpoint."""

    state_dict_metadata: dict[str, Any]
    storage_data: dict[MetadataIndex, Place]


class Group(Struct):
    """A parameter group of an optimizer."""

    params: list[str | int]


Groups = list[Group]


class OptimizerState(Struct):
    """The state of an optimizer in a file."""

    state: dict[str | int, dict[str, Any]]
    param_groups: list[Group]


class Text(Struct):
    """The values of a run that are not tensors."""

    ranks: Positive
    optimizer: Any
    others: dict[str, Any]
    rule: str | None = None
    entries: dict[str, dict[str, Any]] = {}


class WeightMap(Struct):
    """For each tensor of a model the file that holds it."""

    weight_map: dict[str, str]


def decoded(data: bytes, kind: type[T]) -> T:
    """Read JSON of this schema.

    :raises ValueError: if the JSON is broken, or says something else
    """
    return msgspec.json.decode(data, type=kind)


def refuse_unlike(value: Any, kind: Any) -> None:
    """Compare a value in memory with a schema.

    :raises ValueError: naming the first part that differs
    """
    msgspec.convert(value, kind, from_attributes=True)
