"""The Python side of the late device: what `torch.late` has, like `torch.cuda`.

from device import runtime
runtime.install()                         # in a process that has no accelerator
x = torch.ones(3, device="late")
with runtime.without({"host.py:118"}): ...   # what these lines of the book wait for is not waited for
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

import shardbook
from device.build import load

NAME = "late"
BACKEND = "cpu:gloo,late:late"
SCHEDULES = ("late", "side streams first")
BOOK = Path(shardbook.__file__).parent


def install() -> None:
    """Make the device known to this process; once is enough."""
    if hasattr(torch, NAME):
        return
    # Before the library is loaded, since torch then makes the device's own classes under this name.
    torch.utils.rename_privateuse1_backend(NAME)
    native = load()
    torch._register_device_module(NAME, module(native))
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    dist.Backend.register_backend(NAME, group, devices=NAME)


def group(store: Any, rank: int, size: int, timeout: Any) -> Any:
    """A process group: one of gloo, which the streams of the device hand their exchanges to."""
    under = dist.ProcessGroupGloo(dist.PrefixStore("under the late device", store), rank, size, timeout)
    return load().group(under, rank, size)


class Stream(torch.Stream):
    """A stream; what the lines that are left out would wait for, it does not."""

    def __new__(cls, device: Any = None, **fields: Any) -> Stream:
        if fields:
            return super().__new__(cls, **fields)
        return super().__new__(cls, torch.device(device or NAME))

    def wait_stream(self, other: torch.Stream) -> None:
        if not left_out():
            super().wait_stream(other)

    def wait_event(self, event: torch.Event) -> None:
        if not left_out():
            super().wait_event(event)

    def synchronize(self) -> None:
        if not left_out():
            super().synchronize()


class Event(torch.Event):
    """An event, with the same exception."""

    def __new__(cls, **options: Any) -> Event:
        return super().__new__(cls, torch.device(NAME), **options)

    def wait(self, stream: torch.Stream | None = None) -> None:
        if not left_out():
            super().wait(stream)

    def synchronize(self) -> None:
        if not left_out():
            super().synchronize()


def module(native: Any) -> Any:
    """The module `torch.late`."""

    def index(device: Any = None) -> int:
        if isinstance(device, int):
            return device
        found = None if device is None else torch.device(device).index
        return native.current_device() if found is None else found

    kind = torch._C._autograd.DeviceType.PrivateUse1.value

    def current_stream(device: Any = None) -> Stream:
        found = torch.accelerator.current_stream(index(device))
        return Stream(
            stream_id=found.stream_id, device_index=found.device_index, device_type=found.device_type
        )

    @contextmanager
    def stream(chosen: torch.Stream | None) -> Iterator[None]:
        if chosen is None:
            yield
            return
        with chosen:
            yield

    @contextmanager
    def device(chosen: Any) -> Iterator[None]:
        before = native.current_device()
        native.set_device(index(chosen))
        try:
            yield
        finally:
            native.set_device(before)

    def manual_seed_all(seed: int) -> None:
        for number in range(native.device_count()):
            native.default_generator(number).manual_seed(seed)

    def set_rng_state(state: Tensor, device: Any = NAME) -> None:
        native.default_generator(index(device)).set_state(state)

    return SimpleNamespace(
        Stream=Stream,
        Event=Event,
        current_stream=current_stream,
        default_stream=lambda chosen=None: Stream(stream_id=0, device_index=index(chosen), device_type=kind),
        set_stream=torch.accelerator.set_stream,
        stream=stream,
        device=device,
        current_device=native.current_device,
        device_count=native.device_count,
        set_device=lambda chosen: native.set_device(index(chosen)),
        synchronize=lambda chosen=None: native.synchronize(index(chosen)),
        is_available=lambda: True,
        is_initialized=lambda: True,
        init=lambda: None,
        _is_in_bad_fork=lambda: False,
        manual_seed=lambda seed: native.default_generator(index()).manual_seed(seed),
        manual_seed_all=manual_seed_all,
        get_rng_state=lambda chosen=NAME: native.default_generator(index(chosen)).get_state(),
        set_rng_state=set_rng_state,
        memory_allocated=lambda chosen=None: native.bytes()[0],
        max_memory_allocated=lambda chosen=None: native.bytes()[1],
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
    )


# The lines of the book whose waits are left out now.
_left_out: set[str] = set()
_waited: set[str] = set()


def left_out() -> bool:
    """Whether one of the lines that ask for this wait is left out."""
    frame: Any = sys._getframe(2)
    lines = set()
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(str(BOOK)):
            lines.add(f"{path.rpartition('/')[2]}:{frame.f_lineno}")
        frame = frame.f_back
    _waited.update(lines)
    return not _left_out.isdisjoint(lines)


@contextmanager
def without(lines: Collection[str]) -> Iterator[None]:
    """In the block, what these lines of the book would wait for is not waited for."""
    wait = dist.Work.wait

    def wait_unless(work: Any, *args: Any) -> bool:
        return True if left_out() else wait(work, *args)

    _left_out.update(lines)
    load().drop_errors(bool(lines))
    try:
        with patch.object(dist.Work, "wait", wait_unless):
            yield
    finally:
        _left_out.clear()
        torch.late.synchronize()
        load().drop_errors(False)


@contextmanager
def waits() -> Iterator[set[str]]:
    """Collect the lines of the book that wait for something in the block."""
    _waited.clear()
    found: set[str] = set()
    with without(()):
        yield found
    found.update(_waited)


@contextmanager
def schedule(name: str) -> Iterator[None]:
    """Which streams run at once in the block, and not late: see `SCHEDULES`."""
    load().schedule(name)
    try:
        yield
    finally:
        load().schedule("late")
