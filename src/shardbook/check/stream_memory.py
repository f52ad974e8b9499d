r"""# Memory and the host in a recording

> Which memory a kernel touches, who owned it before, and what the thread itself has waited for.

A kernel is recorded with the blocks of memory that it reads and writes. A *block* is the
memory of one storage from the moment at which it is taken to the moment at which it is
given back. A storage that is shrunk to nothing and grown again has a new block then.

**The caching allocator.** Memory belongs to the stream that was current when it was
taken. `record_stream` makes the allocator wait for what is queued on the named stream.
When a storage dies is seen only afterwards, so before each event all known storages are
looked at.

**The host.** There the thread itself computes, in the order of the program, as if on a
stream of its own. A kernel comes after all that the thread did or waited for before it
queued the kernel. The thread comes after a kernel only where it waits, for an event or
for a copy that does not return before it is done. Pinned memory that is dropped is not
handed out again before the copies from it are done.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from shardbook.check.place import place
from shardbook.check.stream_events import (
    COMPUTE,
    HOST,
    Allocate,
    Free,
    Launch,
    Record,
    Trace,
    Wait,
    lines_of_the_book,
)
from shardbook.foundations.torch_private import is_expired, storage_id

__all__ = ["Recording"]
# sidelit: show


class Recording:
    """The events so far, and what has to be known to write down the next one."""

    def __init__(self) -> None:
        self.trace: Trace = []
        self.current = COMPUTE
        # Whether the model's device is the current one.
        self.at_home = False
        self.events = 0
        self.blocks = 0
        self.storages: dict[int, Stored] = {}
        # The storages on the host, and up to where each stream comes after the host.
        self.host: set[int] = set()
        self.told: dict[int, int] = {}

    def launch(self, stream: int, reads: set[int], writes: set[int], name: str) -> None:
        """Queue a kernel, unless it touches nothing."""
        if reads or writes:
            # What the thread has done, it has done before it queues anything else.
            if stream != HOST and self.told.get(HOST, 0) > self.told.get(stream, 0):
                self.told[stream] = self.told[HOST]
                self.wait(stream, self.record(HOST), lines=())
            elif stream == HOST:
                self.told[HOST] = len(self.trace) + 1
            self.trace.append(
                Launch(
                    stream,
                    frozenset(reads),
                    frozenset(writes),
                    f"{name}, {next(lines_of_the_book(), 'the training loop')}",
                    place(),
                )
            )

    def record(self, stream: int) -> int:
        """A new event that remembers what is queued on the stream."""
        self.sweep()
        self.events += 1
        self.trace.append(Record(self.events, stream))
        return self.events

    def wait(self, stream: int, event: int, lines: Iterable[str]) -> None:
        """Let the stream wait for the event."""
        self.sweep()
        self.trace.append(Wait(event, stream, tuple(lines)))
        if stream == HOST:
            self.told[HOST] = len(self.trace)

    def blocks_of(self, tensor: Tensor) -> set[int]:
        """The memory under a tensor; none under a tensor without elements."""
        storage = tensor.untyped_storage()
        if not tensor.numel() or not storage.nbytes():
            return set()
        if storage_id(storage) not in self.storages:
            # It is older than the recording, or it came from Python. Either way nobody is using its memory.
            self.blocks += 1
            self.storages[storage_id(storage)] = Stored(
                StorageWeakRef(storage), self.blocks
            )
        return {self.storages[storage_id(storage)].block}

    def allocated(self, storage: torch.UntypedStorage) -> None:
        """A storage has taken memory of the current stream, or of the host."""
        self.blocks += 1
        self.storages[storage_id(storage)] = Stored(
            StorageWeakRef(storage), self.blocks
        )
        home = HOST if storage_id(storage) in self.host else self.current
        self.trace.append(Allocate(self.blocks, home))

    def freed(self, storage: int) -> None:
        """A storage has given its memory back."""
        known = self.storages.pop(storage)
        if storage in self.host:
            self.host.remove(storage)
            # The allocator of pinned memory asks every stream.
            known.streams.update(
                event.stream for event in self.trace if isinstance(event, Launch)
            )
        self.trace.append(Free(known.block, frozenset(known.streams)))

    def sweep(self) -> None:
        """Note which storages have died since the last event."""
        # What `StorageWeakRef.expired` asks, and it is called millions of times.
        for storage in [
            number
            for number, known in self.storages.items()
            if is_expired(known.reference.cdata)
        ]:
            self.freed(storage)

    def keep_on_host(self, tensors: Iterable[Tensor]) -> None:
        """These count as memory on the host. It is older than all that the recording holds."""
        for tensor in tensors:
            self.host.add(storage_id(tensor.untyped_storage()))
            self.blocks_of(tensor)


@dataclass
class Stored:
    """A storage that holds memory now. The reference keeps its address from being used again."""

    reference: StorageWeakRef
    block: int
    streams: set[int] = field(default_factory=set)
