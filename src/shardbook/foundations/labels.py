r"""# Labels for a profiler

> A trace names what a unit is doing in the words of this book.

A profiler shows a training step as thousands of operations. To see whether a gather
hides behind the computation, you have to find it among them. So the library puts a
label around what it does with a unit, and the name of the unit stands in the label. In
a trace of stage 3, a part of a backward pass reads like this:

| label | what happens |
|---|---|
| `wait for blocks.2` | the computation [needs the unit](unit.py#Unit.wait), and waits until it is whole |
| `recompute blocks.2` | [a checkpoint](checkpointing.py) runs its function again |
| `gather blocks.1` | the unit that comes next is [gathered](unit.py#Unit.gather) ahead |
| `free blocks.2` | the unit [gives its memory back](unit.py#Unit.free) |
| `wait for the mean of blocks.3` | the exchange before this one [must end](unit.py#Unit.advance) |
| `reduce blocks.2` | the exchange of the unit's gradients [begins](unit.py#Unit.reduce) |

```python
with torch.profiler.profile() as profile:
    train_one_step()
profile.export_chrome_trace("step.json")
```

The labels are the same in all stages, like the steps that they name. In stages 1 and 2
the second `gather` of a step sends nothing, and in no stage but 3 does `free` give
memory back. A label covers the time of the host. On a GPU, the trace shows the work
that was queued under a label beside it, on the stream that it runs on.

PyTorch's `record_function` costs several microseconds for each block even where no
profiler listens, and each block is an operation that other programs may be watching. So
a label first asks whether a profiler runs. `python -m benchmarks.guards` measures what
that costs, with labels and without.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable

from torch.profiler import record_function

from shardbook.foundations.observers import observers
from shardbook.foundations.torch_private import profiler_runs

__all__ = ["label", "profiler_labels"]
# sidelit: show


class label:
    """A block that a trace shows under a name.

    >>> from torch.profiler import profile
    >>> with profile() as trace:
    ...     with label("gather", "blocks.0"):
    ...         pass
    >>> [event.name for event in trace.events()]
    ['gather blocks.0']

    :param action: what is done
    :param name: the name of the unit, or a function that finds one. It is called only
        where a profiler runs.
    """

    __slots__ = ("action", "name", "shown")

    # Whether this process labels anything.
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
    """Choose whether the traces of this process show labels. At the start they do.

    :param on: `False` for a trace of PyTorch's own names alone
    :raises TypeError: if it is neither `True` nor `False`
    """
    if not isinstance(on, bool):
        raise TypeError(f"profiler_labels({on!r}) is no choice; pass True or False")
    label.on = on
