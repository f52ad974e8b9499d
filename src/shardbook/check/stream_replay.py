r"""# The judge of a recording

> Of any two accesses to the same memory, one of them a write, something must order the two.

PyTorch has a checker for CUDA that watches a real device: for each kernel it knows which
others are sure to have ended before. This chapter gives that checker [a
recording](stream_events.py) instead of a device. So one recording can be judged again and again, also
with one wait left out: a wait without which there is still no race is not needed.

```python
with Recorder() as recorder:
    ...                              # shard a model and train it
assert races(recorder.trace) == []   # what CUDA would have to keep in order, and does
assert races(recorder.trace, without=["unit.py:99"])  # this line makes a stream wait, and must
```

A wait that is left out is left out alone: what the program did afterwards, it did as
recorded.

**Memory** belongs to the stream that was current when it was taken. When a tensor dies,
its memory goes back to that stream at the moment at which the *host* says so, whatever
the device is doing, and the next one to take memory there may get it. Which one gets what
depends on sizes and on chance. So the replay takes the worst of every case: who first
writes to new memory must come after all uses of all memory that was ever given back to
the same stream.
"""

# sidelit: hide
from __future__ import annotations

import traceback
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from shardbook.check.place import Place
from shardbook.check.stream_events import (
    COMPUTE,
    HOST,
    NCCL,
    Allocate,
    Free,
    Launch,
    Record,
    Trace,
    Wait,
)
from shardbook.foundations.torch_private import cuda_sanitizer, launch_kernel

__all__ = ["Race", "races"]
# sidelit: show


@dataclass(frozen=True)
class Race:
    """Two accesses to the same memory that nothing orders; the first came later.

    :param place: the line of the program that made the later one
    """

    later: str
    earlier: str
    place: Place | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"{self.later}\n    is not ordered after\n    {self.earlier}"


def races(trace: Trace, without: Collection[str] = ()) -> list[Race]:
    """What the checker finds in a recording, each pair of accesses once.

    :param without: lines such as `unit.py:99`; what they asked to wait for is not
        waited for
    """
    # The checker notes the stack of each launch. Here that is the stack of this
    # function, and says nothing.
    with patch.object(traceback.StackSummary, "extract", lambda *_, **__: []):
        return list(dict.fromkeys(errors(trace, {*without})))


def errors(trace: Trace, without: set[str]) -> Iterator[Race]:
    """Hand the events to the checker, one after the other."""
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
    """The memory of each stream, as far as the checker must know it: who last used what was given back.

    The checker forgets a block that is freed. Here its last uses stay with the stream it
    came from, and the next block of that stream starts with them, as reads that its first
    write must come after. A stream runs in order, so of the uses on one stream the last
    stands for all.
    """

    def __init__(self) -> None:
        self.home: dict[int, int] = {}
        self.used: dict[int, dict[int, Any]] = defaultdict(dict)

    def hand_out(self, checker: Any, block: int, stream: int) -> None:
        """A stream takes a block."""
        self.home[block] = stream
        for access in self.used[stream].values():
            checker.tensors_accessed.add_read(block, access)

    def take_back(self, checker: Any, block: int, recorded: frozenset[int]) -> None:
        """A block goes back, and the allocator waits for these streams."""
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
    """An access in words."""
    kind = "read" if access.type is cuda_sanitizer.AccessType.READ else "write"
    names = {COMPUTE: "the compute stream", HOST: "the host"}
    stream = access.stream
    where = "NCCL's stream" if stream >= NCCL else names.get(stream, f"stream {stream}")
    return f"{kind} on {where} by {access.operator}"
