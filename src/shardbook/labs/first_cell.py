r"""# The first cell of a lab

> A lab begins with a look at the machine: what is installed, how many cores and GPUs
> there are, and where its ranks will run.

```
Python 3.11.7, PyTorch 2.13.0, CPU cores: 2, no GPU
A lab starts 2 to 4 ranks, on the CPU. gloo connects them.
The random seed is 0, here and in every rank.
The language is en. For another one of en, ja, zh, set SHARDBOOK_LANG.
```

A lab runs on every such machine without a changed line, but it is slower on some, and a
plot may be missing. So a sentence below the list says what is missing, before the reader
waits for it. Nothing is downloaded.

The cell also starts the [server of the ranks](rank_server.py). It imports PyTorch while
the reader reads the first paragraph.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import random
import sys
from collections.abc import Iterator
from types import TracebackType

import torch

from shardbook.labs.checks import NotYet
from shardbook.labs.lab_language import language, spoken
from shardbook.labs.lab_ranks import gpus, warm_up
from shardbook.labs.plots import show_as_svg
from shardbook.labs.rank_outcomes import RanksFailed
from shardbook.labs.rank_process import SEED
from shardbook.labs.words import tell

__all__ = ["begin"]


def begin() -> None:
    """Prepare the lab, and print what was found."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    show_sentences_alone()
    if importlib.util.find_spec("matplotlib"):
        show_as_svg()
    warm_up()
    for line in (*found(), *missing()):
        print(line)


def found() -> Iterator[str]:
    """What a lab has to work with."""
    count = gpus()
    devices = (
        tell("GPUs: {count} ({name})", count=count, name=torch.cuda.get_device_name(0))
        if count
        else tell("no GPU")
    )
    python, cores = (
        platform.python_version(),
        tell("CPU cores: {count}", count=cpu_cores()),
    )
    yield f"Python {python}, PyTorch {torch.__version__}, {cores}, {devices}"
    if count == 0:
        yield tell("A lab starts 2 to 4 ranks, on the CPU. gloo connects them.")
    elif count == 1:
        yield tell(
            "A lab starts 2 to 4 ranks, which share the GPU. gloo connects them."
        )
    else:
        yield tell(
            "A lab starts 2 to 4 ranks. Up to {count} have a GPU each, and NCCL connects "
            "them. More ranks share the GPUs, and gloo connects them.",
            count=count,
        )
    yield tell("The random seed is {seed}, here and in every rank.", seed=SEED)
    yield tell(
        "The language is {language}. For another one of {codes}, set SHARDBOOK_LANG.",
        language=language(),
        codes=", ".join(spoken()),
    )


def missing() -> Iterator[str]:
    """What a lab will do without, a sentence each."""
    if not hasattr(os, "fork"):
        yield tell("Ranks need Linux or macOS. On Windows, start the lab in WSL.")
    if cpu_cores() == 1:
        yield tell("The ranks share one core, so a lab takes longer than it says.")
    if importlib.util.find_spec("matplotlib") is None:
        yield tell("matplotlib is missing: pip install 'shardbook[notebooks]'")


def cpu_cores() -> int:
    """The cores that this process may use, which a container may limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# sidelit: depth In a script, a check says its sentences without a traceback, too.


def show_sentences_alone() -> None:
    """Let Python print the errors of a lab as a notebook shows them."""
    before = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, NotYet | RanksFailed):
            print(*error._render_traceback_(), sep="\n", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = hook
