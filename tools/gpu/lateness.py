"""What a rank does to show that streams are ordered: it makes one side late, leaves waits out, or watches.

Each is called on a rank:

    with late("compute", "cuda"), without({"host.py:118"}, "cuda"):
        ...  # the compute stream is late, and what this line of the library would wait for is not waited for
    found = sanitizer(by_storage=False)  # from now on PyTorch's sanitizer collects races here
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from book.programs import Block, Model
from book.waits import BOOK
from shardbook.foundations.torch_private import ALL_GATHER, REDUCE_SCATTER

# Which side is late: the streams beside the compute stream, the compute stream, the first or the last rank.
SIDE, COMPUTE, FIRST, LAST = "side", "compute", "first", "last"
LATE = {SIDE: 0.004, COMPUTE: 0.01, FIRST: 0.008, LAST: 0.008}  # seconds, at each place


@contextmanager
def late(order: str, kind: str) -> Iterator[None]:
    """A block in which one side is late."""
    with ExitStack() as patches:
        change = patches.enter_context
        if kind == "late":
            from device import runtime

            change(runtime.schedule(runtime.SCHEDULES[order == COMPUTE]))
        elif order == SIDE:
            change(patch.object(torch.cuda, "set_stream", partial(set_stream, torch.cuda.set_stream)))
        elif order == COMPUTE:
            # The host goes ahead of the device as far as it can.
            change(patch.object(Tensor, "to", going_ahead(Tensor.to)))
            change(patch.object(Tensor, "backward", preceded(Tensor.backward, lambda: sleep(COMPUTE))))
            hooks = nn.modules.module.register_module_forward_pre_hook(sleep_before)
            patches.callback(hooks.remove)
            patches.callback(register_optimizer_step_pre_hook(lambda *_: sleep(COMPUTE)).remove)
        elif dist.get_rank() == (0 if order == FIRST else dist.get_world_size() - 1):
            for name in (ALL_GATHER, REDUCE_SCATTER, "all_to_all_single", "all_reduce", "broadcast"):
                wait = partial(time.sleep, LATE[order])
                change(patch.object(dist, name, preceded(getattr(dist, name), wait)))
        yield


def set_stream(original: Callable[[Any], None], stream: Any) -> None:
    """Make a stream current. Work that is queued on one beside the default stream comes late."""
    original(stream)
    if stream is not None and stream.stream_id:
        sleep(SIDE)


def sleep(order: str) -> None:
    """Keep the current stream busy."""
    torch.cuda._sleep(int(LATE[order] * cycles_per_second()))


@cache
def cycles_per_second() -> float:
    """How many cycles of the device a second has."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    begin.record()
    torch.cuda._sleep(10_000_000)
    end.record()
    torch.cuda.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return 1e10 / max(milliseconds, 0.1)


def sleep_before(module: nn.Module, _: Any) -> None:
    if isinstance(module, Model | Block | nn.Sequential):
        sleep(COMPUTE)


def preceded(original: Callable[..., Any], act: Callable[[], None]) -> Callable[..., Any]:
    """A function, before which something else happens."""

    def call(*args: Any, **options: Any) -> Any:
        act()
        return original(*args, **options)

    return call


def going_ahead(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.to` that makes the host wait for no stream when tokens go to the device."""

    def to(tensor: Tensor, *args: Any, **options: Any) -> Any:
        place = args[0] if args else options.get("device")
        if tensor.is_cpu and not tensor.is_floating_point() and getattr(place, "type", "") == "cuda":
            return original(tensor.pin_memory(), *args, **{**options, "non_blocking": True})
        return original(tensor, *args, **options)

    return to


@contextmanager
def without(lines: Collection[str], kind: str) -> Iterator[None]:
    """A block in which what these lines of the library would wait for is not waited for."""
    if kind == "late":
        from device import runtime

        with runtime.without(lines):
            yield
        return
    stream, event = torch.cuda.Stream, torch.cuda.Event
    names: list[tuple[Any, str]] = [(stream, name) for name in ("wait_stream", "wait_event", "synchronize")]
    names += [(event, "wait"), (event, "synchronize"), (dist.Work, "wait")]
    with ExitStack() as patches:
        for owner, name in names if lines else ():
            patches.enter_context(patch.object(owner, name, unless(getattr(owner, name), lines)))
        try:
            yield
        finally:
            torch.cuda.synchronize()


def unless(original: Callable[..., Any], lines: Collection[str]) -> Callable[..., Any]:
    """A wait that these lines do not get."""

    def wait(*args: Any, **options: Any) -> Any:
        frame: Any = sys._getframe(1)
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith(str(BOOK)) and f"{path.rpartition('/')[2]}:{frame.f_lineno}" in lines:
                return True
            frame = frame.f_back
        return original(*args, **options)

    return wait


# --- The sanitizer ---


def sanitizer(*, by_storage: bool) -> list[Any]:
    """Let PyTorch's sanitizer watch this process from now on. It only collects the races that it finds.

    :param by_storage: whether two views of one storage count as the same memory, and not only two tensors
        that begin at one address
    """
    from torch.cuda import _sanitizer

    handler: Any = _sanitizer.ArgumentHandler
    if not collected:
        collected.append([])
        events: Any = _sanitizer.cuda_sanitizer.dispatch.event_handler
        launch, one_address = events._handle_kernel_launch, handler._handle_argument

        def collect(*access: Any) -> list[Any]:
            collected[0].extend(launch(*access))
            return []

        events._handle_kernel_launch = collect
        handler.one_address = one_address
        _sanitizer.enable_cuda_sanitizer()
    handler._handle_argument = whole_storage if by_storage else handler.one_address
    return collected[0]


collected: list[list[Any]] = []


def whole_storage(
    handler: Any,
    value: Any,
    is_write: bool,
    metadata_only: bool,
    name: str | None = None,
    is_output: bool = False,
) -> None:
    """What the sanitizer does with an argument, by the address of its storage."""
    address = value.untyped_storage().data_ptr() if isinstance(value, Tensor) and value.is_cuda else 0
    # Without memory, as a unit that is freed, it has no values that could race.
    if not address or not value.numel():
        return
    if is_write:
        handler.dataptrs_written.add(address)
    elif not metadata_only:
        handler.dataptrs_read.add(address)
    handler.tensor_aliases.setdefault(address, []).append(name or "")
    if is_output:
        handler.outputs.add(address)


def told(race: Any) -> str:
    """The two accesses of a race."""
    return " not ordered after ".join(map(access, (race.current_access, race.previous_access)))


def access(one: Any) -> str:
    """An access with the innermost line of the library that asked for it."""
    lines = [frame for frame in one.stack_trace if frame.filename.startswith(str(BOOK))]
    place = f", {lines[-1].filename.rpartition('/')[2]}:{lines[-1].lineno}" if lines else ""
    return f"{one.type} {str(one.operator).partition('(')[0]} on stream {one.stream}{place}"
