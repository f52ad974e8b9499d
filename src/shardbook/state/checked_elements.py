r"""# Elements with checksums

> The numbers are summed up while they are written, and again while they are read, so the disk is read once.

PyTorch stores each box of a checkpoint as a small archive: a frame of some hundred bytes
with a name and a dtype, and in it the elements, row by row. To look at a file before it
is used would mean to read it twice. So the sums are made on the way:

| | frame | elements |
|---|---|---|
| when a box is written | as PyTorch makes it | in pieces of 1 MiB, each with its CRC-32 |
| when it is read here | not read | the pieces that are needed, whose sums are compared |
| when PyTorch reads it | read | read |

PyTorch wants a tensor of its own for each archive, and a box is a part of a vector. A
copy of it would be as large as the box, and its memory new, which costs more time than
the copying. So PyTorch is given an empty tensor of the same shape, whose memory nobody
touches, and what it writes before and after the elements is kept. A model repeats its
shapes, so that few frames serve many boxes.
"""

# sidelit: hide
from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import get_crc32_options, set_crc32_options

from shardbook.state.checkpoint_index import Changed
from shardbook.state.tensor_file import PIECE, as_tensor, in_pieces, new_room

__all__ = ["Archives", "Elements", "take"]
# sidelit: show

# Where the elements of a box begin in a file, their bytes, and the CRC-32 of each piece.
Elements = tuple[int, int, list[int]]


class Archives:
    """A file to which one archive after another is written.

    :param file: holds nothing yet
    """

    def __init__(self, file: BufferedWriter) -> None:
        self.file, self.end, self.room = file, 0, new_room()
        # By the place where their archive begins.
        self.elements: dict[int, Elements] = {}
        self.frames: dict[tuple[torch.dtype, torch.Size], Frame] = {}

    def add(self, values: Tensor) -> None:
        """Write a box.

        :param values: of any shape, on any device
        """
        kind = values.dtype, values.shape
        if kind not in self.frames:
            self.frames[kind] = Frame(*kind)
        frame, begin = self.frames[kind], self.end
        self.write(frame.before)
        sums: list[int] = []
        self.elements[begin] = self.end, values.nbytes, sums
        flat = values.detach().reshape(-1)
        for part, room in in_pieces(flat, values.dtype, self.room):
            as_tensor(room, values.dtype).copy_(part)
            sums.append(zlib.crc32(room))
            self.write(room)
        self.write(frame.after)

    def write(self, data: bytes | memoryview) -> None:
        """Write something as it is."""
        self.file.write(data)
        self.end += len(data)


class Frame:
    """What PyTorch writes around the elements of a box.

    :param dtype: of the box
    :param shape: of the box
    """

    def __init__(self, dtype: torch.dtype, shape: torch.Size) -> None:
        empty = torch.empty(shape, dtype=dtype)
        if empty.nbytes < SMALL:
            empty.zero_()
        self.nbytes = empty.nbytes
        self.before, self.after, self.found = b"", b"", not empty.nbytes
        stream: Any = self
        with without_sums():
            torch.save(empty, stream)
        assert self.found, "PyTorch writes archives in another way"

    def write(self, data: memoryview) -> int:
        """Called by PyTorch with each part of an archive, one after another.

        The elements are one part. No other one is long, and none has only zeros.
        """
        size = len(data)
        if not self.found and size == self.nbytes:
            self.found = size >= SMALL or bytes(data) == bytes(size)
            if self.found:
                return size
        if self.found:
            self.after += bytes(data)
        else:
            self.before += bytes(data)
        return size

    def flush(self) -> None:
        """Called by PyTorch after the last part."""


SMALL = 4096


@contextmanager
def without_sums() -> Iterator[None]:
    """In this block PyTorch adds no sums to its archives. It never compares them."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def take(
    file: BufferedReader,
    elements: Elements,
    box: tuple[torch.dtype, Sequence[int]],
    offsets: Sequence[int],
    target: Tensor,
    room: memoryview,
) -> None:
    """Read a part of a box, and compare the sums of the pieces that it lies in.

    :param box: its dtype and shape
    :param offsets: where the part begins in the box
    :param target: has the shape of the part, and is written
    :param room: [memory](tensor_file.py#new_room) for a piece
    :raises Changed: if the file holds something else than was written
    """
    dtype, sizes = box
    if not target.numel():
        return
    strides = torch.empty(sizes, device="meta").stride()
    first = sum(at * step for at, step in zip(offsets, strides, strict=True))
    ends = zip(target.shape, strides, strict=True)
    length = 1 + sum((size - 1) * step for size, step in ends)
    if length == target.numel() and target.is_contiguous():
        read_into(target.view(-1), file, elements, dtype, first, room)
        return
    # The part leaves out elements between others.
    around = torch.empty(length, dtype=dtype)
    read_into(around, file, elements, dtype, first, room)
    target.copy_(around.as_strided(target.shape, strides))


def read_into(
    values: Tensor,
    file: BufferedReader,
    elements: Elements,
    dtype: torch.dtype,
    first: int,
    room: memoryview,
) -> None:
    """Read consecutive elements of a box.

    :param values: of shape `(n,)`, is written
    :param dtype: in which they are stored
    :param first: the number of the first of them
    """
    start, nbytes, sums = elements
    begin, end = (each * dtype.itemsize for each in (first, first + values.numel()))
    for number in range(begin // PIECE, -(-end // PIECE)):
        at = number * PIECE
        piece = room[: min(PIECE, nbytes - at)]
        file.seek(start + at)
        if file.readinto(piece) != len(piece) or zlib.crc32(piece) != sums[number]:
            raise Changed(f"{Path(file.name).name} is not what was written")
        low, high = max(begin, at), min(end, at + len(piece))
        part = as_tensor(piece[low - at : high - at], dtype)
        place = (low - begin) // dtype.itemsize
        values[place : place + part.numel()].copy_(part)
