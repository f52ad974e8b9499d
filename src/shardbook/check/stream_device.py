r"""# A device that is not there

> Streams and events that carry out nothing, and write down what they are told.

`torch.get_device_module(device)` gives the streams of a device, and on a CPU they do
nothing. While [a recorder](stream_recorder.py) is at work it gives this chapter's instead.
They start empty and are ordered by nothing but `wait_stream` and events.

**Several devices.** The device of the model is never the current one, except inside of a
block `with module.stream(...)` for one of its streams. So a stream for which nobody names
the device belongs to the other device. What is recorded or waited for there orders nothing
here, and a block with such a stream does not change where the model's tensors are
computed.

**NCCL.** An asynchronous collective is a kernel on a stream that belongs to the process
group. That stream waits for the stream from which the collective was called. `Work.wait`
lets the current stream wait for the collective. Until then the process group keeps the
tensors, so that nobody can free them; to shrink their storage is possible all the same.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from shardbook.check.stream_events import AWAY, COMPUTE, HOST, lines_of_the_book

__all__ = ["Event", "Stream", "Work", "at_work", "device", "recording"]
# sidelit: show

# The recorder whose block is open, if there is one.
at_work: list[Any] = []


def recording() -> Any:
    """The recorder whose block is open."""
    return at_work[-1]


class Work:
    """What an asynchronous collective of NCCL returns."""

    def __init__(self, event: int) -> None:
        self.event = event

    def wait(self) -> bool:
        """Make the current stream wait; the host goes on at once."""
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
        """The stream of a number."""
        stream = object.__new__(Stream)
        stream.number, stream.at_home = number, number != AWAY
        return stream

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.number == self.number

    def __hash__(self) -> int:
        return hash(self.number)

    def wait_stream(self, other: Stream) -> None:
        """What comes next on this stream comes after all that is queued on the other."""
        recorder = recording()
        recorder.wait(self.number, recorder.record(other.number), lines_of_the_book())

    def wait_event(self, event: Event) -> None:
        """What comes next on this stream comes after the event."""
        recording().wait(self.number, event.number, lines_of_the_book())

    def record_event(self, event: Event | None = None) -> Event:
        """An event behind all that is queued on this stream."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """An event of the modelled device, like `torch.cuda.Event`."""

    number: int

    def record(self, stream: Stream | None = None) -> None:
        """Stand behind all that is queued on a stream."""
        self.number = recording().record((stream or current_stream()).number)

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait."""
        recording().wait(
            (stream or current_stream()).number, self.number, lines_of_the_book()
        )

    def synchronize(self) -> None:
        """Let the thread wait."""
        recording().wait(HOST, self.number, lines_of_the_book())


def current_stream(device: Any = None) -> Stream:
    """The current stream of a device; of the current one if none is named."""
    recorder = recording()
    return Stream.of(
        AWAY if device is None and not recorder.at_home else recorder.current
    )


@contextmanager
def on_stream(stream: Stream) -> Iterator[None]:
    """In this block a stream is current, and so is its device."""
    recorder = recording()
    before = recorder.current, recorder.at_home
    if stream.at_home:
        recorder.current, recorder.at_home = stream.number, True
    try:
        yield
    finally:
        recorder.current, recorder.at_home = before


def set_stream(stream: Stream) -> None:
    """From now on a stream is current."""
    recording().current = stream.number


# The module of the modelled device, like `torch.cuda`.
device = SimpleNamespace(
    Stream=Stream,
    Event=Event,
    current_stream=current_stream,
    set_stream=set_stream,
    stream=on_stream,
)
