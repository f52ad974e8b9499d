r"""# A recording of streams

> A recording lists the kernels, events, waits and allocations of a program, so races
> can be found without a GPU.

A GPU executes the kernels of one stream in order, and the kernels of two streams in any
order. If a wait between two streams is missing, most runs still give the right result,
because the kernels happen to run in a good order. So the results do not show whether a
program waits enough. The program's *calls* show it. This chapter defines a recording of
these calls: kernels, events, waits, and memory that is allocated and freed. [The
recorder](stream_recorder.py) makes a recording from a real run on a CPU, and [the
replay](stream_replay.py) searches it for races.

Streams, events and blocks of memory are numbers. Suppose stream 0 computes into block
7, and stream 2 copies the block:

```
Allocate(7, 0)   Launch(0, {}, {7})   Record(1, 0)   Wait(1, 2)   Launch(2, {7}, {8})
```

Without the `Wait` the two kernels have no order, and the copy may read too early.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from shardbook.check.place import Place

__all__ = [
    *("AWAY", "COMPUTE", "HOST", "NCCL"),
    *("Allocate", "Free", "Launch", "Record", "Trace", "Wait"),
    "lines_of_the_book",
]

# The default stream, on which modules compute.
COMPUTE = 0
# The host, as if it were a stream.
HOST = -1
# The current stream of another device than the model's.
AWAY = -2
# The first stream of a process group.
NCCL = 1000


@dataclass(frozen=True)
class Launch:
    """A kernel is queued on a stream."""

    stream: int
    reads: frozenset[int]
    writes: frozenset[int]
    name: str
    place: Place | None = None


@dataclass(frozen=True)
class Record:
    """An event is recorded after everything that is queued on a stream so far."""

    event: int
    stream: int


@dataclass(frozen=True)
class Wait:
    """Kernels that are queued on the stream from now on run after the event.

    `lines` are the lines of the book that made the stream wait: the innermost one, its caller, and so on.
    A wait by NCCL itself has no lines.
    """

    event: int
    stream: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Allocate:
    """A block is allocated from the memory of a stream."""

    block: int
    stream: int


@dataclass(frozen=True)
class Free:
    """A block is freed into the memory of its stream; `record_stream` has named these other streams."""

    block: int
    streams: frozenset[int]


Trace = list[Launch | Record | Wait | Allocate | Free]


def lines_of_the_book() -> Iterator[str]:
    """The lines of this library in the present stack, the innermost first, such as
    `unit.py:99`. Lines of the checks themselves are left out.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = chapter(frame.f_code.co_filename)
        if name:
            yield f"{name}:{frame.f_lineno}"
        frame = frame.f_back


@cache
def chapter(file: str) -> str | None:
    """The name of a file of this library, or `None` for any other file."""
    path = Path(file)
    ours = path.is_relative_to(BOOK) and not path.is_relative_to(BOOK / "check")
    return path.name if ours else None


BOOK = Path(__file__).parents[1]
