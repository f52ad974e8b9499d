r"""# Checksums of a checkpoint's elements

> Checksums are computed while the elements are written, and compared while they are
> read, so each file is read once.

PyTorch stores each box of a checkpoint as a small archive. An archive has a frame of
some hundred bytes with a name and a dtype, and inside the frame the elements, row by
row. Checking a file before its use would read the file twice. So the checksums are
computed as the elements pass by:

| | frame | elements |
|---|---|---|
| this book writes a box | as PyTorch makes it | in pieces of 1 MiB, each with its CRC-32 |
| this book reads a part of a box | not read | the pieces that hold the part; their checksums are compared |
| PyTorch reads a box | read | read |

When a box is written, a second thread computes the checksum of a piece while the first
one writes that piece. Reading is so fast that it would not pay to wake a thread.

The elements are written straight from the rank's vector, without PyTorch. If PyTorch
wrote them, it would save the whole storage behind the box, so the box would first have
to be copied into a tensor of its own. Only the frame comes from PyTorch: it saves an
empty tensor of the same shape, and the bytes before and after the elements are kept.
The memory of the empty tensor is never touched. The shapes in a model repeat, so a few
frames serve many boxes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.serialization import get_crc32_options, set_crc32_options

from shardbook.state.checkpoint_index import Damaged
from shardbook.state.tensor_file import PIECE, as_tensor, new_room

__all__ = ["Archives", "Elements", "Pieces", "take"]

# The position of a box's first element in its file, the number of bytes, and the CRC-32
# of each piece.
Elements = tuple[int, int, list[int]]


class Pieces:
    """Memory for two pieces, used in turns, and a thread that computes their checksums.

    Use it as a context. At its end the thread has ended, too.
    """

    def __init__(self) -> None:
        self.rooms = new_room(), new_room()
        self.sums: list[Future[int] | None] = [None, None]
        self.turn = 0

    def __enter__(self) -> Pieces:
        self.thread = ThreadPoolExecutor(max_workers=1)
        return self

    def __exit__(self, *_: object) -> None:
        self.thread.shutdown()

    def room(self, nbytes: int) -> memoryview:
        """The [memory](tensor_file.py#new_room) for the next piece.

        Waits until the checksum of the piece that was there is computed.
        """
        self.turn = 1 - self.turn
        if (before := self.sums[self.turn]) is not None:
            before.result()
        return self.rooms[self.turn][:nbytes]

    def sum(self, piece: memoryview) -> Future[int]:
        """Begin to compute the CRC-32 of this piece."""
        begun = self.thread.submit(zlib.crc32, piece)
        self.sums[self.turn] = begun
        return begun


class Archives:
    """Writes one archive after another into a file.

    :param file: an empty file
    :param pieces: the memory through which the elements go
    """

    def __init__(self, file: BufferedWriter, pieces: Pieces) -> None:
        self.file, self.end, self.pieces = file, 0, pieces
        # The keys are the positions where the archives begin.
        self.elements: dict[int, Elements] = {}
        self.frames: dict[tuple[torch.dtype, torch.Size], Frame] = {}

    def add(self, values: Tensor) -> None:
        """Write one box as an archive.

        :param values: the elements, of any shape, on any device
        """
        kind = values.dtype, values.shape
        if kind not in self.frames:
            self.frames[kind] = Frame(*kind)
        frame, begin = self.frames[kind], self.end
        self.write(frame.before)
        start, flat, sums = self.end, values.detach().reshape(-1), []
        size = PIECE // values.dtype.itemsize
        for part in flat.split(size) if flat.numel() else ():
            room = self.pieces.room(part.nbytes)
            as_tensor(room, values.dtype).copy_(part)
            sums.append(self.pieces.sum(room))
            self.write(room)
        self.elements[begin] = start, values.nbytes, [each.result() for each in sums]
        self.write(frame.after)

    def write(self, data: bytes | memoryview) -> None:
        """Write bytes, and move the end of the file."""
        self.file.write(data)
        self.end += len(data)


class Frame:
    """The bytes that PyTorch writes before and after the elements of a box.

    :param dtype: the dtype of the box
    :param shape: the shape of the box
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
        """Take one part of an archive. PyTorch calls this method for each part in order.

        One part is the elements. Its size tells it from the others if it is large,
        because no other part is. A small tensor is filled with zeros, and no other part
        consists of zeros only.
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
        """Do nothing. PyTorch calls this method after the last part."""


SMALL = 4096


@contextmanager
def without_sums() -> Iterator[None]:
    """A block in which PyTorch adds no checksums to its archives. PyTorch never compares them."""
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
    """Read a part of a box, and compare the checksums of the pieces that hold the part.

    :param box: the dtype and shape of the box
    :param offsets: the index in the box at which the part begins
    :param target: receives the elements; has the shape of the part
    :param room: [memory](tensor_file.py#new_room) for a piece
    :raises Damaged: if the file holds something else than was written
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
    # The elements of the part are not consecutive in the file. So the range from the
    # first to the last one is read, and the part is copied out of it.
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

    :param values: receives the elements, of shape `(n,)`
    :param dtype: the dtype in the file
    :param first: the number of the first element in the box
    """
    start, nbytes, sums = elements
    begin, end = (each * dtype.itemsize for each in (first, first + values.numel()))
    for number in range(begin // PIECE, -(-end // PIECE)):
        at = number * PIECE
        piece = room[: min(PIECE, nbytes - at)]
        file.seek(start + at)
        if file.readinto(piece) != len(piece) or zlib.crc32(piece) != sums[number]:
            raise Damaged(f"{Path(file.name).name} is not what was written")
        low, high = max(begin, at), min(end, at + len(piece))
        part = as_tensor(piece[low - at : high - at], dtype)
        place = (low - begin) // dtype.itemsize
        values[place : place + part.numel()].copy_(part)
