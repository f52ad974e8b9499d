r"""# Labels for a profiler

> A profiler's trace names what each unit does, in the words of this book.

A profiler shows a training step as thousands of operations. To see whether a gather
hides behind the computation, you must find the gather among them. So the library labels
each action of a unit with the unit's name. In a trace of stage 3, a part of a backward
pass reads like this:

| label | action |
|---|---|
| `wait for blocks.2` | the computation [needs the unit](unit.py#Unit.wait), and waits for its gather |
| `recompute blocks.2` | [a checkpoint](checkpointing.py) runs its function again |
| `gather blocks.1` | the next unit is [gathered](unit.py#Unit.gather) early |
| `free blocks.2` | the unit [frees its memory](unit.py#Unit.free) |
| `wait for the mean of blocks.3` | the previous exchange [must end](unit.py#Unit.advance) |
| `reduce blocks.2` | the exchange of the unit's gradients [begins](unit.py#Unit.reduce) |

```python
with torch.profiler.profile() as profile:
    train_one_step()
profile.export_chrome_trace("step.json")
```

All stages use the same labels. In stages 1 and 2 the second `gather` of a step sends
nothing, and only in stage 3 does `free` free memory. A label covers time on the host.
On a GPU the trace shows the work that was queued under a label beside it, on the stream
on which this work runs.

PyTorch's `record_function` costs several microseconds for each block even if no
profiler runs, and each block is an operation that other programs may be watching. So a
label first checks whether a profiler runs. `python -m benchmarks.guards` measures the
cost of that check, with labels and without.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import record_function

from shardbook.foundations.observers import observers
from shardbook.foundations.torch_private import profiler_runs

__all__ = ["label", "profiler_labels"]


class label:
    """A block that a trace shows under a name.

    >>> from torch.profiler import profile
    >>> with profile() as trace:
    ...     with label("gather", "blocks.0"):
    ...         pass
    >>> [event.name for event in trace.events()]
    ['gather blocks.0']

    :param action: the action, such as `gather`
    :param name: the name of the unit, or a function that finds the name; it is called
        only while a profiler runs
    """

    __slots__ = ("action", "name", "shown")

    # Whether this process shows labels.
    on = True

    def __init__(self, action: str, name: str | Callable[[], str]) -> None:
        self.action, self.name = action, name
        self.shown: record_function | None = None

    def __enter__(self) -> None:
        if label.on and profiler_runs():
            name = self.name if isinstance(self.name, str) else self.name()
            self.shown = record_function(f"{self.action} {name}")
            self.shown.__enter__()
        for observer in observers:
            observer.begins(self.action, self.name)

    def __exit__(self, *error: object) -> None:
        for observer in observers:
            observer.ends(self.action, self.name)
        if self.shown is not None:
            self.shown.__exit__(*error)


# sidelit: depth Traces of PyTorch's own names alone.


def profiler_labels(on: bool) -> None:
    """Choose whether the traces of this process show labels, as they do at the start.

    :param on: `False` for a trace of PyTorch's own names alone
    :raises TypeError: if it is neither `True` nor `False`
    """
    if not isinstance(on, bool):
        raise TypeError(f"profiler_labels({on!r}) is no choice; pass True or False")
    label.on = on
