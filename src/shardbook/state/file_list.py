r"""# The list of a checkpoint's files

> A checkpoint names its files, with their sizes and checksums, so that a damaged one is known.

Each rank says what it has written, and the first rank writes the list:

```json
{"format": 1, "step": 200, "files": {
 "__0_0.distcp": {"size": 53712, "elements": {"0": [704, 48000, [2903341712]], …}},
 "__1_0.distcp": {"size": 53712, "elements": {"0": [704, 48000, [1185940177]], …}},
 ".metadata": {"size": 4208, "sum": 3380118406}}}
```

Of each [archive](checked_elements.py), by the place where it begins, the list says where
its elements are, how many bytes, and their sums. A file that is missing or too short is
found before anything is read. The sums are compared while the elements are read.

A checksum finds what a disk or a copy has lost. It is no seal: who changes a file can
change the list, too.
"""

# sidelit: hide
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
    "checksums",
    "contents",
    "differences",
    "elements_in",
    "flush_folder",
    "write_list",
]
# sidelit: show

WHOLE = "whole.json"
FORMAT = 1


def write_list(folder: Path, step: int, files: dict[str, Any]) -> None:
    """Write the list into a checkpoint.

    :param step: how many steps the optimizer had taken
    :param files: the [sums](#checksums) of its files
    """
    said = {"format": FORMAT, "step": step, "files": files}
    with (folder / WHOLE).open("w") as file:
        json.dump(said, file)
        file.flush()
        os.fsync(file.fileno())


def checksums(files: list[Path]) -> dict[str, Any]:
    """The size and the CRC-32 of each file."""
    return {
        path.name: {"size": path.stat().st_size, "sum": zlib.crc32(path.read_bytes())}
        for path in files
    }


def elements_in(folder: Path) -> dict[str, dict[int, Elements]] | None:
    """Where in each file the elements of its archives are.

    :returns: by file and by the place where an archive begins; `None` if there is no list
    """
    if not (folder / WHOLE).exists():
        return None
    return {
        name: {int(begin): where for begin, where in said.get("elements", {}).items()}
        for name, said in contents(folder)["files"].items()
    }


def flush_folder(folder: Path) -> None:
    """Let the names in a folder reach their disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# sidelit: depth Files that are not what they were.


def contents(folder: Path) -> dict[str, Any]:
    """What a checkpoint says that it holds.

    :raises Damaged: if it does not, or was written by a later version
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
    """What is wrong with files, in words, as far as it is seen without their elements."""
    for name, wanted in said.items():
        path = folder / name
        if not path.is_file():
            yield f"{name} is missing"
        elif path.stat().st_size != wanted["size"]:
            yield f"{name} has {path.stat().st_size} bytes of {wanted['size']}"
        elif "sum" in wanted and checksums([path])[name] != wanted:
            yield f"{name} is not what was written"
