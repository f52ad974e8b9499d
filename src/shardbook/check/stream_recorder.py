r"""# Recording a run as if on a GPU

> The recorder runs a program on a CPU, and records the streams and allocations that a
> GPU would use.

The program really runs, on CPU tensors, and its results are right. In addition the
recorder writes [a list of events](stream_events.py) that a GPU would see. It models

- **kernels**: each operation of PyTorch is one kernel on the current stream. The
  operation's schema says which tensors it reads and writes. They are recorded by
  storage, so two parts of one storage count as the same memory. A backward pass runs on
  the stream of its forward pass, which in this library is the compute stream.
- **streams, events and NCCL**: [the modelled device](stream_device.py) records them. A
  synchronous collective runs on the current stream.
- **memory and the host**: [the next chapter](stream_memory.py) records both. Memory from
  `host_memory` is on the host, and so are tensors that PyTorch computes from it. All
  other tensors count as tensors of the device, and their `is_cpu` is false.

Other waits of the host are not modelled. For example, `item()` makes the host wait for
the stream. But a program whose order depends on an `item()` has a race as soon as the
`item()` is removed. So an `item()` counts only as a read.
"""

from __future__ import annotations

import functools
import gc
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor

from shardbook.check.stream_device import Stream, Work, at_work, device, recording
from shardbook.check.stream_events import HOST, NCCL
from shardbook.check.stream_memory import Recording
from shardbook.foundations import streams
from shardbook.foundations.torch_private import (
    TorchDispatchMode,
    cuda_sanitizer,
    schema_of,
    storage_id,
)
from shardbook.foundations.torch_versions import ALL_GATHER, REDUCE_SCATTER
from shardbook.parameters import host, offload
from shardbook.zero import unused

__all__ = ["Recorder"]

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
        for module in (host, offload, unused):
            change(patch.object(module, "host_memory", self.on_host(host.host_memory)))
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
        for kept in (streams.streams, host.road):
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
