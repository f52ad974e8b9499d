r"""# Streams

> Exchanges run beside the computation, each kind on a stream of its own.

A GPU carries out what is queued on one *stream* in order, and what is queued on two
streams in any order. The modules compute on the *compute stream*, the one that is
current when the model is called. A gather must not hold up the computation that was
queued before it, so it has a stream of its own, and so has the exchange of gradients.
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
    """Let this thread wait until everything is done that is queued there so far.

    The waits between streams hold up no thread. The host needs this one when it is
    about to read itself what a device has copied to it.
    """
    module = torch.get_device_module(device)
    done = module.Event()
    done.record(module.current_stream())
    done.synchronize()
