r"""# The file formats of a checkpoint

> The tensors of a run are stored in boxes, its other states as JSON, and the index of the
> boxes is read without running it.

A checkpoint is read by other programs, on another number of ranks, and years later. So
its files contain nothing that belongs to one program. The tensors of a run are [cut into
boxes](#module/cutting-a-slice-into-boxes), and other states are [stored as
JSON](#module/object-states-as-json). The index of the boxes is a pickle, and it is [read
without running it](#module/reading-a-checkpoints-index-without). Each value that is read
passes [a schema](schema.py).

:notation $d$: `shape`, the number of its entries
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    Metadata,
    TensorStorageMetadata,
)

from shardbook.foundations.torch_private import INDEX_NAMES

__all__ = [
    "Box",
    "Damaged",
    "boxes",
    "index_of",
    "plain",
    "reading",
    "reason",
    "restored",
    "schema",
]


# ## Object states as JSON
#
# > The `state_dict` of a schedule or a scaler is stored as JSON, which cannot run code as
# > a pickle can.
#
# The state of a schedule or a scaler is a dictionary of numbers. JSON can store such a
# dictionary, but no tuples, no numbers as keys, and no tensors. A learning-rate schedule
# may have all three. So they are marked:
#
# | Python | JSON |
# |---|---|
# | `(0.9, 0.999)` | `{"tuple": [0.9, 0.999]}` |
# | `{10: 1}` | `{"dict": [[10, 1]]}` |
# | `torch.tensor(0.1)` | `{"dtype": "float32", "tensor": 0.10000000149011612}` |
#
# Numbers are restored bit for bit, even `nan` and infinities. A large tensor does not
# belong in JSON, so it is kept beside the text:
#
# | Python | JSON | kept |
# |---|---|---|
# | `{"directions": [d]}` | `{"dict": [["directions", [{"kept": "directions.0"}]]]}` | `d` as `directions.0` |


def plain(value: Any, where: str, kept: dict[str, Tensor] | None = None) -> Any:
    """Convert a value into a form that `json` can write.

    >>> plain({"betas": (0.9, 0.999), "milestones": {10: 1}}, "the schedule")
    {'dict': [['betas', {'tuple': [0.9, 0.999]}], ['milestones', {'dict': [[10, 1]]}]]}

    :param where: the owner of the value, for the message
    :param kept: takes the tensors, by their places below `where`; without it all
        tensors must be small, and become part of the text
    :raises ValueError: naming a part of the value that is no number, string, list,
        tuple, dictionary or tensor, or a tensor that is too large for the text
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [plain(each, f"{where}.{n}", kept) for n, each in enumerate(value)]
    if isinstance(value, tuple):
        return {"tuple": plain(list(value), where, kept)}
    if isinstance(value, Mapping):
        pairs = value.items()
        return {
            "dict": [
                [plain(k, where), plain(v, f"{where}.{k}", kept)] for k, v in pairs
            ]
        }
    if isinstance(value, Tensor) and kept is not None:
        kept[where] = value.detach()
        return {"kept": where}
    if isinstance(value, Tensor) and value.numel() <= SMALL and not value.is_complex():
        dtype = str(value.dtype).removeprefix("torch.")
        return {"dtype": dtype, "tensor": value.detach().tolist()}
    raise ValueError(
        f"{where} holds a {type(value).__name__}; a checkpoint takes numbers, strings, "
        f"lists, tuples, dictionaries, and tensors of up to {SMALL} elements"
    )


SMALL = 1024


def restored(value: Any, kept: Mapping[str, Tensor] | None = None) -> Any:
    """Convert the value back.

    >>> restored({"dict": [["betas", {"tuple": [0.9, 0.999]}]]})
    {'betas': (0.9, 0.999)}
    >>> restored({"dtype": "float32", "tensor": [0.5]})
    tensor([0.5000])

    :param kept: the tensors that were kept beside the text
    """
    if isinstance(value, list):
        return [restored(each, kept) for each in value]
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(restored(value["tuple"], kept))
    if "kept" in value:
        return (kept or {})[value["kept"]]
    if "tensor" in value:
        dtype = getattr(torch, value["dtype"])
        return torch.tensor(value["tensor"], dtype=dtype, device="cpu")
    return {restored(key): restored(each, kept) for key, each in value["dict"]}


# ## Cutting a slice into boxes
#
# > A rank's slice of a flattened parameter is cut into rectangular boxes, which any
# > program can read.
#
# A checkpoint for other programs gives the place of a number in the *parameter*, such as
# row 3, column 5. A rank of this book has a range of the *flattened* parameter, called a
# stretch. A stretch may begin and end in the middle of a row. Take a matrix of 4 rows and
# 5 columns, and a rank with its elements 3 to 17:
#
# | | 0 | 1 | 2 | 3 | 4 |
# |---|---|---|---|---|---|
# | 0 | | | | a | a |
# | 1 | b | b | b | b | b |
# | 2 | b | b | b | b | b |
# | 3 | c | c | c | | |
#
# The stretch consists of the end of a row (a), some whole rows (b) and the beginning of a
# row (c): three boxes. With $d$ dimensions a row is itself a tensor, so its end and its
# beginning are cut in the same way again. This gives at most $2d - 1$ boxes. The elements
# of the boxes, one box after another, have the same order as in the stretch. So each box
# is a view of the stretch, and nothing is copied.
#
# [PyTorch's distributed checkpoints](https://docs.pytorch.org/docs/stable/distributed.checkpoint.html)
# consist of boxes, too: the index says at which row and column a box begins, and how
# large it is. A program that loads the checkpoint needs other boxes, and reads the
# overlaps. For this reason another number of ranks, another stage or another library can
# read the same checkpoint.


def boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Cut the elements from `start` to `stop` of a flattened tensor into boxes.

    >>> for box in boxes((4, 5), 3, 18):
    ...     print(box.offsets, box.sizes)
    (0, 3) (1, 2)
    (1, 0) (2, 5)
    (3, 0) (1, 3)

    :param shape: of the tensor, whose elements lie row by row
    :param start: number of the first element
    :param stop: number of the element after the last one
    :returns: the boxes, in the order of their elements; none if there are no elements
    """
    if start == stop:
        return
    if len(shape) < 2:
        # A 0-dim tensor has one element and no coordinates.
        yield Box((start,), (stop - start,)) if shape else Box((), ())
        return
    row = prod(shape[1:])
    # `first` is the first row that begins in the stretch. `last` is the row after the
    # last one that ends in the stretch.
    first, last = -(-start // row), stop // row
    if last < first:
        yield from in_row(last, shape, start, stop)
        return
    yield from in_row(first - 1, shape, start, first * row)
    if first < last:
        rest = len(shape) - 1
        yield Box((first, *(0,) * rest), (last - first, *shape[1:]))
    yield from in_row(last, shape, last * row, stop)


def in_row(number: int, shape: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Cut a stretch that lies inside one row. The row is a tensor with one dimension less."""
    before = number * prod(shape[1:])
    for box in boxes(shape[1:], start - before, stop - before):
        yield Box((number, *box.offsets), (1, *box.sizes))


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular part of a tensor.

    :param offsets: the index of its first element, in each dimension
    :param sizes: its length in each dimension
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def numel(self) -> int:
        """The number of elements in the box."""
        return prod(self.sizes)


# ## Reading a checkpoint's index without running a pickle
#
# > The index is a pickle, and a pickle can call any function. This reader allows a dozen
# > names and refuses all others.
#
# The file `.metadata` is the index of a checkpoint: it says which box of which tensor is
# in which file. PyTorch writes it as a pickle. A pickle is a small program that names
# functions and their arguments. One that names `os.system` and `rm -rf ~` deletes your
# files when you open it. An index needs only a dozen names, all of them PyTorch's
# descriptions of tensors. Any other name is refused before anything is called. The files
# with the elements are read with `weights_only=True`, for the same reason.


class Damaged(ValueError):
    """A folder is not a complete checkpoint. The message is written for the user."""


def index_of(folder: Path) -> Metadata:
    """Read the index of a checkpoint that PyTorch or this book has written.

    :raises Damaged: if the file is missing or is not an index
    """
    path = folder / ".metadata"
    known = schema()
    if not path.is_file():
        raise Damaged(f"{folder} is no checkpoint: it has no file .metadata")
    with reading(f"{path} is no index of a checkpoint"), path.open("rb") as file:
        index = Names(file).load()
        if not isinstance(index, Metadata):
            raise ValueError(f"it holds a {type(index).__name__}")
        known.refuse_unlike(index, known.Index)
        known.refuse_unlike(list(index.storage_data), known.Keys)
        tensors = [
            said
            for said in index.state_dict_metadata.values()
            if isinstance(said, TensorStorageMetadata)
        ]
        known.refuse_unlike(tensors, known.Tensors)
    return index


DESCRIPTIONS = "torch.distributed.checkpoint.metadata"
ALLOWED = {
    (DESCRIPTIONS, "BytesStorageMetadata"),
    (DESCRIPTIONS, "ChunkStorageMetadata"),
    (DESCRIPTIONS, "Metadata"),
    (DESCRIPTIONS, "MetadataIndex"),
    (DESCRIPTIONS, "StorageMeta"),
    (DESCRIPTIONS, "TensorProperties"),
    (DESCRIPTIONS, "TensorStorageMetadata"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    # The module in which this version of Python keeps that class.
    (type(Path()).__module__, "PosixPath"),
    *INDEX_NAMES,
}


class Names(pickle.Unpickler):
    """Reads pickles that name nothing but dtypes and the classes of an index."""

    def find_class(self, module: str, name: str) -> Any:
        """Look up a name.

        :raises pickle.UnpicklingError: if the name does not belong into an index
        """
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(
            found := getattr(torch, name, None), torch.dtype
        ):
            return found
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def schema() -> Any:
    """Import [the schemas](schema.py). A program that only trains does without their library.

    :raises ValueError: if the library is not installed
    """
    try:
        return import_module("shardbook.state.schema")
    except ModuleNotFoundError as error:
        raise ValueError(
            "to read a checkpoint, the library msgspec is needed: pip install msgspec"
        ) from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """A block that reads bytes of a stranger, in which any error becomes `Damaged`.

    Wrong bytes can cause almost any error in a parser, also a `RecursionError` or a
    `MemoryError`. Errors of the disk stay what they are.

    :param what: the beginning of the message, before the reason
    """
    try:
        yield
    except (OSError, Damaged):
        raise
    except Exception as error:
        raise Damaged(f"{what}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Shorten an error to one line.

    PyTorch's refusal of a pickle has many lines, on how to load the file anyway.
    """
    said = str(error)
    if named := re.search(r"(?:GLOBAL|global:?) ([\w.]+)", said):
        return f"it names {named[1]}"
    plain = isinstance(error, ValueError | RuntimeError | pickle.UnpicklingError)
    name = "" if plain and said else f"{type(error).__name__} "
    return f"{name}{said}".partition("\n")[0].strip()
