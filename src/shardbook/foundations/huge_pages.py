r"""# Large pages

> Memory that comes and goes costs time for each page, so large vectors ask for large pages.

A unit's vectors are taken before each use and given back after it. To the operating
system, memory that a program has just taken is a promise. Only when the program first
writes to a *page*, usually 4 KiB, does the system stop it, look for a free page, clear
it, and let it go on. A vector of 12.6 MB has 3,078 pages. If it is taken anew before
each use, the first pass over it is stopped 3,078 times.

Linux can also hand out *huge pages* of 2 MiB, and many distributions do so for memory
whose owner asks for them. This chapter asks. Where the system does not offer large
pages, on other systems and on other devices, the answer is no and nothing changes.
"""

# sidelit: hide
from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache

from torch import Tensor

__all__ = ["ask_for_large_pages"]
# sidelit: show


def ask_for_large_pages(tensor: Tensor) -> None:
    """Ask for large pages under a tensor that was just taken and not yet written.

    It is a request, and no result depends on the answer. A large page is taken whole at
    its first write, so up to 2 MiB are in use earlier than they would be. None is
    added: a large page is given only where all of it belongs to the same piece of
    memory.
    """
    storage = tensor.untyped_storage()
    # The storage of a tensor without memory says so, while the tensor itself may claim
    # to be on a CPU.
    if storage.device.type != "cpu" or storage.nbytes() < _WORTH_ASKING:
        return
    advise = advice()
    if advise is not None:
        # The request has to begin where a page begins.
        start = -(-storage.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
        stop = storage.data_ptr() + storage.nbytes()
        advise(start, stop - start, mmap.MADV_HUGEPAGE)


# Below this size a vector may not contain a single whole large page.
_WORTH_ASKING = 4 * 2**20


@cache
def advice() -> Callable[[int, int, int], int] | None:
    """The system's function, or `None` where there is none."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    advise: Callable[[int, int, int], int] = function
    return advise
