r"""# Sharing results and errors between ranks

> If one rank fails, all ranks raise its error, so no rank waits for the others.

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
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4
from zlib import crc32

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from shardbook.foundations.collectives import world

__all__ = ["gathered", "on_each", "on_first", "refuse_unshared", "told_alike"]

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
