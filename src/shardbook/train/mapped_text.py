r"""# Text in files

> Files become one long row of tokens, and a rank reads only the windows that it needs.

A training text may be larger than the memory of its machine. So it is not read but
*mapped*: the system gives the file an address, and fetches a page of it when a program
reads there. What was fetched lies in the system's cache, once for all ranks of a
machine, and the system drops it again when memory is short. None of it belongs to a
rank, and none of it counts in [what a rank stores](forecast.py).

Several files are one text, laid end to end. A window may begin in one file and end in
the next:

| file | its tokens | a window of 4 that begins at token 5 |
|---|---|---|
| `a.txt` | 0 to 6 | 5, 6 |
| `b.txt` | 7 to 11 | 7, 8 |

A byte is a token, unless [a tokenizer](tokens.py) has written other ones. Of a folder
all files are read, in the order of their names, so every rank sees the same row. A name
that begins with a dot is left out.

:notation $T$: `context`, the number of tokens in a window
"""

# sidelit: hide
from __future__ import annotations

import hashlib
import mmap
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from shardbook.command import Mistake
from shardbook.models.corpus import Text

__all__ = ["MappedText", "files_of", "fingerprint"]
# sidelit: show


class MappedText:
    """One row of tokens in several files. A slice of it is a tensor, a copy of what the files say.

    :param files: the files in their order
    :param dtype: the type of a token in these files
    """

    def __init__(self, files: Sequence[Path], dtype: torch.dtype = torch.uint8) -> None:
        self.dtype = dtype
        # An empty file has no tokens, and no address.
        self.maps = [mapped(file) for file in files if file.stat().st_size]
        sizes = (len(each) // dtype.itemsize for each in self.maps)
        # Where each file begins in the row, and where the row ends.
        self.starts = [0, *accumulate(sizes)]
        self.first, self.last = 0, self.starts[-1]

    def __len__(self) -> int:
        return self.last - self.first

    def __getitem__(self, where: slice) -> Tensor:
        start, stop, _ = where.indices(len(self))
        start, stop = start + self.first, stop + self.first
        result = torch.empty(max(0, stop - start), dtype=self.dtype)
        at = start
        while at < stop:
            index = bisect_right(self.starts, at) - 1
            end = min(stop, self.starts[index + 1])
            # The tensor that looks at the map lives for this line only.
            result[at - start : end - start] = torch.frombuffer(
                self.maps[index],
                dtype=self.dtype,
                count=end - at,
                offset=(at - self.starts[index]) * self.dtype.itemsize,
            )
            at = end
        return result

    def part(self, start: int, stop: int) -> MappedText:
        """The tokens from `start` to `stop`, still in their files."""
        result = object.__new__(MappedText)
        result.__dict__.update(self.__dict__)
        result.first, result.last = self.first + start, self.first + stop
        return result


def mapped(file: Path) -> mmap.mmap:
    """The bytes of a file at an address. A write would reach a private copy, and there is none."""
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)


def files_of(path: Path) -> list[Path]:
    """The file, or all files of the folder in the order of their names.

    :raises Mistake: if there are none
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise Mistake(f"--data {path}: there is no such file or folder")
    found = sorted(each for each in path.rglob("*") if each.is_file())
    files = [
        each
        for each in found
        if not any(part.startswith(".") for part in each.relative_to(path).parts)
    ]
    if not files:
        raise Mistake(f"--data {path}: the folder holds no file")
    return files


def fingerprint(text: Text) -> str:
    """A few letters that another text does not share.

    They are made from the length and from 64 short pieces, so that a text of any size
    takes no time. A change between the pieces that keeps the length is not seen.

    >>> fingerprint(torch.arange(100)) == fingerprint(torch.arange(100).flip(0))
    False
    """
    made = hashlib.blake2b(str(len(text)).encode(), digest_size=8)
    for index in range(64):
        start = index * len(text) // 64
        made.update(repr(text[start : start + 64].tolist()).encode())
    return made.hexdigest()
