r"""# A ring

> A buffer that forgets what is oldest.

A ring of $N$ places keeps the last $N$ items [^kept]. [The window](tools/window.py#Window) reads it, and the
idea is old [as a paper tells](bib:knuth1973art).

| operation | cost |
|---|---|
| put | $O(1)$ |
| read | $O(N)$ |

[^kept]: Older items are gone.

:notation $N$: `size`, the number of places
"""

# sidelit: hide
from __future__ import annotations

__all__ = ["Ring"]
# sidelit: show

from collections import deque


class Ring:
    """Keeps the last items, in the order in which they came.

    !!! warning
        A ring of size 0 keeps nothing.
    """

    def __init__(self, size: int) -> None:
        """Make an empty ring.

        :param size: how many items it keeps.
        """
        # A bounded deque drops items at its other end, which is all a ring has to do.
        self._items: deque[object] = deque(maxlen=size)

    def put(self, item: object) -> None:
        """Add an item; see [why it is cheap](#Ring.__init__).

        >>> ring = Ring(1)
        >>> ring.put("a < b & c")
        """
        self._items.append(item)


# # A heading of its own
#
# A comment may begin with a heading.
LIMIT = 8
