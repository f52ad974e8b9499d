r"""# Elements with checksums

> The numbers are summed up while they are written, and again while they are read, so the disk is read once.

PyTorch stores each box of a checkpoint as a small archive: a frame of some hundred bytes
with a name and a dtype, and in it the elements, row by row. To look at a file before it
is used would mean to read it twice. So the sums are made on the way:

| | frame | elements |
|---|---|---|
| when a box is written | as PyTorch makes it | in pieces of 4 MiB, each with its CRC-32 |
| when it is read here | not read | the pieces that are needed, whose sums are compared |
| when PyTorch reads it | read | read |

PyTorch wants a tensor of its own for each archive, and a box is a part of a vector. A
copy of it would be as large as the box, and its memory new, which costs more time than
the copying. So PyTorch is given an empty tensor of the same size, whose memory nobody
touches. The moment it writes that one's elements, the real ones are written.
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
from shardbook.state.tensor_file import PIECE, as_tensor, in_pieces

__all__ = ["Archives", "Elements", "take"]
# sidelit: show

# Where the elements of a box begin in a file, their bytes, and the CRC-32 of each piece.
Elements = tuple[int, int, list[int]]


class Archives:
    """A file to which one archive after another is written.

    :param file: holds nothing yet
    """

    def __init__(self, file: BufferedWriter) -> None:
        self.file, self.begin, self.end = file, 0, 0
        # By the place where their archive begins.
        self.elements: dict[int, Elements] = {}
        self.due: Tensor | None = None

    def add(self, values: Tensor) -> None:
        """Write a box.

        :param values: of any shape, on any device
        """
        self.begin, self.due = self.end, values.detach().reshape(-1)
        empty = torch.empty(values.shape, dtype=values.dtype)
        if values.nbytes < SMALL:
            empty.copy_(values)
        stream: Any = self
        with without_sums():
            torch.save(empty, stream)
        if not values.numel():
            self.elements[self.begin] = self.end, 0, []
        assert self.begin in self.elements, "PyTorch writes archives in another way"

    def write(self, data: Any) -> int:
        """Called by PyTorch with each part of an archive, one after another."""
        if self.due is not None and self.are_elements(data, self.due):
            self.write_elements(self.due)
            self.due = None
        else:
            self.write_part(data)
        return len(data)

    def write_elements(self, values: Tensor) -> None:
        """Write the elements of a box piece by piece."""
        sums: list[int] = []
        self.elements[self.begin] = self.end, values.nbytes, sums
        for part, room in in_pieces(values, values.dtype):
            as_tensor(room, values.dtype).copy_(part)
            sums.append(zlib.crc32(room))
            self.write_part(room)

    def write_part(self, data: Any) -> None:
        """Write something as it is."""
        self.file.write(data)
        self.end += len(data)

    def flush(self) -> None:
        """Called by PyTorch after each archive. One flush of the file, at its end, is enough."""

    def are_elements(self, data: Any, values: Tensor) -> bool:
        """Whether PyTorch writes the elements of a box now, and not its frame.

        No part of a frame is long. Of a small box the elements themselves are compared:
        a part of the frame with the same bytes would do as well.
        """
        if len(data) != values.nbytes:
            return False
        if values.nbytes >= SMALL:
            return True
        room = memoryview(bytearray(values.nbytes))
        as_tensor(room, values.dtype).copy_(values)
        return bytes(data) == bytes(room)


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
) -> None:
    """Read a part of a box, and compare the sums of the pieces that it lies in.

    :param box: its dtype and shape
    :param offsets: where the part begins in the box
    :param target: has the shape of the part, and is written
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
        read_into(target.view(-1), file, elements, dtype, first)
        return
    # The part leaves out elements between others.
    around = torch.empty(length, dtype=dtype)
    read_into(around, file, elements, dtype, first)
    target.copy_(around.as_strided(target.shape, strides))


def read_into(
    values: Tensor,
    file: BufferedReader,
    elements: Elements,
    dtype: torch.dtype,
    first: int,
) -> None:
    """Read consecutive elements of a box.

    :param values: of shape `(n,)`, is written
    :param dtype: in which they are stored
    :param first: the number of the first of them
    """
    start, nbytes, sums = elements
    begin, end = (each * dtype.itemsize for each in (first, first + values.numel()))
    room = memoryview(bytearray(min(PIECE, nbytes)))
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
