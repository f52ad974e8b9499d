r"""# A file of named tensors

> A safetensors file begins with a table of what it holds, so any part of a tensor can be written by itself.

[Safetensors](https://github.com/huggingface/safetensors) is the format in which trained
models are passed on. A file is a number, a text and bytes:

| bytes | what |
|---|---|
| 8 | the length $n$ of the text |
| $n$ | JSON: of each tensor its name, dtype, shape, and the range of its bytes |
| the rest | the elements of one tensor after another, row by row |

There is no program in it, unlike in a pickle. And the ranges follow from names, shapes
and dtypes alone. So before any number is known, each rank knows where each of its
elements belongs. [A folder of a model](model_folder.py) is written in that way.

A 16-bit tensor with an odd number of elements would leave the next one at an odd
address. So the tensors with the longest elements come first, as the library
`safetensors` lays them out.
"""

# sidelit: hide
from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BufferedRandom, BufferedReader
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "PIECE",
    "Named",
    "Place",
    "as_tensor",
    "fill",
    "in_pieces",
    "laid_out",
    "new_room",
    "places_in",
    "pour",
]
# sidelit: show


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor that a file is to hold."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Place:
    """Where the elements of a tensor are.

    :param start: the number of the first byte in the file
    """

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


def laid_out(
    path: Path, tensors: Iterable[Named], about: dict[str, str]
) -> tuple[bytes, dict[str, Place], int]:
    """The head of a file, the place of each tensor, and the size of the file in bytes.

    :param about: words that go with the tensors
    :raises ValueError: if the format has no name for a dtype
    """
    held: dict[str, Any] = {"__metadata__": about} if about else {}
    end = 0
    ordered = sorted(tensors, key=lambda each: -each.dtype.itemsize)
    for each in ordered:
        held[each.name] = {
            "dtype": code_of(each.dtype, each.name),
            "shape": each.shape,
            "data_offsets": (end, end + each.nbytes),
        }
        end += each.nbytes
    text = json.dumps(held, separators=(",", ":")).encode()
    # The elements begin at a multiple of 8.
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    places = {}
    for each in ordered:
        start = len(head) + held[each.name]["data_offsets"][0]
        places[each.name] = Place(path, each.dtype, each.shape, start)
    return head, places, len(head) + end


def pour(
    values: Tensor, file: BufferedRandom, place: Place, first: int, room: memoryview
) -> None:
    """Write elements to their place, in the dtype that the file has.

    :param values: of shape `(n,)`, on any device
    :param first: the number of their first element in the whole tensor
    :param room: [memory](#new_room) for a piece
    """
    file.seek(place.start + first * place.dtype.itemsize)
    for part, piece in in_pieces(values, place.dtype, room):
        as_tensor(piece, place.dtype).copy_(part)
        file.write(piece)


def fill(
    values: Tensor, file: BufferedReader, place: Place, first: int, room: memoryview
) -> None:
    """Read elements from their place, and cast them to the dtype that they have here.

    :param values: of shape `(n,)`, on any device; is written
    :param first: the number of the first of them in the whole tensor
    :param room: [memory](#new_room) for a piece
    :raises EOFError: if the file ends before
    """
    file.seek(place.start + first * place.dtype.itemsize)
    for part, piece in in_pieces(values, place.dtype, room):
        if file.readinto(piece) != len(piece):
            raise EOFError(f"{place.file} has become shorter while it was read")
        part.copy_(as_tensor(piece, place.dtype))


def in_pieces(
    values: Tensor, dtype: torch.dtype, room: memoryview
) -> Iterator[tuple[Tensor, memoryview]]:
    """The elements in pieces, each with a part of the room for its bytes.

    :param values: of shape `(n,)`
    :param dtype: that the bytes have
    """
    size = PIECE // dtype.itemsize
    for start in range(0, values.numel(), size):
        part = values[start : start + size]
        yield part, room[: part.numel() * dtype.itemsize]


def new_room() -> memoryview:
    """Memory for one piece.

    It is used for all pieces of a file. New memory for each would take longer than to
    fill it, and one megabyte stays in the processor's cache between the copies.
    """
    return memoryview(bytearray(PIECE))


PIECE = 1 << 20


def as_tensor(room: memoryview, dtype: torch.dtype) -> Tensor:
    """A piece of memory as a tensor of shape `(n,)`; nothing is copied."""
    return torch.frombuffer(room, dtype=torch.uint8).view(dtype)


# sidelit: depth Dtypes without a name, and files of strangers.

CODES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint64: "U64",
    torch.uint32: "U32",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {code: dtype for dtype, code in CODES.items()}


def code_of(dtype: torch.dtype, name: str) -> str:
    """The format's name of a dtype.

    :raises ValueError: if there is none
    """
    if dtype not in CODES:
        raise ValueError(
            f"{name} is {str(dtype).removeprefix('torch.')}, which safetensors has no "
            "name for; convert it first"
        )
    return CODES[dtype]


def places_in(path: Path) -> dict[str, Place]:
    """What a file holds, by name.

    The library `safetensors` opens the file first. It refuses ranges that overlap, leave
    a hole, or do not fit the shapes or the size of the file. So what is read afterwards
    can be relied on.

    :raises ValueError: if it is no such file, or holds a dtype that is not known here
    :raises OSError: if it cannot be read
    """
    refuse_broken(path)
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        held = json.loads(file.read(length))
    held.pop("__metadata__", None)
    found = {}
    for name, said in held.items():
        if said["dtype"] not in DTYPES:
            raise ValueError(
                f"{name} in {path} is {said['dtype']}, a dtype that this version "
                "does not read"
            )
        start = 8 + length + said["data_offsets"][0]
        found[name] = Place(path, DTYPES[said["dtype"]], tuple(said["shape"]), start)
    return found


def refuse_broken(path: Path) -> None:
    """Let the library `safetensors` look at a file.

    :raises ValueError: with what it finds wrong
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise ValueError(
            f"to read {path}, the library safetensors is needed: "
            "pip install safetensors"
        ) from error
    try:
        with safe_open(os.fspath(path), framework="pt"):
            pass
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error
