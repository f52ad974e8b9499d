r"""# A progress bar

> A loop that takes longer than a second shows how far it is, and the bar leaves nothing
> behind.

```python
for step in labs.progress(range(200), "training"):
    ...
```

The bar is that of [tqdm](https://tqdm.github.io). Left to itself, tqdm writes to
`stderr`, and a notebook shows that in red. It also starts a thread, and on some systems
a process. This one writes to `stdout`, and it starts neither.

At the end the bar is removed, since the time in it is another one in each run. So what
a cell shows afterwards does not depend on how fast it was.

There is a bar in a notebook and in a terminal. In a file and in a rank it would be many
lines of text, so there is none. While ranks compute, the notebook shows the time that
they have taken. In a loop with a bar, that bar shows it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from typing import Any, ClassVar, TypeVar
from weakref import WeakSet

import torch.distributed as dist
from tqdm.std import tqdm

__all__ = ["Waiting", "progress", "say"]

Item = TypeVar("Item")

# Seconds until the bar appears.
DELAY = 1.0
# Signs in a line. A notebook does not say how wide it is.
WIDTH = 72


class Bar(tqdm):  # type: ignore[misc]
    """A bar without a thread that watches it."""

    monitor_interval = 0
    shown: ClassVar[WeakSet[Bar]] = WeakSet()

    def __init__(self, *items: Any, **options: Any) -> None:
        super().__init__(*items, **options)
        if not self.disable:
            self.shown.add(self)

    def close(self) -> None:
        """Remove the bar."""
        self.shown.discard(self)
        super().close()


# The usual lock is shared with other processes, and some systems start one to free it.
Bar.set_lock(threading.RLock())


def progress(
    items: Iterable[Item], text: str = "", total: int | None = None
) -> Iterable[Item]:
    """The same items, and a bar that grows while they are taken.

    :param text: stands before the bar
    :param total: the number of items, if `len(items)` is not known

    >>> sum(progress(range(4)))
    6
    """
    bar: Any = Bar(
        items,
        desc=text or None,
        total=total,
        file=sys.stdout,
        disable=not is_watched(),
        delay=DELAY,
        ncols=WIDTH,
        leave=False,
    )
    return bar  # type: ignore[no-any-return]


class Waiting:
    """A line with the seconds that something takes, after the first of them.

    :param text: stands before the time
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.appears = time.monotonic() + DELAY
        self.bar: Any = None

    def tick(self) -> None:
        """Show the time that has passed until now."""
        if time.monotonic() < self.appears or not is_watched():
            return
        if not Bar.shown:
            self.bar = Bar(
                desc=self.text,
                bar_format="{desc}: {elapsed}",
                file=sys.stdout,
                leave=False,
            )
            # The time counts from the beginning, and not from the first sight of it.
            self.bar.start_t -= DELAY
        for bar in list(Bar.shown):
            bar.refresh()

    def close(self) -> None:
        """Remove the line."""
        if self.bar is not None:
            self.bar.close()


def say(line: str) -> None:
    """Print a line above the bars."""
    Bar.write(line, file=sys.stdout)
    sys.stdout.flush()


def is_watched() -> bool:
    """Whether somebody sees a line that is written over."""
    if dist.is_initialized():
        return False
    ipython = sys.modules.get("IPython")
    return sys.stdout.isatty() or bool(ipython and ipython.get_ipython())
