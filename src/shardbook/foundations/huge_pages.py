r"""# Huge pages

> Fresh memory costs time for each page, so large vectors request pages of 2 MiB.

A unit's vectors are allocated before each use and freed after it. When a program
allocates memory, the operating system only reserves addresses. When the program first
writes to a *page*, usually of 4 KiB, the system interrupts it, finds a free page,
clears it, and resumes the program. A vector of 12.6 MB has 3,078 pages. If it is
allocated anew before each use, the first write through it is interrupted 3,078 times.

Linux also has *huge pages* of 2 MiB. Many distributions use them for memory whose owner
requests them, and the code below does. On systems and devices without huge pages the
request fails, and nothing changes.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache

from torch import Tensor

__all__ = ["ask_for_large_pages"]


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
    if storage.device.type != "cpu" or storage.nbytes() < _WORTH_ASKING:
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
