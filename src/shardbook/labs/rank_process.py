r"""# A rank of a lab

> A rank of a lab takes over the seed and the device that the lab promises, and its errors
> are shown in the reader's lines.

The function of a lab arrives as bytes, because it was defined in a cell, and no other
process could import it. So [cloudpickle](https://github.com/cloudpipe/cloudpickle) writes the
code itself into these bytes, with the classes, the modules and the variables that it uses.
What a rank returns goes back in the same form.

The process of a rank, with its output, its time limit and its end, is that of [every rank on
this machine](forkserver.py). If ranks fail, [one message](#module/how-the-ranks-of-a)
shows the errors of all of them.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import TypeVar

import cloudpickle
import torch
import torch.distributed as dist

from shardbook.check.watches import is_users
from shardbook.foundations.ranks import Ended, Outcome, Raised, Stuck
from shardbook.labs.words import line_of, own, show, tell

__all__ = [
    "SEED",
    "Ended",
    "Outcome",
    "Raised",
    "RanksFailed",
    "Results",
    "Stuck",
    "begin",
    "device",
    "dumps",
    "left_blank",
    "rank",
    "who",
]

# Every rank begins with the same random numbers, and a lab gives the same results each
# time. A rank that needs others adds its number: `torch.manual_seed(SEED + rank())`.
SEED = 0


def begin(number: int, gpus: int, backend: str, language: str) -> torch.device | None:
    """What a rank does before it joins the process group.

    :param gpus: how many there are; 0: the ranks compute on the CPU
    :param language: in which the notebook speaks
    :returns: the device to which NCCL binds the group
    """
    os.environ["SHARDBOOK_LANG"] = language
    torch.set_num_threads(1)
    # An error is shown once. PyTorch would repeat it in a warning if a hook raises it
    # again.
    warnings.filterwarnings("ignore", "module forward hook with ``always_call")
    if gpus:
        torch.cuda.set_device(number % gpus)
    torch.manual_seed(SEED)
    random.seed(SEED)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(SEED)
    return device() if backend == "nccl" else None


def dumps(value: object) -> bytes:
    """A value as bytes, even if it was defined in a cell."""
    return bytes(cloudpickle.dumps(value))


def rank() -> int:
    """The number of this rank.

    :raises RuntimeError: outside of the function that [`labs.ranks`](lab_ranks.py#ranks)
        runs
    """
    if not dist.is_initialized():
        raise RuntimeError(
            "this process is no rank; labs.rank() has a value in a function that labs.ranks runs"
        )
    return dist.get_rank()


def device() -> torch.device:
    """Where to compute: in a rank its GPU, elsewhere the first GPU. Without a GPU, the
    CPU.

    >>> device().type in ("cpu", "cuda")
    True
    """
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", torch.cuda.current_device())


# ## How the ranks of a lab ended
#
# > A failed lab shows the errors of all ranks at once, and begins with the rank that
# > failed first.
#
# When one rank raises an error, the other ranks wait for it in a collective, and fail a
# moment later because a connection was closed. That error says nothing about the cause.
# So the message begins with the first failure, and ranks that ended in the same way share
# one paragraph:
#
# ```
# RanksFailed: rank 1 failed first.
#
# rank 1:
#   Cell In[4], line 3 (work)
#     part = rows[rank + 1]
# IndexError: list index out of range
#
# ranks 0, 2, 3:
#   Cell In[4], line 4 (work)
#     dist.all_reduce(part)
# It lost the connection to a rank that had failed.
# ```
#
# A rank may also end without an error, because the operating system killed it, or it may
# not end at all. Then the message has its exit code, or the lines at which it stands.


Returned = TypeVar("Returned")


def told(failure: Raised | Ended | Stuck | None) -> str:
    """How a rank failed: the lines where it was, and what happened there."""
    match failure:
        case Raised():
            return told_error(failure)
        case Ended():
            what = told_end(failure.code)
        case Stuck(seconds=None):
            what = tell("It was still running when another rank failed.")
        case Stuck():
            what = tell(
                "It was still running after {seconds:g} s.", seconds=failure.seconds
            )
        case None:
            return ""
    return "\n".join([*([show(failure.frames)] if failure.frames else []), what])


def told_error(error: Raised) -> str:
    """An error, below the one that it was raised from."""
    first = (
        f"{told_error(error.cause)}\n{tell('and from that:')}\n" if error.cause else ""
    )
    # An error has no frames if it arose before the function was called.
    lines = [show(error.frames)] if error.frames else []
    head = f"{error.kind}: {error.text}" if error.text else error.kind
    return first + "\n".join([*lines, head])


def told_end(code: int) -> str:
    """Why a process ended that has said nothing."""
    if code == -signal.SIGKILL:
        return tell(
            "The process was killed by SIGKILL, perhaps because memory ran out."
        )
    if code < 0:
        name = signal.Signals(-code).name
        return tell("The process was ended by {signal}.", signal=name)
    return tell(
        "The process ended with exit code {code} before it returned.", code=code
    )


def left_blank(failure: Raised | Ended | Stuck | None) -> bool:
    """Whether a rank came to a line that the reader has not written yet."""
    return (
        isinstance(failure, Raised)
        and (failure.kind, failure.text) == (NotImplementedError.__name__, "")
        and bool(failure.frames)
        and is_users(failure.frames[-1].file)
    )


class Results(list[Returned]):
    """What the ranks returned, in their order."""

    def _ipython_display_(self) -> None:
        """Show nothing in a notebook if no rank returned anything."""
        # So IPython is told to show the list as it shows any other.
        if any(result is not None for result in self):
            raise NotImplementedError


class RanksFailed(Exception):
    """At least one rank raised an error, died, or did not end in time.

    :param outcomes: of all ranks that failed, the first failure at the head
    """

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes = list(outcomes)
        super().__init__(story(self.outcomes))

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows instead of the frames of the kernel's own process."""
        return f"{type(self).__name__}: {self}".splitlines()


def story(outcomes: Sequence[Outcome]) -> str:
    """What happened, rank by rank. Equal stories are told once."""
    first, *others = outcomes
    groups = {told(first.failure): [first.rank]}
    for outcome in others:
        groups.setdefault(as_follower(outcome), []).append(outcome.rank)
    if isinstance(first.failure, Stuck) and first.failure.seconds is not None:
        head = tell(
            "no result after {seconds:g} s, so the ranks were ended.",
            seconds=first.failure.seconds,
        )
    else:
        head = tell("rank {rank} failed first.", rank=first.rank)
    return "\n\n".join(
        [head, *(f"{who(ranks)}:\n{text}" for text, ranks in groups.items())]
    )


def as_follower(outcome: Outcome) -> str:
    """The story of a rank that was not the first to fail.

    gloo tells the addresses of a lost connection and a guess about the reason. The
    reason is known here.
    """
    failure = outcome.failure
    if isinstance(failure, Raised) and failure.lost_connection:
        what = tell("It lost the connection to a rank that had failed.")
        return "\n".join([*map(line_of, own(failure.frames)), what])
    return told(failure)


def who(ranks: Sequence[int]) -> str:
    """Some ranks, by their numbers.

    >>> who([1]), who([2, 0])
    ('rank 1', 'ranks 0, 2')
    """
    numbers = ", ".join(map(str, sorted(ranks)))
    if len(ranks) == 1:
        return tell("rank {number}", number=numbers)
    return tell("ranks {numbers}", numbers=numbers)
