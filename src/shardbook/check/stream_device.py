r"""# A modelled device with streams

> The streams and events of this chapter execute nothing, and record each call.

`torch.get_device_module(device)` returns the module with a device's streams, such as
`torch.cuda`. A CPU has no streams. While [a recorder](stream_recorder.py) is active,
the function returns this chapter's module instead. Its streams start empty, and only
`wait_stream` and events order them.

**Several devices.** In this model, the model's device is not the current device, except
inside a block `with module.stream(...)` for one of its streams. So if the library makes
a stream without naming a device, the stream belongs to the other device. Its records
and waits order nothing on the model's device, and a block with such a stream does not
change where the model's tensors are computed. In this way a missing device becomes
visible as a race.

**NCCL.** An asynchronous collective is a kernel on a stream of the process group. This
stream first waits for the stream from which the collective was called. `Work.wait`
makes the current stream wait for the collective. Until then the process group holds
references to the tensors, so they cannot be freed. Their storage can still be resized to
0.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from shardbook.check.stream_events import AWAY, COMPUTE, HOST, lines_of_the_book

__all__ = ["Event", "Stream", "Work", "at_work", "device", "recording"]

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
