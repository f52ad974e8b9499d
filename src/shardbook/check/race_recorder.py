r"""# Recording a run as if on a GPU

> The recorder runs a program on a CPU, and records the streams and allocations that a
> GPU would use.

The program really runs, on CPU tensors, and its results are right. In addition [the
recorder](#module/the-recorder) writes [a list of
events](race_replay.py#module/a-recording-of-streams) that a GPU would see. It models

- **kernels**: each operation of PyTorch is one kernel on the current stream. The
  operation's schema says which tensors it reads and writes. They are recorded by
  storage, so two parts of one storage count as the same memory. A backward pass runs on
  the stream of its forward pass, which in this library is the compute stream.
- **streams, events and NCCL**: [the modelled
  device](race_recorder.py#module/a-modelled-device-with-streams) records them. A
  synchronous collective runs on the current stream.
- **memory and the host**: [the recording](#module/memory-and-the-host-in) lists when
  memory is freed, and when the host waits. Memory from `host_memory` is on the host,
  and so are tensors that PyTorch computes from it. All other tensors count as tensors
  of the device, and their `is_cpu` is false.

Other waits of the host are not modelled. For example, `item()` makes the host wait for
the stream. But a program whose order depends on an `item()` has a race as soon as the
`item()` is removed. So an `item()` counts only as a read.
"""

from __future__ import annotations

import functools
import gc
import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from shardbook.check.race_replay import (
    AWAY,
    COMPUTE,
    HOST,
    NCCL,
    Allocate,
    Free,
    Launch,
    Record,
    Trace,
    Wait,
    lines_of_the_book,
)
from shardbook.check.watches import place
from shardbook.foundations import streams
from shardbook.foundations.torch_private import (
    ALL_GATHER,
    REDUCE_SCATTER,
    TorchDispatchMode,
    cuda_sanitizer,
    is_expired,
    schema_of,
    storage_id,
)
from shardbook.zero import offload, unused

__all__ = [
    "Event",
    "Recorder",
    "Recording",
    "Stream",
    "Work",
    "at_work",
    "device",
    "recording",
]

# ## Memory and the host in a recording
#
# > The recording knows which blocks of memory each kernel reads and writes, when they are
# > freed, and when the host waits.
#
# A kernel is recorded with the blocks of memory that it reads and writes. A *block* is the
# memory of one storage, from its allocation until it is freed. If a storage is resized to
# 0 and later resized again, it gets a new block.
#
# **The caching allocator.** A block belongs to the stream that was current at its
# allocation. After `record_stream(s)` the allocator does not reuse the block until stream
# `s` has finished what is queued on it. PyTorch does not report when a storage is freed.
# So before each event, all known storages are checked.
#
# **The host.** The host executes operations on CPU tensors in the order of the program, as
# if on a stream of its own. A kernel runs after everything that the host did before it
# queued the kernel. In the other direction there is an order only if the host waits: for
# an event, or for a blocking copy. Pinned memory that is freed is not reused until the
# copies from it have finished.


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


# ## The recorder


# These operations use the shape of a tensor, but not its values.
FACTORY = re.compile("^new_|_like$")


class Recorder(Recording, TorchDispatchMode):
    """A block in which the program runs on the modelled device and is recorded."""

    def __init__(self) -> None:
        Recording.__init__(self)
        TorchDispatchMode.__init__(self)
        # Whether the present operations are left out of the recording.
        self.quiet = False
        # The stream of each process group, and the tensors that NCCL holds until a stream
        # waits for the collective's event.
        self.nccl: dict[Any, int] = {}
        self.kept: dict[int, list[Tensor]] = {}
        self.patches = ExitStack()

    def __enter__(self) -> Recorder:
        assert not at_work
        at_work.append(self)
        streams.users.clear()
        change = self.patches.enter_context
        change(patch.object(torch, "get_device_module", lambda _=None: device))
        # The process group uses gloo for CPU tensors, but here they stand for GPU tensors. So the group
        # claims to use NCCL.
        change(patch.object(dist, "get_backend_config", lambda group=None: "cpu:nccl"))
        change(patch.object(torch.UntypedStorage, "resize_", resize))
        change(patch.object(Tensor, "record_stream", record_stream))
        change(patch.object(Tensor, "is_cpu", property(is_cpu)))
        for module in (offload, offload, unused):
            change(
                patch.object(module, "host_memory", self.on_host(offload.host_memory))
            )
        for name in (
            ALL_GATHER,
            REDUCE_SCATTER,
            "all_gather",
            "reduce_scatter",
            "all_to_all_single",
            "all_reduce",
            "broadcast",
        ):
            change(patch.object(dist, name, self.collective(getattr(dist, name))))
        # The garbage collector would free memory at unpredictable moments.
        gc.disable()
        TorchDispatchMode.__enter__(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        TorchDispatchMode.__exit__(self, *exception)
        gc.enable()
        self.patches.close()
        at_work.remove(self)
        # The library caches its streams. Those of the modelled device must not be used later.
        for kept in (streams.streams, offload.road):
            kept.cache_clear()
        streams.users.clear()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation, and record it as a kernel on the current stream or on the host."""
        kwargs = kwargs or {}
        if self.quiet:
            return func(*args, **kwargs)
        self.sweep()
        name = schema_of(func).name.split("::")[1]
        reads, writes = set[int](), set[int]()
        for argument, value in cuda_sanitizer.zip_arguments(
            schema_of(func), args, kwargs
        ):
            for tensor in tensors_in(value):
                blocks, alias = self.blocks_of(tensor), argument.alias_info
                if alias is not None and alias.is_write:
                    writes |= blocks
                elif alias is None and not FACTORY.search(name):
                    reads |= blocks
        given = [
            storage_id(tensor.untyped_storage()) in self.host
            for tensor in tensors_in((args, kwargs))
        ]
        result = func(*args, **kwargs)
        outputs = tensors_in(result)
        # A copy may go between the host and the device. Any other operation has all of its tensors on one
        # of them. An exception is new memory for the device with the shape of a tensor on the host.
        moves = FACTORY.search(name) is not None and kwargs.get("device") is not None
        here = (
            HOST
            if any(given) and (all(given) or name != "copy_") and not moves
            else self.current
        )
        for tensor in outputs:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage_id(storage) not in self.storages:
                if here == HOST:
                    self.host.add(storage_id(storage))
                self.allocated(storage)
                if "empty" not in name:
                    writes |= self.blocks_of(tensor)
        # An operation that returns tensors but writes nothing makes a view or uninitialized memory, so no
        # kernel runs. An operation that returns no tensor reads a value for the host.
        if writes or not outputs:
            self.launch(here, reads, writes, name)
        crosses = any(given) and here != HOST and not moves
        if crosses and not (kwargs.get("non_blocking") or args[2:3] == (True,)):
            self.wait(HOST, self.record(here), lines=())
        return result

    def on_host(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Wrap a function so that its result counts as memory on the host."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Tensor:
            with self.paused():
                made = original(*args, **kwargs)
            self.sweep()
            storage = made.untyped_storage()
            self.host.add(storage_id(storage))
            if storage.nbytes():
                self.allocated(storage)
            return made

        return call

    def collective(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a collective so that it is recorded as NCCL would execute it."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            # A collective takes tensors, or a list with one tensor for each rank.
            given = {
                name: tensors
                for name, value in bound.arguments.items()
                if (tensors := tensors_in(value))
            }
            inputs = {name for name in given if name.startswith("input")}
            if "tensor_list" in given:
                inputs.add("tensor")
            everything = [tensor for each in given.values() for tensor in each]
            outputs = [
                tensor
                for name, each in given.items()
                if name not in inputs
                for tensor in each
            ]
            asynchronous = bound.arguments.pop("async_op")
            # gloo's threads hold references to tensors a moment longer, so memory would be freed at
            # unpredictable moments. Therefore gloo gets copies.
            with self.paused():
                copies = {
                    name: [tensor.detach().clone() for tensor in each]
                    for name, each in given.items()
                }
                passed = {
                    name: each[0] if isinstance(bound.arguments[name], Tensor) else each
                    for name, each in copies.items()
                }
                original(**{**bound.arguments, **passed})
                for name, each in given.items():
                    for tensor, copy in zip(each, copies[name], strict=True):
                        tensor.detach().copy_(copy)
            reads = set().union(*map(self.blocks_of, everything))
            writes = set().union(*map(self.blocks_of, outputs))
            if not asynchronous:
                self.launch(self.current, reads, writes, f"NCCL {original.__name__}")
                return None
            group = bound.arguments["group"] or dist.group.WORLD
            stream = self.nccl.setdefault(group, NCCL + len(self.nccl))
            self.wait(stream, self.record(self.current), lines=())
            self.launch(stream, reads, writes, f"NCCL {original.__name__}")
            end = self.record(stream)
            self.kept[end] = everything
            return Work(end)

        return call

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block that is left out of the recording."""
        self.quiet, before = True, self.quiet
        try:
            yield
        finally:
            self.quiet = before


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors with memory in a value, so none on the meta device. The value is a tensor, a list or
    tuple of values, or a dictionary of an operation's options.
    """
    if isinstance(value, Tensor):
        return [] if value.is_meta else [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for part in value for tensor in tensors_in(part)]


def is_cpu(tensor: Tensor) -> bool:
    """Whether a tensor is on the host. Tensors of the modelled device are really CPU tensors, and this
    property hides it.
    """
    return storage_id(tensor.untyped_storage()) in recording().host


resize_storage = torch.UntypedStorage.resize_


def resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """Resize a storage, and record that its memory was freed or allocated."""
    recorder = recording()
    if recorder.quiet or size == storage.nbytes():
        resize_storage(storage, size)
        return storage
    recorder.sweep()
    if storage_id(storage) in recorder.storages:
        recorder.freed(storage_id(storage))
    resize_storage(storage, size)
    if size:
        recorder.allocated(storage)
    return storage


def record_stream(tensor: Tensor, stream: Stream) -> None:
    """Record that another stream uses this memory, too."""
    recorder = recording()
    if recorder.blocks_of(tensor):
        recorder.storages[storage_id(tensor.untyped_storage())].streams.add(
            stream.number
        )


# ## A modelled device with streams
#
# > The streams and events of the modelled device execute nothing, and record each call.
#
# `torch.get_device_module(device)` returns the module with a device's streams, such as
# `torch.cuda`. A CPU has no streams. While [a recorder](#module/the-recorder) is
# active, the function returns the modelled device instead. Its streams start empty, and
# only `wait_stream` and events order them.
#
# **Several devices.** In this model, the model's device is not the current device, except
# inside a block `with module.stream(...)` for one of its streams. So if the library makes
# a stream without naming a device, the stream belongs to the other device. Its records
# and waits order nothing on the model's device, and a block with such a stream does not
# change where the model's tensors are computed. In this way a missing device becomes
# visible as a race.
#
# **NCCL.** An asynchronous collective is a kernel on a stream of the process group. This
# stream first waits for the stream from which the collective was called. `Work.wait`
# makes the current stream wait for the collective. Until then the process group holds
# references to the tensors, so they cannot be freed. Their storage can still be resized to
# 0.


# The active recorder, if there is one.
at_work: list[Any] = []


def recording() -> Any:
    """The active recorder."""
    return at_work[-1]


class Work:
    """The handle that an asynchronous collective returns."""

    def __init__(self, event: int) -> None:
        self.event = event

    def wait(self) -> bool:
        """Make the current stream wait for the collective. The host does not wait."""
        recorder = recording()
        recorder.wait(recorder.current, self.event, lines_of_the_book())
        recorder.kept.pop(self.event, None)
        return True


class Stream:
    """A stream of the modelled device, like `torch.cuda.Stream`."""

    made = COMPUTE

    def __init__(self, device: Any = None) -> None:
        Stream.made += 1
        self.number = Stream.made
        self.at_home = device is not None or recording().at_home

    @staticmethod
    def of(number: int) -> Stream:
        """The stream with a number."""
        stream = object.__new__(Stream)
        stream.number, stream.at_home = number, number != AWAY
        return stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def wait_stream(self, other: Stream) -> None:
        """Make this stream wait for everything that is queued on the other stream."""
        recorder = recording()
        recorder.wait(self.number, recorder.record(other.number), lines_of_the_book())

    def wait_event(self, event: Event) -> None:
        """Make this stream wait for an event."""
        recording().wait(self.number, event.number, lines_of_the_book())

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event after everything that is queued on this stream."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """An event of the modelled device, like `torch.cuda.Event`."""

    number: int

    def record(self, stream: Stream | None = None) -> None:
        """Record the event after everything that is queued on a stream."""
        self.number = recording().record((stream or current_stream()).number)

    def wait(self, stream: Stream | None = None) -> None:
        """Make a stream wait for the event."""
        recording().wait(
            (stream or current_stream()).number, self.number, lines_of_the_book()
        )

    def synchronize(self) -> None:
        """Make the host wait for the event."""
        recording().wait(HOST, self.number, lines_of_the_book())


def current_stream(device: Any = None) -> Stream:
    """The current stream of a device, by default of the current device."""
    recorder = recording()
    return Stream.of(
        AWAY if device is None and not recorder.at_home else recorder.current
    )


@contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    """A block in which a stream and its device are current."""
    recorder = recording()
    before = recorder.current, recorder.at_home
    if stream.at_home:
        recorder.current, recorder.at_home = stream.number, True
    try:
        yield
    finally:
        recorder.current, recorder.at_home = before


def set_stream(stream: Stream) -> None:
    """Make a stream current."""
    recording().current = stream.number


# The module of the modelled device, like `torch.cuda`. The tensors stay on the CPU, and PyTorch itself asks
# whether there is another device.
device = SimpleNamespace(
    is_available=lambda: False,
    Stream=Stream,
    Event=Event,
    current_stream=current_stream,
    set_stream=set_stream,
    stream=on_stream,
)
