r"""# Streams

> Exchanges run beside the computation, each kind on a stream of its own.

A GPU carries out what is queued on one *stream* in order. Work on two streams may run
in any order, also at the same time. The modules compute on the *compute stream*, the
one that is current when the model is called. A gather that was queued there would start
only after all computation before it, and all computation after it would wait for the
gather. So gathers have a stream of their own, and so have the exchanges of gradients.
Whatever one stream needs of another it has to wait for, and each such wait stands
beside the reason for it.

On a CPU the same calls exist and do nothing. There is one stream, and it is the thread.
"""

# sidelit: hide
from __future__ import annotations

from functools import cache
from typing import Any

import torch

__all__ = ["host_waits_for_current_stream", "streams"]
# sidelit: show


@cache
def streams(device: torch.device) -> tuple[Any, Any]:
    """The gather stream and the reduce stream of a device, shared by all units.

    One stream for each kind of exchange is enough, since the backend carries out one
    exchange after the other.
    """
    module = torch.get_device_module(device)
    return module.Stream(), module.Stream()


def host_waits_for_current_stream(device: torch.device) -> None:
    """Let this thread wait until the device has done all that its current stream was
    given before this call.

    A wait between two streams holds up no thread. The thread itself has to wait when it
    is about to read what a device has copied to the host.
    """
    module = torch.get_device_module(device)
    done = module.Event()
    done.record(module.current_stream())
    done.synchronize()
