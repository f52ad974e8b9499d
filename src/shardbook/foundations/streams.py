r"""# Streams

> Exchanges run beside the computation, and what they wait for has streams of its own.

A GPU carries out what is queued on one *stream* in order. Work on two streams may run
in any order, also at the same time. The modules compute on the *compute stream*, the
one that is current when the model is called. (The word has nothing to do with the
[streaming](streaming.py) of a model.)

The exchanges themselves run on a stream of the backend's, one after the other in the
order in which they are issued. Two more streams belong to this library, one for gathers
and one for the exchanges of gradients. They hold what surrounds an exchange: its waits,
casts, sums and copies. On the compute stream each of these would hold up all
computation that is queued after it. The overlap itself comes from *when* an exchange is
issued: a gather that is issued one unit early has the time of one unit to arrive.

**Several compute streams.** A program may run two branches of its model on two streams,
or its optimizer on a third. Autograd runs each backward operation on the stream of its
forward operation. So the hooks of this library may find another current stream at each
call, and what they share, such as the vector that collects a unit's gradients, would be
written on one and read on another without order. Therefore each of them first lets the
current stream wait for the one that was current before. Where there is only one,
nothing waits.

**Several devices.** What a program calls the *current* stream is the stream of the
current device, and that need not be the one on which a tensor lies. A wait there would
order nothing. So every call below names its device.

On a CPU the same calls exist and do nothing. There is one stream, and it is the thread.
"""

# sidelit: hide
from __future__ import annotations

from functools import cache
from typing import Any

import torch

__all__ = [
    "compute_stream",
    "current_stream",
    "give_back",
    "host_waits_for_current_stream",
    "streams",
]
# sidelit: show


@cache
def streams(device: torch.device) -> tuple[Any, Any]:
    """The gather stream and the reduce stream of a device, shared by all units.

    One stream for each kind of exchange is enough, since the backend carries out one
    exchange after the other.
    """
    module = torch.get_device_module(device)
    return module.Stream(device), module.Stream(device)


def current_stream(device: torch.device) -> Any:
    """The stream on which this thread's next operation on a device will run."""
    return torch.get_device_module(device).current_stream(device)


# The streams on which each device has computed, the latest user last.
users: dict[torch.device, list[Any]] = {}


def compute_stream(device: torch.device) -> Any:
    """The current stream. It waits for the stream that was current when this function was
    called before, if that was another.
    """
    now, known = current_stream(device), users.setdefault(device, [])
    if known and known[-1] != now:
        # Without this line an optimizer on a stream of its own could read gradients
        # that are not there yet, and the next gather could send the weights of the step
        # before.
        now.wait_stream(known[-1])
    users[device] = [*(other for other in known if other != now), now]
    return now


def give_back(device: torch.device) -> None:
    """Call this after memory was given back to the allocator.

    The allocator gives a block to the next user on the stream *from which it was
    taken*, and that may be another than the one that has used it last.
    """
    now = compute_stream(device)
    for other in users[device][:-1]:
        # Without this line a branch of the model could compute in the memory of a unit
        # that another branch still reads.
        other.wait_stream(now)


# sidelit: depth Offload, where the calling thread reads what a device has copied.


def host_waits_for_current_stream(device: torch.device) -> None:
    """Let this thread wait until the device has done all that its current stream was
    given before this call.

    A wait between two streams holds up no thread. The thread itself has to wait when it
    is about to read what a device has copied to the host.
    """
    done = torch.get_device_module(device).Event()
    done.record(current_stream(device))
    done.synchronize()
