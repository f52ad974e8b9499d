r"""# Memory and the host in a recording

> The recording knows which blocks of memory each kernel reads and writes, when they are
> freed, and when the host waits.

A kernel is recorded with the blocks of memory that it reads and writes. A *block* is the
memory of one storage, from its allocation until it is freed. If a storage is resized to
0 and later resized again, it gets a new block.

**The caching allocator.** A block belongs to the stream that was current at its
allocation. After `record_stream(s)` the allocator does not reuse the block until stream
`s` has finished what is queued on it. PyTorch does not report when a storage is freed.
So before each event, all known storages are checked.

**The host.** The host executes operations on CPU tensors in the order of the program, as
if on a stream of its own. A kernel runs after everything that the host did before it
queued the kernel. In the other direction there is an order only if the host waits: for
an event, or for a blocking copy. Pinned memory that is freed is not reused until the
copies from it have finished.
"""

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


class Recording:
    """The recorded events, and the state that is needed to record the next one."""

    def __init__(self) -> None:
        self.trace: Trace = []
        self.current = COMPUTE
        # Whether the model's device is the current one.
        self.at_home = False
        self.events = 0
        self.blocks = 0
        self.storages: dict[int, Stored] = {}
        # `host` holds the storages on the host. `told` holds for each stream the position
        # in the recording up to which it is ordered after the host.
        self.host: set[int] = set()
        self.told: dict[int, int] = {}

    def launch(self, stream: int, reads: set[int], writes: set[int], name: str) -> None:
        """Record a kernel, unless it reads and writes nothing."""
        if reads or writes:
            # A kernel runs after everything that the host did before. So the stream
            # waits for the host, if the host has done something since the last wait.
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
        """Record a new event on a stream, and return its number."""
        self.sweep()
        self.events += 1
        self.trace.append(Record(self.events, stream))
        return self.events

    def wait(self, stream: int, event: int, lines: Iterable[str]) -> None:
        """Record that a stream waits for an event."""
        self.sweep()
        self.trace.append(Wait(event, stream, tuple(lines)))
        if stream == HOST:
            self.told[HOST] = len(self.trace)

    def blocks_of(self, tensor: Tensor) -> set[int]:
        """The block of a tensor's storage, or none for a tensor without elements."""
        storage = tensor.untyped_storage()
        if not tensor.numel() or not storage.nbytes():
            return set()
        if storage_id(storage) not in self.storages:
            # The storage is older than the recording, or came from Python. In both cases no kernel of the
            # recording uses its memory yet.
            self.blocks += 1
            self.storages[storage_id(storage)] = Stored(
                StorageWeakRef(storage), self.blocks
            )
        return {self.storages[storage_id(storage)].block}

    def allocated(self, storage: torch.UntypedStorage) -> None:
        """Record that a storage was allocated, on the current stream or on the host."""
        self.blocks += 1
        self.storages[storage_id(storage)] = Stored(
            StorageWeakRef(storage), self.blocks
        )
        home = HOST if storage_id(storage) in self.host else self.current
        self.trace.append(Allocate(self.blocks, home))

    def freed(self, storage: int) -> None:
        """Record that a storage was freed."""
        known = self.storages.pop(storage)
        if storage in self.host:
            self.host.remove(storage)
            # The allocator of pinned memory waits for every stream that used the memory. The recording
            # assumes that all of them did.
            known.streams.update(
                event.stream for event in self.trace if isinstance(event, Launch)
            )
        self.trace.append(Free(known.block, frozenset(known.streams)))

    def sweep(self) -> None:
        """Record which storages were freed since the last event."""
        # `is_expired` is what `StorageWeakRef.expired` calls. The direct call is faster, and there are
        # millions.
        for storage in [
            number
            for number, known in self.storages.items()
            if is_expired(known.reference.cdata)
        ]:
            self.freed(storage)

    def keep_on_host(self, tensors: Iterable[Tensor]) -> None:
        """Count existing tensors as memory on the host."""
        for tensor in tensors:
            self.host.add(storage_id(tensor.untyped_storage()))
            self.blocks_of(tensor)


@dataclass
class Stored:
    """A storage that has memory now. The weak reference prevents that its address is used again."""

    reference: StorageWeakRef
    block: int
    streams: set[int] = field(default_factory=set)
