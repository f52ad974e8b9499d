r"""# Failed ranks and damaged files

> If one rank fails, all ranks raise its error. If a file of a checkpoint is damaged,
> its checksum shows the damage.

Rank 3 cannot write its file, because the disk of its machine is full. If rank 3 alone
raised an error, the other ranks would wait for it until a time limit. Their logs would
report the time limit, and the reason would be in the log of another machine. So all
ranks get the result or the error before any of them continues:

| function | who acts | what all ranks get |
|---|---|---|
| `on_first` | rank 0 | rank 0's result or error |
| `on_each` | each rank | the results of all ranks, or the error of the first rank that has one |

The results and errors are sent as pickles between the ranks of one program. No file
contains them.

A file can also be damaged after all ranks have written their parts without an error.
So a checkpoint has [a list of its files](#module/the-list-of-a-checkpoints). It also
has [a checksum](#module/checksums-of-a-checkpoints-elements) for each piece of the
elements, which is compared when the piece is read.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.serialization import get_crc32_options, set_crc32_options

from shardbook.foundations.collectives import world
from shardbook.state.file_formats import Damaged, reading, schema
from shardbook.state.tensor_file import PIECE, as_tensor, new_room

if TYPE_CHECKING:
    from shardbook.state.schema import File, Whole

__all__ = [
    "WHOLE",
    "Archives",
    "Elements",
    "Pieces",
    "checksums",
    "contents",
    "differences",
    "flush_folder",
    "gathered",
    "on_each",
    "on_first",
    "refuse_unshared",
    "sealed",
    "take",
    "told_alike",
    "write_list",
]

# sidelit: hide
T = TypeVar("T")
# sidelit: show


def on_first(act: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Call a function on rank 0, and give its result to all ranks. Collective.

    :param act: called on rank 0 only
    :raises OSError: on every rank, if `act` raises one; the same holds for a
        `ValueError`; any other error becomes a `RuntimeError` that names it
    """
    said: list[Any] = [None, None]
    if world(None)[0] == 0:
        try:
            said[0] = act()
        except Exception as error:
            said[1] = as_told(error)
    dist.broadcast_object_list(said, group=group)
    if said[1] is not None:
        raise said[1]
    result: T = said[0]
    return result


def on_each(act: Callable[[], T], group: dist.ProcessGroup | None = None) -> list[T]:
    """Call a function on each rank, and give all results to all ranks, in rank order. Collective.

    :raises OSError: on every rank, as `on_first` does, with the number of the rank
    """
    result, wrong = None, None
    try:
        result = act()
    except Exception as error:
        wrong = as_told(error, f"rank {world(None)[0]}: ")
    found = gathered((result, wrong), group)
    for _, told in found:
        if told is not None:
            raise told
    return [value for value, _ in found]  # type: ignore[misc]


def gathered(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Give the values of all ranks to all ranks. Collective."""
    found: list[Any] = [None] * world(None)[1]
    dist.all_gather_object(found, value, group=group)
    return found


def refuse_unshared(
    folder: Path, group: dist.ProcessGroup | None = None, *, file: str | None = None
) -> None:
    """Refuse a folder of which some ranks see another one than rank 0 does. Collective.

    Where each machine has a disk of its own, each rank would write its files into its
    own folder, and no rank could load them. So all ranks look for a file of rank 0.

    :param folder: a folder that exists on rank 0
    :param file: the name of a file in it; `None` makes a file for this moment
    :raises OSError: on every rank, naming the ranks that do not see the folder
    """

    def name() -> str:
        mark = f".{uuid4().hex}.rank0"
        if file is None:
            (folder / mark).touch()
        return file or mark

    known = folder / on_first(name, group)
    seen = gathered(content(known), group)
    if file is None and world(None)[0] == 0:
        known.unlink(missing_ok=True)
    blind = [str(rank) for rank, sees in enumerate(seen) if sees != seen[0]]
    if blind:
        raise OSError(
            f"{folder} is another folder on rank {', '.join(blind[:8])} than on rank 0; "
            "choose a folder on a disk that all ranks share"
        )


def content(file: Path) -> int | None:
    """A checksum of a file; `None` if it cannot be read."""
    try:
        # A pipe of this name would never end.
        return crc32(file.read_bytes()) if file.is_file() else None
    except OSError:
        return None


# sidelit: depth Errors that other ranks could not read, and those that PyTorch's engine has collected.


def as_told(error: Exception, who: str = "") -> Exception:
    """Convert an error into one that another rank can raise.

    An error of another library may not survive being pickled, so its text is sent.
    """
    if isinstance(error, OSError | ValueError):
        return type(error)(f"{who}{error}") if who else error
    return RuntimeError(f"{who}{type(error).__name__}: {error}")


@contextmanager
def told_alike() -> Iterator[None]:
    """A block in which PyTorch's error about several ranks becomes the error of one rank."""
    try:
        yield
    except CheckpointException as error:
        for rank, (cause, _) in sorted(error.failures.items()):
            if isinstance(cause, OSError | ValueError):
                raise type(cause)(f"rank {rank}: {cause}") from error
        raise


# sidelit: core


# ## The list of a checkpoint's files
#
# > `whole.json` lists the files of a checkpoint with their sizes and checksums, so damage
# > is detected.
#
# Each rank reports the files that it has written, and rank 0 writes the list:
#
# ```json
# {"format": 2, "step": 200, "files": {
#  "__0_0.distcp": {"size": 53712, "elements": {"0": [704, 48000, [2903341712]], …}},
#  "__1_0.distcp": {"size": 53712, "elements": {"0": [704, 48000, [1185940177]], …}},
#  ".metadata": {"size": 4208, "sum": 3380118406}}, "sum": 1724098315}
# ```
#
# In this list, rank 0's file has an
# [archive](together.py#module/checksums-of-a-checkpoints-elements) that begins at byte
# 0. Its elements begin at byte 704, take 48,000 bytes, and have one checksum for each
# MiB. A missing or short file is detected before anything is read. The checksums are
# compared while the elements are read. The last number is the checksum of the list
# itself, up to the comma before it. Lists of format 1 were written without it, and are
# still read.
#
# A checksum detects bytes that a disk or a copy has lost. It does not protect against a
# person who changes a file, because that person can change the list, too.


WHOLE = "whole.json"
FORMAT = 2


def write_list(folder: Path, step: int, files: dict[str, Any]) -> None:
    """Write the list into a checkpoint.

    :param step: how many steps the optimizer had taken
    :param files: the sizes and [checksums](#checksums) of the files
    """
    said = {"format": FORMAT, "step": step, "files": files}
    with (folder / WHOLE).open("wb") as file:
        file.write(sealed(said))
        file.flush()
        os.fsync(file.fileno())


def sealed(said: dict[str, Any]) -> bytes:
    """The text of a list, with its own checksum as the last entry."""
    text = json.dumps(said).encode().removesuffix(b"}")
    return text + b', "sum": %d}' % zlib.crc32(text)


def checksums(files: list[Path]) -> dict[str, Any]:
    """Compute the size and the CRC-32 of each file."""
    return {
        path.name: {"size": path.stat().st_size, "sum": zlib.crc32(path.read_bytes())}
        for path in files
    }


def flush_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# sidelit: depth Files that are not what they were.


def contents(folder: Path) -> Whole:
    """Read the list of a checkpoint's files.

    :raises Damaged: if the list cannot be read, or has changed
    :raises ValueError: if a later version wrote it
    """
    known = schema()
    try:
        data = (folder / WHOLE).read_bytes()
    except OSError as error:
        raise Damaged(f"{WHOLE} cannot be read: {error.strerror}") from error
    with reading(f"{WHOLE} is not what was written"):
        # A list of format 1 ends with the braces of its last file.
        end = re.search(rb', "sum": (\d+)\}\Z', data)
        if end is not None and int(end[1]) != zlib.crc32(data[: end.start()]):
            raise ValueError("its checksum differs")
        version = known.decoded(data, known.Version).format
        if version > 1 and end is None:
            raise ValueError("it has no checksum")
        if version <= FORMAT:
            said: Whole = known.decoded(data, known.Whole)
            return said
    raise ValueError(
        f"{folder} has format {version}, and this version reads up to {FORMAT}; install "
        "the version that has written it"
    )


def differences(
    folder: Path, said: dict[str, File], *, elements: bool
) -> Iterator[str]:
    """Describe the files that are missing, have a wrong size, or hold something else.

    :param elements: whether to compare the checksums of the elements, too
    """
    for name, wanted in said.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            yield f"{name} is missing"
        elif path.stat().st_size != wanted.size:
            yield f"{name} has {path.stat().st_size} bytes of {wanted.size}"
        elif any(
            zlib.crc32(piece) != sum for piece, sum in summed(path, wanted, elements)
        ):
            yield f"{name} is not what was written"


def summed(path: Path, wanted: File, elements: bool) -> Iterator[tuple[bytes, int]]:
    """Read a file in pieces, each with the checksum that it should have."""
    with path.open("rb") as file:
        if wanted.sum is not None:
            yield file.read(), wanted.sum
        for start, nbytes, sums in wanted.elements.values() if elements else ():
            for at, sum in zip(range(0, nbytes, PIECE), sums, strict=True):
                file.seek(start + at)
                yield file.read(min(PIECE, nbytes - at)), sum


# sidelit: core


# ## Checksums of a checkpoint's elements
#
# > Checksums are computed while the elements are written, and compared while they are
# > read, so each file is read once.
#
# PyTorch stores each box of a checkpoint as a small archive. An archive has a frame of
# some hundred bytes with a name and a dtype, and inside the frame the elements, row by
# row. Checking a file before its use would read the file twice. So the checksums are
# computed as the elements pass by:
#
# | | frame | elements |
# |---|---|---|
# | this book writes a box | as PyTorch makes it | in pieces of 1 MiB, each with its CRC-32 |
# | this book reads a part of a box | not read | the pieces that hold the part; their checksums are compared |
# | PyTorch reads a box | read | read |
#
# When a box is written, a second thread computes the checksum of a piece while the first
# one writes that piece. Reading is so fast that it would not pay to wake a thread.
#
# The elements are written straight from the rank's vector, without PyTorch. If PyTorch
# wrote them, it would save the whole storage behind the box, so the box would first have
# to be copied into a tensor of its own. Only the frame comes from PyTorch: it saves an
# empty tensor of the same shape, and the bytes before and after the elements are kept.
# The memory of the empty tensor is never touched. The shapes in a model repeat, so a few
# frames serve many boxes.


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
