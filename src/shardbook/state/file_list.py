r"""# The list of a checkpoint's files

> `whole.json` lists the files of a checkpoint with their sizes and checksums, so damage
> is detected.

Each rank reports the files that it has written, and rank 0 writes the list:

```json
{"format": 1, "step": 200, "files": {
 "__0_0.distcp": {"size": 53712, "elements": {"0": [704, 48000, [2903341712]], …}},
 "__1_0.distcp": {"size": 53712, "elements": {"0": [704, 48000, [1185940177]], …}},
 ".metadata": {"size": 4208, "sum": 3380118406}}}
```

In this list, rank 0's file has an [archive](checked_elements.py) that begins at byte 0.
Its elements begin at byte 704, take 48,000 bytes, and have one checksum for each MiB. A
missing or short file is detected before anything is read. The checksums are compared
while the elements are read.

A checksum detects bytes that a disk or a copy has lost. It does not protect against a
person who changes a file, because that person can change the list, too.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shardbook.state.checked_elements import Elements
from shardbook.state.checkpoint_index import Damaged

__all__ = [
    "WHOLE",
    "checksums",
    "contents",
    "differences",
    "elements_in",
    "flush_folder",
    "write_list",
]

WHOLE = "whole.json"
FORMAT = 1


def write_list(folder: Path, step: int, files: dict[str, Any]) -> None:
    """Write the list into a checkpoint.

    :param step: how many steps the optimizer had taken
    :param files: the sizes and [checksums](#checksums) of the files
    """
    said = {"format": FORMAT, "step": step, "files": files}
    with (folder / WHOLE).open("w") as file:
        file.write(json.dumps(said))
        file.flush()
        os.fsync(file.fileno())


def checksums(files: list[Path]) -> dict[str, Any]:
    """Compute the size and the CRC-32 of each file."""
    return {
        path.name: {"size": path.stat().st_size, "sum": zlib.crc32(path.read_bytes())}
        for path in files
    }


def elements_in(folder: Path) -> dict[str, dict[int, Elements]] | None:
    """Read from the list where the elements of each archive are.

    :returns: for each file a dictionary, whose keys are the positions where archives
        begin; `None` if there is no list
    """
    if not (folder / WHOLE).exists():
        return None
    return {
        name: {int(begin): where for begin, where in said.get("elements", {}).items()}
        for name, said in contents(folder)["files"].items()
    }


def flush_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# sidelit: depth Files that are not what they were.


def contents(folder: Path) -> dict[str, Any]:
    """Read the list of a checkpoint's files.

    :raises Damaged: if the list cannot be read, or a later version wrote it
    """
    try:
        said = json.loads((folder / WHOLE).read_text("utf-8"))
        known = {"format", "step", "files"} <= said.keys()
    except (OSError, ValueError, AttributeError) as error:
        raise Damaged(
            f"{folder} is damaged: {WHOLE} cannot be read: {error}"
        ) from error
    if known and said["format"] > FORMAT:
        raise Damaged(
            f"{folder} has format {said['format']}, and this version reads up to "
            f"{FORMAT}; install the version that has written it"
        )
    if not known:
        raise Damaged(f"{folder} is damaged: {WHOLE} does not say what there is")
    found: dict[str, Any] = said
    return found


def differences(folder: Path, said: dict[str, Any]) -> Iterator[str]:
    """Describe the files that are missing or have a wrong size. The elements are not read."""
    for name, wanted in said.items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif path.stat().st_size != wanted["size"]:
            yield f"{name} has {path.stat().st_size} bytes of {wanted['size']}"
        elif "sum" in wanted and checksums([path])[name] != wanted:
            yield f"{name} is not what was written"
