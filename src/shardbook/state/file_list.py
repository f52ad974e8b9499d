r"""# The list of a checkpoint's files

> `whole.json` lists the files of a checkpoint with their sizes and checksums, so damage
> is detected.

Each rank reports the files that it has written, and rank 0 writes the list:

```json
{"format": 2, "step": 200, "files": {
 "__0_0.distcp": {"size": 53712, "elements": {"0": [704, 48000, [2903341712]], …}},
 "__1_0.distcp": {"size": 53712, "elements": {"0": [704, 48000, [1185940177]], …}},
 ".metadata": {"size": 4208, "sum": 3380118406}}, "sum": 1724098315}
```

In this list, rank 0's file has an [archive](checked_elements.py) that begins at byte 0.
Its elements begin at byte 704, take 48,000 bytes, and have one checksum for each MiB. A
missing or short file is detected before anything is read. The checksums are compared
while the elements are read. The last number is the checksum of the list itself, up to
the comma before it. Lists of format 1 were written without it, and are still read.

A checksum detects bytes that a disk or a copy has lost. It does not protect against a
person who changes a file, because that person can change the list, too.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardbook.state.checkpoint_index import Damaged, reading, schema
from shardbook.state.tensor_file import PIECE

if TYPE_CHECKING:
    from shardbook.state.schema import File, Whole

__all__ = [
    "WHOLE",
    "checksums",
    "contents",
    "differences",
    "flush_folder",
    "sealed",
    "write_list",
]

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
