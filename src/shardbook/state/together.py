r"""# One act for all ranks

> What one rank finds out or gets wrong is known to all of them, before any goes on.

Only one rank makes a folder, and each rank writes files of its own. If the folder cannot
be made, or one disk is full, all ranks have to end in the same way. A rank that goes on
alone waits for the others until a time limit, and the reason stands in the log of
another machine.

| | who acts | what all ranks get |
|---|---|---|
| `on_first` | the first rank | its result, or its error |
| `on_each` | each rank | the results of all, or the error of the first rank that has one |

The values travel as pickles, from rank to rank of one program. No file holds them.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from shardbook.foundations.collectives import world
from shardbook.state.checkpoint_index import reason

__all__ = ["gathered", "on_each", "on_first", "told_alike"]

T = TypeVar("T")
# sidelit: show


def on_first(act: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """Let the first rank act for all, which get its result or its error. Collective.

    :param act: called on the first rank only
    :raises OSError: on every rank, if the act does; likewise a `ValueError`, and in the
        place of any other error a `RuntimeError` that names it
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
    """Let each rank act, and give all of them the results in the order of the ranks. Collective.

    :raises OSError: on every rank, as `on_first`, with the number of the rank
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
    """The values of all ranks, on all ranks. Collective."""
    found: list[Any] = [None] * world(None)[1]
    dist.all_gather_object(found, value, group=group)
    return found


# sidelit: depth Errors that other ranks could not read, and those that PyTorch's engine has collected.


def as_told(error: Exception, who: str = "") -> Exception:
    """An error as another rank can raise it.

    An error of another library may not survive the way there, so it goes as words.
    """
    if isinstance(error, UnpicklingError | EOFError):
        return ValueError(f"{who}a part of a file is no tensor: {reason(error)}")
    if isinstance(error, OSError | ValueError):
        return type(error)(f"{who}{error}") if who else error
    return RuntimeError(f"{who}{type(error).__name__}: {error}")


@contextmanager
def told_alike() -> Iterator[None]:
    """In this block an error of one rank is raised on all of them, in its own words."""
    try:
        yield
    except CheckpointException as error:
        for rank, (cause, _) in sorted(error.failures.items()):
            if isinstance(cause, OSError | ValueError):
                raise type(cause)(f"rank {rank}: {cause}") from error
        raise
