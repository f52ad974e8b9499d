r"""# A recording of streams

> What a program asks of a device, as a list of events that can be judged without one.

A GPU runs what is queued on one stream in order, and what is queued on two streams in
any order. Whether a program waits enough cannot be seen from its results: most runs of
a race end well. It can be seen from what the program *asked for*. This chapter defines a
recording of that: kernels, events, waits, and memory that is taken and given back.
[The recorder](stream_recorder.py) makes one from a real run on a CPU, [the
replay](stream_replay.py) judges it.

Streams, events and blocks of memory are numbers. Take a copy on stream 2 of what stream
0 has computed into block 7:

```
Allocate(7, 0)   Launch(0, {}, {7})   Record(1, 0)   Wait(1, 2)   Launch(2, {7}, {8})
```

Without the wait nothing orders the two kernels, and the copy may read too early.
"""

# sidelit: hide
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
# sidelit: show

# The stream that is current when nobody chose another.
COMPUTE = 0
# The thread itself.
HOST = -1
# The current stream of the current device, which is not the model's.
AWAY = -2
# The first stream of a process group.
NCCL = 1000


@dataclass(frozen=True)
class Launch:
    """A kernel is queued."""

    stream: int
    reads: frozenset[int]
    writes: frozenset[int]
    name: str
    place: Place | None = None


@dataclass(frozen=True)
class Record:
    """An event remembers what is queued on a stream so far."""

    event: int
    stream: int


@dataclass(frozen=True)
class Wait:
    """What is queued on the stream from now on comes after the event.

    `lines` are the lines of the book that asked for it: the innermost one, the one that called it, and so on.
    What NCCL asks for by itself has none.
    """

    event: int
    stream: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Allocate:
    """A block is taken from the memory of a stream."""

    block: int
    stream: int


@dataclass(frozen=True)
class Free:
    """A block goes back to where it came from; `record_stream` named these streams."""

    block: int
    streams: frozenset[int]


Trace = list[Launch | Record | Wait | Allocate | Free]


def lines_of_the_book() -> Iterator[str]:
    """The lines of this library that are being carried out, the innermost first, such as
    `unit.py:99`. Those of the checks themselves are left out.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = chapter(frame.f_code.co_filename)
        if name:
            yield f"{name}:{frame.f_lineno}"
        frame = frame.f_back


@cache
def chapter(file: str) -> str | None:
    """The name of a file of the library."""
    path = Path(file)
    ours = path.is_relative_to(BOOK) and not path.is_relative_to(BOOK / "check")
    return path.name if ours else None


BOOK = Path(__file__).parents[1]
