r"""# The safetensors format

> A safetensors file begins with a table of its tensors, so each rank can compute where
> its elements belong in the file.

[Safetensors](https://github.com/huggingface/safetensors) is the usual format for
publishing trained models. A file has three parts:

| bytes | content |
|---|---|
| 8 | the length $n$ of the text |
| $n$ | JSON: for each tensor its name, dtype, shape, and the range of its bytes |
| the rest | the elements of one tensor after another, row by row |

Unlike a pickle, such a file cannot run code. The ranges follow from names, shapes and
dtypes alone, so each rank can compute the position of each of its elements without the
other ranks. That is how all ranks write [the folder of a model](model_folder.py) at
once.

A 16-bit tensor of 3 elements takes 6 bytes, so an FP32 tensor after it would begin at
an address that is not a multiple of 4. Therefore the tensors with the largest elements
come first. The library `safetensors` uses the same order.
"""

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


@dataclass(frozen=True, slots=True)
class Named:
    """The name, dtype and shape of a tensor in a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The number of bytes of the tensor's elements."""
        return prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a tensor's elements in a file.

    :param start: the position of the first byte in the file
    """

    file: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int


def laid_out(
    path: Path, tensors: Iterable[Named], about: dict[str, str]
) -> tuple[bytes, dict[str, Place], int]:
    """Compute the head of a file, the place of each tensor, and the file's size in bytes.

    :param about: metadata for the head of the file
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
    # Blanks at the end of the text let the elements begin at a multiple of 8.
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
    """Write elements to their place, in the dtype of the file.

    :param values: the elements, of shape `(n,)`, on any device
    :param first: the number of the first element in the whole tensor
    :param room: [memory](#new_room) for a piece
    """
    file.seek(place.start + first * place.dtype.itemsize)
    for part, piece in in_pieces(values, place.dtype, room):
        as_tensor(piece, place.dtype).copy_(part)
        file.write(piece)


def fill(
    values: Tensor, file: BufferedReader, place: Place, first: int, room: memoryview
) -> None:
    """Read elements from their place, and cast them to the dtype of `values`.

    :param values: receives the elements, of shape `(n,)`, on any device
    :param first: the number of the first element in the whole tensor
    :param room: [memory](#new_room) for a piece
    :raises EOFError: if the file ends before the elements do
    """
    file.seek(place.start + first * place.dtype.itemsize)
    for part, piece in in_pieces(values, place.dtype, room):
        if file.readinto(piece) != len(piece):
            raise EOFError(f"{place.file} has become shorter while it was read")
        part.copy_(as_tensor(piece, place.dtype))


def in_pieces(
    values: Tensor, dtype: torch.dtype, room: memoryview
) -> Iterator[tuple[Tensor, memoryview]]:
    """Cut elements into pieces, each with memory for its bytes.

    :param values: the elements, of shape `(n,)`
    :param dtype: the dtype of the bytes
    :param room: [memory](#new_room) for a piece
    """
    size = PIECE // dtype.itemsize
    for start in range(0, values.numel(), size):
        part = values[start : start + size]
        yield part, room[: part.numel() * dtype.itemsize]


def new_room() -> memoryview:
    """Allocate memory for one piece.

    The same memory serves all pieces of a file. Allocating memory for each piece would
    take longer than filling it, and one megabyte stays in the processor's cache between
    the copies.
    """
    return memoryview(bytearray(PIECE))


PIECE = 1 << 20


def as_tensor(room: memoryview, dtype: torch.dtype) -> Tensor:
    """View memory as a tensor of shape `(n,)`, without a copy."""
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
    """The format's name for a dtype.

    :raises ValueError: if the format has none
    """
    if dtype not in CODES:
        raise ValueError(
            f"{name} is {str(dtype).removeprefix('torch.')}, which safetensors has no "
            "name for; convert it first"
        )
    return CODES[dtype]


def places_in(path: Path) -> dict[str, Place]:
    """Read the table of a file: the place of each tensor, by name.

    The library `safetensors` opens the file first. It refuses ranges that overlap, leave
    a gap, or do not fit the shapes or the size of the file. So the table that is read
    afterwards can be trusted.

    :raises ValueError: if the file is not in this format, or holds an unknown dtype
    :raises OSError: if the file cannot be read
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
    """Check a file with the library `safetensors`.

    :raises ValueError: with the library's message
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
