r"""# Memory-mapped text

> Text files are mapped into memory as one row of tokens, so a rank reads only the
> windows that it needs.

A training text may be larger than the memory of its machine: 500 GB of text, on a
machine with 128 GB. So the text is *mapped* instead of read. The system gives the file
an address, and fetches a page of the file when a program reads at this address. The
page stays in the system's cache, once for all ranks of the machine, until memory is
short. A mapped text belongs to no rank, so it does not count in [what a rank
stores](forecast.py).

Several files form one text, in their order. A window may begin in one file and end in
the next:

| file | its tokens | a window of 4 that begins at token 5 |
|---|---|---|
| `a.txt` | 0 to 6 | 5, 6 |
| `b.txt` | 7 to 11 | 7, 8 |

A token is a byte, unless [a tokenizer](tokens.py) has written the file. If you name a
folder, all of its files are used in the order of their names, so every rank sees the
same row. Files whose names begin with a dot are left out.
"""

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


class MappedText:
    """One row of tokens in several files. A slice of it is a new tensor.

    :param files: the files in their order
    :param dtype: the type of a token in these files
    """

    def __init__(self, files: Sequence[Path], dtype: torch.dtype = torch.uint8) -> None:
        self.dtype = dtype
        # An empty file cannot be mapped.
        self.maps = [mapped(file) for file in files if file.stat().st_size]
        sizes = (len(each) // dtype.itemsize for each in self.maps)
        # The position in the row where each file begins, and the end of the row.
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
            # This view of the map exists for this line only, so the map can be closed.
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
    """Map a file. The map is private, so a write would not change the file."""
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)


def files_of(path: Path) -> list[Path]:
    """The file, or all files of a folder in the order of their names.

    :raises Mistake: if there is no such file or folder, or the folder holds no file
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
    """Compute a short hash by which a text can be recognized.

    The hash uses the length and 64 short pieces of the text, so a large text takes no
    longer than a small one. A change between the pieces that keeps the length is not
    detected.

    >>> fingerprint(torch.arange(100)) == fingerprint(torch.arange(100).flip(0))
    False
    """
    made = hashlib.blake2b(str(len(text)).encode(), digest_size=8)
    for index in range(64):
        start = index * len(text) // 64
        made.update(repr(text[start : start + 64].tolist()).encode())
    return made.hexdigest()
