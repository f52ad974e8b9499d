r"""# Starting ranks from a notebook

> One call runs a function on several ranks, shows what they print, and returns their
> results.

```python
def mean(x):
    value = torch.tensor(x + labs.rank())
    dist.all_reduce(value)
    print("the sum is", value.item())
    return value.item() / dist.get_world_size()

labs.ranks(2, mean, 10.0)
```

The cell shows `rank 0 | the sum is 21.0`, the same line of rank 1, and the list `[10.5,
10.5]`. In the function `torch.distributed` is initialised: `torchrun` would start the
same processes, but it needs a file, and it prints into a terminal.

The call works in Jupyter, Colab, VS Code and a plain script, with functions and classes
from the cells, and after a backward pass. The ranks are processes that a
[fork server](forkserver.py) forks.

Where they compute depends on the machine. With a GPU for each rank they use NCCL. If
there are fewer GPUs, the ranks share them, and gloo connects them. Without a GPU they
compute on the CPU, with one thread each.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from shardbook.foundations import ranks as launcher
from shardbook.foundations.ranks import Server, Task
from shardbook.labs.rank_process import RanksFailed, Results, begin, dumps
from shardbook.labs.words import Waiting, language, say, tell

__all__ = ["SERVER", "ranks", "warm_up"]

Result = TypeVar("Result")


def ranks(
    count: int, function: Callable[..., Result], *arguments: Any, timeout: float = 120
) -> list[Result]:
    """Call `function(*arguments)` on `count` ranks at once.

    The function and its arguments reach each rank as a copy, and so do the variables
    that the function uses. Every rank begins with the same random seed. What a rank
    prints appears at once, with its number before each line. After a million characters of
    a rank, its further lines are only counted.

    :param count: the number of ranks, at least 1
    :param function: may be defined in a cell
    :param timeout: seconds after which ranks that still run are ended, counted from the
        moment at which all of them have begun
    :returns: the results, in the order of the ranks
    :raises RanksFailed: if a rank raised an error, died, or did not return in time
    :raises TypeError: if the function or an argument cannot be sent to another process
    :raises RuntimeError: if no ranks can be started here
    """
    if count < 1:
        raise ValueError(f"count is {count}, but at least one rank must be started")
    if not hasattr(os, "fork"):
        raise RuntimeError(
            tell("Ranks need Linux or macOS. On Windows, start the lab in WSL.")
        )
    if dist.is_initialized():
        raise RuntimeError(
            tell("This process is a rank already, and a rank cannot start others.")
        )
    backend = "nccl" if count <= gpus() else "gloo"
    task = Task(
        count,
        pickled(function, arguments),
        backend,
        timeout,
        begin=functools.partial(
            begin, gpus=gpus(), backend=backend, language=language()
        ),
        dumps=dumps,
    )
    waiting = Waiting(tell("the ranks compute"))
    try:
        return Results(SERVER.run(task, show_lines, waiting.tick))
    except launcher.RanksFailed as failed:
        raise RanksFailed(failed.outcomes) from None
    except launcher.ServerEnded as ended:
        raise RuntimeError(
            tell(
                "The process that starts the ranks ended with exit code {code}.",
                code=ended.code,
            )
        ) from ended
    finally:
        waiting.close()
        # After Ctrl-C the next server imports PyTorch while the reader still reads.
        warm_up()


# All ranks import what a rank of a lab needs.
SERVER = Server(["shardbook.labs.rank_process"])


def warm_up() -> None:
    """Start the server, so that it can import PyTorch while the reader still reads."""
    if hasattr(os, "fork"):
        SERVER.start()


def show_lines(number: int, lines: list[str] | int) -> None:
    """Print what a rank has printed, with its number before each line."""
    prefix = tell("rank {number}", number=number)
    if isinstance(lines, int):
        lines = [tell("… and {count:,} more lines.", count=lines)]
    say("\n".join(f"{prefix} | {line}" for line in lines))


def pickled(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """The objects that a rank unpickles."""
    try:
        return dumps((function, arguments))
    # Each class raises an error of its own if its objects cannot be copied.
    except Exception as error:
        raise TypeError(
            tell(
                "{function} or one of its arguments cannot be sent to a rank: {error}",
                function=getattr(function, "__name__", function),
                error=error,
            )
        ) from error


def gpus() -> int:
    """The number of GPUs that the ranks may use."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
