r"""# Finding races in a recording

> Two accesses to the same memory, at least one of them a write, are a race unless a
> wait or a stream orders them.

PyTorch has a checker for races on a CUDA device. For each kernel it knows which other
kernels have surely finished before. This chapter gives the checker a recording instead
of a device. [A recording](#module/a-recording-of-streams) lists the kernels, waits and
allocations of a run, and [the recorder](race_recorder.py) makes it. So one recording
can be checked again and again, even with one wait left out. If there is no race without
a wait, the wait is not needed. In this way the tests show that each wait of the library
is necessary.

```python
with Recorder() as recorder:
    ...                              # shard a model and train it
assert races(recorder.trace) == []   # what CUDA would have to keep in order, and does
assert races(recorder.trace, without=["unit.py:99"])  # this line makes a stream wait, and must
```

Leaving out a wait changes nothing else: the other events stay as recorded.

**Memory** belongs to the stream that was current at its allocation. When the host frees
a tensor, its memory returns to that stream at once, even if the device is still using
it. The next allocation on that stream may get the same memory. Which memory an
allocation gets depends on sizes and on chance, so the replay assumes the worst case.
The first write to a new block has to come after all uses of all blocks that were ever
freed on the same stream.
"""

from __future__ import annotations

import sys
import traceback
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

from shardbook.check.watches import Place
from shardbook.foundations.torch_private import cuda_sanitizer, launch_kernel

__all__ = [
    "AWAY",
    "COMPUTE",
    "HOST",
    "NCCL",
    "Allocate",
    "Free",
    "Launch",
    "Race",
    "Record",
    "Trace",
    "Wait",
    "lines_of_the_book",
    "races",
]


@dataclass(frozen=True)
class Race:
    """Two accesses to the same memory without an order between them.

    :param later: the access that was queued later
    :param earlier: the access that was queued earlier
    :param place: the line of the program that made the later access
    """

    later: str
    earlier: str
    place: Place | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.later}\n    is not ordered after\n    {self.earlier}"


def races(trace: Trace, without: Collection[str] = ()) -> list[Race]:
    """Find the races in a recording, each pair of accesses once.

    :param trace: the recording
    :param without: lines such as `unit.py:99` whose waits are left out
    """
    # The checker would record the stack of each launch. During a replay this is always
    # the stack of this function.
    with patch.object(traceback.StackSummary, "extract", lambda *_, **__: []):
        return list(dict.fromkeys(errors(trace, {*without})))


def errors(trace: Trace, without: set[str]) -> Iterator[Race]:
    """Pass the events to the checker, one after the other."""
    checker, memory = cuda_sanitizer.EventHandler(), Memory()
    for event in trace:
        match event:
            case Launch(stream, reads, writes, name, place):
                aliases: dict[int, list[str]] = {block: [] for block in reads | writes}
                for error in launch_kernel(
                    checker, stream, {*reads - writes}, {*writes}, set(), name, aliases
                ):
                    found: Any = error
                    now, then = found.current_access, found.previous_access
                    yield Race(told(now), told(then), place)
            case Record(number, stream):
                checker.syncs.create_event(number)
                checker.syncs.record_state(number, stream)
            case Wait(number, stream, lines) if without.isdisjoint(lines):
                checker.syncs.stream_wait_for_event(stream, number)
            case Allocate(block, stream):
                checker.tensors_accessed.ensure_tensor_does_not_exist(block)
                checker.tensors_accessed.create_tensor(block, None)
                memory.hand_out(checker, block, stream)
            case Free(block, streams):
                memory.take_back(checker, block, streams)
                checker.tensors_accessed.delete_tensor(block)


class Memory:
    """The last uses of the freed blocks of each stream.

    The checker forgets a block when it is freed. This class keeps the block's last uses
    with its stream. The next block of that stream starts with these uses as reads, and
    its first write has to come after them. A stream runs in order, so of several uses
    on one stream only the last is kept.
    """

    def __init__(self) -> None:
        self.home: dict[int, int] = {}
        self.used: dict[int, dict[int, Any]] = defaultdict(dict)

    def hand_out(self, checker: Any, block: int, stream: int) -> None:
        """Allocate a block on a stream."""
        self.home[block] = stream
        for access in self.used[stream].values():
            checker.tensors_accessed.add_read(block, access)

    def take_back(self, checker: Any, block: int, recorded: frozenset[int]) -> None:
        """Free a block. The allocator waits for the streams in `recorded`."""
        checker.tensors_accessed.ensure_tensor_exists(block)
        uses = [
            *checker.tensors_accessed.get_reads(block),
            checker.tensors_accessed.get_write(block),
        ]
        last = self.used[self.home.pop(block, COMPUTE)]
        for use in uses:
            if use is None or any(
                checker.syncs.is_ordered_after(stream, use.seq_num, use.stream)
                for stream in recorded
            ):
                continue
            if use.stream not in last or last[use.stream].seq_num < use.seq_num:
                last[use.stream] = use


def told(access: Any) -> str:
    """Describe an access."""
    kind = "read" if access.type is cuda_sanitizer.AccessType.READ else "write"
    names = {COMPUTE: "the compute stream", HOST: "the host"}
    stream = access.stream
    where = "NCCL's stream" if stream >= NCCL else names.get(stream, f"stream {stream}")
    return f"{kind} on {where} by {access.operator}"


# ## A recording of streams
#
# > A recording lists the kernels, events, waits and allocations of a program, so races
# > can be found without a GPU.
#
# A GPU executes the kernels of one stream in order, and the kernels of two streams in any
# order. If a wait between two streams is missing, most runs still give the right result,
# because the kernels happen to run in a good order. So the results do not show whether a
# program waits enough. The program's *calls* show it. A recording is the list of these
# calls: kernels, events, waits, and memory that is allocated and freed. [The
# recorder](race_recorder.py) makes a recording from a real run on a CPU, and [the
# replay](race_replay.py) searches it for races.
#
# Streams, events and blocks of memory are numbers. Suppose stream 0 computes into block
# 7, and stream 2 copies the block:
#
# ```
# Allocate(7, 0)   Launch(0, {}, {7})   Record(1, 0)   Wait(1, 2)   Launch(2, {7}, {8})
# ```
#
# Without the `Wait` the two kernels have no order, and the copy may read too early.


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
