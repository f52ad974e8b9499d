"""Races between streams, found without a GPU: record what training asks of a device, then let CUDA's own
happens-before checker judge the recording.

    with Recorder() as recorder:
        ...                              # shard a model and train it
    assert races(recorder.trace) == []   # what CUDA would have to keep in order, and does
    assert races(recorder.trace, without=["unit.py:99"])  # this line makes a stream wait, and must

The training runs for real, on CPU tensors. What a GPU would do with it is a model, written down as a list of
events, and `races` feeds that list to `torch.cuda._sanitizer.EventHandler`. Modelled are

- **kernels**: each operation of torch is one kernel on the current stream. What it reads and writes is
  taken from the operation's schema, and kept by storage: two parts of one storage count as one place.
- **streams and events**: `torch.get_device_module` gives a device whose streams start empty and are
  ordered by nothing but `wait_stream` and events. A backward pass runs on the stream of its forward pass,
  which in the book is the compute stream; a test that computes on several streams switches by itself.
- **several devices**: the device of the model is never the current one, except inside of a block
  `with module.stream(...)` for one of its streams. So a stream for which nobody names the device belongs to
  the other device. What is recorded or waited for there orders nothing here, and a block with such a stream
  does not change where the model's tensors are computed.
- **NCCL**: an asynchronous collective is a kernel on a stream that belongs to the process group. That stream
  waits for the stream from which the collective was called. `Work.wait` lets the current stream wait for
  the collective. Until then the process group keeps the tensors, so that nobody can free them; to shrink
  their storage is possible all the same. A synchronous collective runs on the current stream.
- **the caching allocator**: memory belongs to the stream that was current when it was taken. When a storage
  dies or is shrunk to nothing, its memory goes back to that stream at the moment at which the *host* says so,
  whatever the device is doing. The next one to take memory there may get it. Which one gets what depends on
  sizes and on chance, so the model takes the worst of every case: who first writes to new memory must come
  after all uses of all memory that was ever given back to the same stream. `record_stream` makes the
  allocator wait for what is queued on the named stream.
- **the host**: memory that `host_memory` gives, what `Recorder.keep_on_host` was told of, and whatever torch
  computes from it. There the thread itself computes, in the order of the program, as if on a stream of its
  own. A kernel comes after all that the thread did or waited for before it queued the kernel. The thread
  comes after a kernel only where it waits, for an event or for a copy that does not return before it is done.
  Pinned memory that is dropped is not handed out again before the copies from it are done. Every other tensor
  is on the device: `is_cpu` says so, and so is new memory for which a device is named.

Not modelled are other waits of the host. `item()` makes the host wait for the stream, but
a program that is in order only because of that is out of order on the day the `item()` goes, so it counts as
a read and nothing more. A wait that is left out of the replay is left out alone: what the host did
afterwards, it did as recorded.
"""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import re
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.cuda._sanitizer import Access, AccessType, EventHandler, UnsynchronizedAccessError, zip_arguments
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import shardbook
from shardbook.foundations import streams
from shardbook.parameters import host, offload
from shardbook.zero import unused

BOOK = Path(shardbook.__file__).parent
FACTORY = re.compile("^new_|_like$")  # these ask a tensor for its shape, not for its values
COMPUTE = 0  # the number of the stream that is current when nobody chose another

HOST = -1  # the thread itself
AWAY = -2  # the current stream of the current device, which is not the model's
NCCL = 1000  # the number of the first stream of a process group


# The events of a recording. Streams, events and blocks of memory are numbers.


@dataclass(frozen=True)
class Launch:
    """A kernel is queued."""

    stream: int
    reads: frozenset[int]
    writes: frozenset[int]
    name: str


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


@dataclass(frozen=True)
class Race:
    """Two accesses to the same memory that nothing orders; the first came later."""

    later: str
    earlier: str

    def __str__(self) -> str:
        return f"{self.later}\n    is not ordered after\n    {self.earlier}"


def races(trace: Trace, without: Collection[str] = ()) -> list[Race]:
    """What the checker finds in a recording, each pair of accesses once.

    :param without: lines such as `unit.py:99`; what they asked to wait for is not waited for
    """
    # The checker notes the stack of each launch. Here that is the stack of this function, and says nothing.
    with patch.object(traceback.StackSummary, "extract", lambda *_, **__: []):
        return list(dict.fromkeys(map(_race, _errors(trace, {*without}))))


def _errors(trace: Trace, without: set[str]) -> Iterator[Any]:
    checker, memory = EventHandler(), _Memory()
    for event in trace:
        match event:
            case Launch(stream, reads, writes, name):
                aliases: dict[int, list[str]] = {block: [] for block in reads | writes}
                yield from checker._handle_kernel_launch(
                    stream, set(reads - writes), set(writes), set(), name, aliases
                )
            case Record(number, stream):
                checker._handle_event_creation(number)
                checker._handle_event_record(number, stream)
            case Wait(number, stream, lines) if without.isdisjoint(lines):
                checker._handle_event_wait(number, stream)
            case Allocate(block, stream):
                checker._handle_memory_allocation(block)
                memory.hand_out(checker, block, stream)
            case Free(block, streams):
                memory.take_back(checker, block, streams)
                checker._handle_memory_deallocation(block)


class _Memory:
    """The memory of each stream, as far as the checker must know it: who last used what was given back.

    The checker forgets a block that is freed. Here its last uses stay with the stream it came from, and the
    next block of that stream starts with them, as reads that its first write must come after. A stream runs
    in order, so of the uses on one stream the last stands for all.
    """

    def __init__(self) -> None:
        self.home: dict[int, int] = {}
        self.used: dict[int, dict[int, Access]] = defaultdict(dict)

    def hand_out(self, checker: EventHandler, block: int, stream: int) -> None:
        self.home[block] = stream
        for access in self.used[stream].values():
            checker.tensors_accessed.add_read(block, access)

    def take_back(self, checker: EventHandler, block: int, recorded: frozenset[int]) -> None:
        checker.tensors_accessed.ensure_tensor_exists(block)
        uses = [*checker.tensors_accessed.get_reads(block), checker.tensors_accessed.get_write(block)]
        last = self.used[self.home.pop(block, COMPUTE)]
        for use in uses:
            if use is None or any(
                checker.syncs.is_ordered_after(stream, use.seq_num, use.stream) for stream in recorded
            ):
                continue
            if use.stream not in last or last[use.stream].seq_num < use.seq_num:
                last[use.stream] = use


def _race(error: Any) -> Race:
    assert isinstance(error, UnsynchronizedAccessError)
    return Race(_told(error.current_access), _told(error.previous_access))


def _told(access: Access) -> str:
    kind = "read" if access.type is AccessType.READ else "write"
    names = {COMPUTE: "the compute stream", HOST: "the host"}
    place = "NCCL's stream" if access.stream >= NCCL else names.get(access.stream, f"stream {access.stream}")
    return f"{kind} on {place} by {access.operator}"


class Recorder(TorchDispatchMode):
    """Inside the block, everything that asks for a device gets one that writes down what it is told."""

    active: Recorder | None = None

    def __init__(self) -> None:
        super().__init__()
        self.trace: Trace = []
        self.current = COMPUTE
        self.at_home = False  # whether the model's device is the current one
        self.quiet = False  # whether what runs now is the model's own business
        self.events = 0
        self.blocks = 0
        self.storages: dict[int, _Storage] = {}
        self.nccl: dict[Any, int] = {}  # the stream of each process group
        self.kept: dict[int, list[Tensor]] = {}  # what NCCL keeps until somebody waits for the event
        self.host: set[int] = set()  # the storages on the host
        self.told: dict[int, int] = {}  # up to where each stream comes after the host
        self.patches = ExitStack()

    def __enter__(self) -> Recorder:
        assert Recorder.active is None
        Recorder.active = self
        streams.users.clear()
        change = self.patches.enter_context
        change(patch.object(torch, "get_device_module", lambda _=None: device))
        # A group may have gloo for CPU tensors. These stand for tensors of a GPU.
        change(patch.object(dist, "get_backend_config", lambda group=None: "cpu:nccl"))
        change(patch.object(torch.UntypedStorage, "resize_", _resize))
        change(patch.object(Tensor, "record_stream", _record_stream))
        change(patch.object(Tensor, "is_cpu", property(_is_cpu)))
        for module in (host, offload, unused):
            change(patch.object(module, "host_memory", self.on_host(host.host_memory)))
        for name in (
            "all_gather_single",
            "reduce_scatter_single",
            "all_to_all_single",
            "all_reduce",
            "broadcast",
        ):
            change(patch.object(dist, name, self.collective(getattr(dist, name))))
        # The garbage collector would free memory at moments of its own.
        gc.disable()
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        gc.enable()
        self.patches.close()
        Recorder.active = None
        # The book keeps its streams. These belong to a device that is gone.
        for kept in (streams.streams, host.road):
            kept.cache_clear()
        streams.users.clear()

    # Kernels.

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.quiet:
            return func(*args, **kwargs)
        self.sweep()
        name = func._schema.name.split("::")[1]
        reads, writes = set[int](), set[int]()
        for argument, value in zip_arguments(func._schema, args, kwargs):
            for tensor in tensors_in(value):
                blocks, alias = self.blocks_of(tensor), argument.alias_info
                if alias is not None and alias.is_write:
                    writes |= blocks
                elif alias is None and not FACTORY.search(name):
                    reads |= blocks
        given = [tensor.untyped_storage()._cdata in self.host for tensor in tensors_in((args, kwargs))]
        result = func(*args, **kwargs)
        outputs = tensors_in(result)
        # A copy may have one end on the host. Any other operation has all of its tensors there or none.
        # But new memory may be like a tensor of the host, and for the device.
        moves = FACTORY.search(name) is not None and kwargs.get("device") is not None
        here = HOST if any(given) and (all(given) or name != "copy_") and not moves else self.current
        for tensor in outputs:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage._cdata not in self.storages:
                if here == HOST:
                    self.host.add(storage._cdata)
                self.allocated(storage)
                if "empty" not in name:
                    writes |= self.blocks_of(tensor)
        # What returns tensors but writes nothing is a view, or memory with nothing in it, and no kernel runs.
        # What returns no tensor reads a value for the host.
        if writes or not outputs:
            self.launch(here, reads, writes, name)
        crosses = any(given) and here != HOST and not moves
        if crosses and not (kwargs.get("non_blocking") or args[2:3] == (True,)):
            self.wait(HOST, self.record(here), lines=())
        return result

    def on_host(self, original: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The call of the same name, whose result counts as memory on the host."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Tensor:
            with self.paused():
                made = original(*args, **kwargs)
            self.sweep()
            storage = made.untyped_storage()
            self.host.add(storage._cdata)
            if storage.nbytes():
                self.allocated(storage)
            return made

        return call

    def keep_on_host(self, tensors: Iterable[Tensor]) -> None:
        """These count as memory on the host. It is older than all that the recording holds."""
        for tensor in tensors:
            self.host.add(tensor.untyped_storage()._cdata)
            self.blocks_of(tensor)

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
                    f"{name}, {next(_lines(), 'the training loop')}",
                )
            )

    # Streams and events.

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

    # Memory.

    def blocks_of(self, tensor: Tensor) -> set[int]:
        """The memory under a tensor; none under a tensor without elements."""
        storage = tensor.untyped_storage()
        if not tensor.numel() or not storage.nbytes():
            return set()
        if storage._cdata not in self.storages:
            # It is older than the recording, or it came from Python. Either way nobody is using its memory.
            self.blocks += 1
            self.storages[storage._cdata] = _Storage(StorageWeakRef(storage), self.blocks)
        return {self.storages[storage._cdata].block}

    def allocated(self, storage: torch.UntypedStorage) -> None:
        """A storage has taken memory of the current stream, or of the host."""
        self.blocks += 1
        self.storages[storage._cdata] = _Storage(StorageWeakRef(storage), self.blocks)
        home = HOST if storage._cdata in self.host else self.current
        self.trace.append(Allocate(self.blocks, home))

    def freed(self, storage: int) -> None:
        """A storage has given its memory back."""
        known = self.storages.pop(storage)
        if storage in self.host:
            self.host.remove(storage)
            # The allocator of pinned memory asks every stream.
            known.streams.update(event.stream for event in self.trace if isinstance(event, Launch))
        self.trace.append(Free(known.block, frozenset(known.streams)))

    def sweep(self) -> None:
        """Note which storages have died since the last event."""
        # What `StorageWeakRef.expired` asks, which is called millions of times.
        for storage in [number for number, known in self.storages.items() if _expired(known.reference.cdata)]:
            self.freed(storage)

    # NCCL.

    def collective(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The call of the same name, as NCCL would carry it out."""
        signature = inspect.signature(original)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            given = {name: value for name, value in bound.arguments.items() if isinstance(value, Tensor)}
            outputs = [value for name, value in given.items() if not name.startswith("input")]
            asynchronous = bound.arguments.pop("async_op")
            # gloo's threads keep tensors a moment longer, and chance would decide when memory is free. So
            # they get copies.
            with self.paused():
                copies = {name: value.detach().clone() for name, value in given.items()}
                original(**{**bound.arguments, **copies})
                for name, value in given.items():
                    value.detach().copy_(copies[name])
            reads = set().union(*map(self.blocks_of, given.values()))
            writes = set().union(*map(self.blocks_of, outputs))
            if not asynchronous:
                self.launch(self.current, reads, writes, f"NCCL {original.__name__}")
                return None
            group = bound.arguments["group"] or dist.group.WORLD
            stream = self.nccl.setdefault(group, NCCL + len(self.nccl))
            self.wait(stream, self.record(self.current), lines=())
            self.launch(stream, reads, writes, f"NCCL {original.__name__}")
            end = self.record(stream)
            self.kept[end] = list(given.values())
            return Work(end)

        return call

    @contextmanager
    def paused(self) -> Iterator[None]:
        """What runs in the block is no part of the recording."""
        self.quiet, before = True, self.quiet
        try:
            yield
        finally:
            self.quiet = before


@dataclass
class _Storage:
    """A storage that holds memory now. The reference keeps its address from being used again."""

    reference: StorageWeakRef
    block: int
    streams: set[int] = field(default_factory=set)


class Work:
    """What an asynchronous collective of NCCL returns."""

    def __init__(self, event: int) -> None:
        self.event = event

    def wait(self) -> bool:
        """Make the current stream wait; the host goes on at once."""
        recorder = recording()
        recorder.wait(recorder.current, self.event, _lines())
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
        stream = object.__new__(Stream)
        stream.number, stream.at_home = number, number != AWAY
        return stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def wait_stream(self, other: Stream) -> None:
        recorder = recording()
        recorder.wait(self.number, recorder.record(other.number), _lines())

    def wait_event(self, event: Event) -> None:
        recording().wait(self.number, event.number, _lines())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event


class Event:
    """An event of the modelled device, like `torch.cuda.Event`."""

    number: int

    def record(self, stream: Stream | None = None) -> None:
        self.number = recording().record((stream or _current_stream()).number)

    def wait(self, stream: Stream | None = None) -> None:
        recording().wait((stream or _current_stream()).number, self.number, _lines())

    def synchronize(self) -> None:
        recording().wait(HOST, self.number, _lines())


def _current_stream(device: Any = None) -> Stream:
    recorder = recording()
    return Stream.of(AWAY if device is None and not recorder.at_home else recorder.current)


@contextmanager
def _on_stream(stream: Stream) -> Iterator[None]:
    recorder = recording()
    before = recorder.current, recorder.at_home
    if stream.at_home:
        recorder.current, recorder.at_home = stream.number, True
    try:
        yield
    finally:
        recorder.current, recorder.at_home = before


def _set_stream(stream: Stream) -> None:
    recording().current = stream.number


# The module of the modelled device, like `torch.cuda`.
device = SimpleNamespace(
    Stream=Stream, Event=Event, current_stream=_current_stream, set_stream=_set_stream, stream=_on_stream
)


def recording() -> Recorder:
    """The recorder whose block is open."""
    assert Recorder.active is not None
    return Recorder.active


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors that have memory; those on the meta device have none. An operation takes and returns
    tensors, lists and tuples of them, and its options stand in a dictionary.
    """
    if isinstance(value, Tensor):
        return [] if value.is_meta else [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [tensor for part in value for tensor in tensors_in(part)]


def _is_cpu(tensor: Tensor) -> bool:
    """Whether a tensor is on the host. The tensors of the device are on the CPU, too, and must not say so."""
    return tensor.untyped_storage()._cdata in recording().host


_expired = torch.UntypedStorage._expired
_resize_storage = torch.UntypedStorage.resize_


def _resize(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """Resize, and note that the memory went or came."""
    recorder = recording()
    if recorder.quiet or size == storage.nbytes():
        _resize_storage(storage, size)
        return storage
    recorder.sweep()
    if storage._cdata in recorder.storages:
        recorder.freed(storage._cdata)
    _resize_storage(storage, size)
    if size:
        recorder.allocated(storage)
    return storage


def _record_stream(tensor: Tensor, stream: Stream) -> None:
    """The allocator is told that another stream uses this memory, too."""
    recorder = recording()
    if recorder.blocks_of(tensor):
        recorder.storages[tensor.untyped_storage()._cdata].streams.add(stream.number)


def _lines() -> Iterator[str]:
    """The lines of the book that are being carried out, the innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name = _chapter(frame.f_code.co_filename)
        if name:
            yield f"{name}:{frame.f_lineno}"
        frame = frame.f_back


@functools.cache
def _chapter(file: str) -> str | None:
    """The name of a file of the book."""
    path = Path(file)
    return path.name if path.is_relative_to(BOOK) else None


WAITS = ("wait", "wait_stream", "wait_event", "synchronize", "arrive")


def waits_in_the_book() -> dict[str, set[str]]:
    """Every call in the sources that makes a stream or the host wait, and the lines it stands on."""
    found = {}
    for file in sorted(BOOK.rglob("*.py")):
        # What these wait for is the end of a checkpoint that is written in the background.
        if file.parent.name in ("state", "train"):
            continue
        for function in ast.walk(ast.parse(file.read_text())):
            # The first makes the host wait, for backends that have no streams. The second keeps gradients
            # from piling up on a device, and test_streaming.py counts them. The third keeps NCCL's kernels
            # from blocking each other, and test_collectives.py looks for it. test_handover.py looks for the
            # fourth, which needs a recomputation on several streams. The last two wait for other processes
            # and for the end of a thread.
            unseen = ("arrived", "let_leave", "take_turn", "hand_over", "wait_for", "monitor")
            if not isinstance(function, ast.FunctionDef) or function.name in unseen:
                continue
            for node in ast.walk(function):
                match node:
                    # What a class passes on to its parent is another thing of the same name.
                    case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")))):
                        pass
                    case ast.Call(func=ast.Attribute(attr=name)) if name in WAITS:
                        name = f"{file.name}:{node.lineno} {ast.unparse(node)}"
                        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                        found[name] = {f"{file.name}:{line}" for line in lines}
    return found
