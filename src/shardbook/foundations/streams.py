r"""# Streams and huge pages

> Exchanges run while modules compute, and the work around each exchange has streams of its own.

A GPU runs the work that is queued on one *stream* in order. Work on two streams may run
in any order, or at the same time. Modules compute on the *compute stream*, which is the
current stream when the model is called. (The word has nothing to do with the
[streaming](streaming.py) of a model.)

The exchanges themselves run on a stream of the backend, one after the other in the
order in which they are issued. This library has two more streams, one for gathers and
one for the exchanges of gradients. They hold the work around an exchange: its waits,
casts, sums and copies. If this work were on the compute stream, it would hold up all
computation that is queued after it. But the streams alone do not make an exchange
overlap. The overlap comes from *when* the exchange is issued: a gather that is issued
one unit early has the time of one unit to arrive.

**Several compute streams.** A program may run two branches of its model on two streams,
or its optimizer on a third. Autograd runs each backward operation on the stream of its
forward operation. So the hooks of this library may find another current stream at each
call. They share tensors, such as the vector that collects a unit's gradients, which
would be written on one stream and read on another without any order. Therefore each
hook first makes the current stream wait for the one that was current before. If there
is only one stream, nothing waits.

**Several devices.** The *current* stream of a program is that of the current device,
which need not be the device of a given tensor. A wait for the wrong device's stream
would order nothing. So every call below names its device.

On a CPU the same calls exist and do nothing, because the thread itself keeps the order.
There another cost holds up the computation. The system provides fresh memory page by
page, while the program writes to it, and [huge pages](#module/huge-pages) lower this
cost.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "ask_for_large_pages",
    "compute_stream",
    "current_stream",
    "give_back",
    "host_waits_for_current_stream",
    "streams",
]


@cache
def streams(device: torch.device) -> tuple[Any, Any]:
    """The gather stream and the reduce stream of a device, shared by all units.

    One stream for each kind of exchange is enough, since the backend runs one exchange
    after the other.
    """
    module = torch.get_device_module(device)
    return module.Stream(device), module.Stream(device)


def current_stream(device: torch.device) -> Any:
    """The stream on which this thread's next operation on a device will run."""
    return torch.get_device_module(device).current_stream(device)


# The streams on which each device has computed, the latest one last.
users: dict[torch.device, list[Any]] = {}


def compute_stream(device: torch.device) -> Any:
    """The current stream, ordered after the one that was current at the previous call.

    If the two differ, the current stream waits for the previous one.
    """
    now = torch.get_device_module(device).current_stream(device)
    known = users.setdefault(device, [])
    if known == [now]:
        return now
    if known and known[-1] != now:
        # Without this wait an optimizer on a stream of its own could read gradients
        # that have not arrived, and the next gather could send the weights of the step
        # before.
        now.wait_stream(known[-1])
    users[device] = [*(other for other in known if other != now), now]
    return now


def give_back(device: torch.device) -> None:
    """Order the streams after memory was freed.

    The allocator gives a block to the next user on the stream *for which it was
    allocated*. That may be another stream than the one that has used the block last.
    """
    now = compute_stream(device)
    for other in users[device][:-1]:
        # Without this wait a branch of the model could compute in the memory of a unit
        # that another branch still reads.
        other.wait_stream(now)


# sidelit: depth Offload, where the calling thread reads what a device has copied.


def host_waits_for_current_stream(device: torch.device) -> None:
    """Make this thread wait until the device has done all work that is queued on its
    current stream.

    A wait between two streams holds up no thread. But before a thread reads a copy on
    the host, the thread itself has to wait.
    """
    done = torch.get_device_module(device).Event()
    done.record(current_stream(device))
    done.synchronize()


# sidelit: core


# ## Huge pages
#
# > Fresh memory costs time for each page, so large vectors request pages of 2 MiB.
#
# A unit's vectors are allocated before each use and freed after it. When a program
# allocates memory, the operating system only reserves addresses. When the program first
# writes to a *page*, usually of 4 KiB, the system interrupts it, finds a free page,
# clears it, and resumes the program. A vector of 12.6 MB has 3,078 pages. If it is
# allocated anew before each use, the first write through it is interrupted 3,078 times.
#
# Linux also has *huge pages* of 2 MiB. Many distributions use them for memory whose owner
# requests them, and the code below does. On systems and devices without huge pages the
# request fails, and nothing changes.


def ask_for_large_pages(tensor: Tensor) -> None:
    """Request huge pages for a tensor that was just allocated and not yet written.

    No result depends on whether the system grants the request. A huge page is taken
    whole at its first write, so up to 2 MiB are in use earlier than otherwise. The
    total does not grow: the system uses a huge page only where all of it belongs to the
    same block of memory.
    """
    storage = tensor.untyped_storage()
    # The storage reports that a tensor has no memory, while the tensor itself may still
    # report a CPU.
    if storage.nbytes() < _WORTH_ASKING or storage.device.type != "cpu":
        return
    advise = advice()
    if advise is not None:
        # The request must begin at the start of a page.
        start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = storage.data_ptr() + storage.nbytes()
        advise(start, stop - start, mmap.MADV_HUGEPAGE)


# A smaller vector may not contain a single whole huge page.
_WORTH_ASKING = 4 * 2**20


@cache
def advice() -> Callable[[int, int, int], int] | None:
    """The system's `madvise`, or `None` if there is none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advise: Callable[[int, int, int], int] = function
    return advise
