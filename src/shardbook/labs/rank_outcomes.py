r"""# How the ranks of a lab ended

> A failed lab shows the errors of all ranks at once, and begins with the rank that
> failed first.

When one rank raises an error, the other ranks wait for it in a collective, and fail a
moment later because a connection was closed. That error says nothing about the cause.
So the message begins with the first failure, and ranks that ended in the same way share
one paragraph:

```
RanksFailed: rank 1 failed first.

rank 1:
  Cell In[4], line 3 (work)
    part = rows[rank + 1]
IndexError: list index out of range

ranks 0, 2, 3:
  Cell In[4], line 4 (work)
    dist.all_reduce(part)
It lost the connection to a rank that had failed.
```

A rank may also end without an error, because the operating system killed it, or it may
not end at all. Then the message has its exit code, or the lines at which it stands.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from shardbook.labs.reader_lines import Frame, frames_of, is_blank_line, own, show
from shardbook.labs.words import tell

__all__ = [
    "Ended",
    "Outcome",
    "Raised",
    "RanksFailed",
    "Results",
    "Stuck",
    "raised",
    "standing",
    "who",
]

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Raised:
    """A rank raised an error.

    :param kind: the name of the error's class
    :param text: the error in words
    :param cause: the error that it was raised from
    :param blank: whether the reader has not written the line yet
    """

    kind: str
    text: str
    frames: list[Frame]
    cause: Raised | None = None
    blank: bool = False

    @property
    def lost_connection(self) -> bool:
        """Whether another rank closed a connection, which is never the first failure."""
        return (
            re.search(r"onnection (closed by peer|reset|refused)", self.text)
            is not None
        )

    def __str__(self) -> str:
        first = f"{self.cause}\n" + tell("and from that:") + "\n" if self.cause else ""
        # An error has no frames if it arose before the function was called.
        lines = [show(self.frames)] if self.frames else []
        head = f"{self.kind}: {self.text}" if self.text else self.kind
        return first + "\n".join([*lines, head])


@dataclass(frozen=True, slots=True)
class Ended:
    """A rank's process ended without a result and without an error.

    :param code: its exit code; negative for a signal, as in
        [`subprocess`](https://docs.python.org/3/library/subprocess.html)
    """

    code: int
    frames: list[Frame] = field(default_factory=list)

    def __str__(self) -> str:
        if self.code == -signal.SIGKILL:
            what = tell(
                "The process was killed by SIGKILL, perhaps because memory ran out."
            )
        elif self.code < 0:
            name = signal.Signals(-self.code).name
            what = tell("The process was ended by {signal}.", signal=name)
        else:
            what = tell(
                "The process ended with exit code {code} before it returned.",
                code=self.code,
            )
        return "\n".join([*([show(self.frames)] if self.frames else []), what])


@dataclass(frozen=True, slots=True)
class Stuck:
    """A rank was still running at the end of its time.

    :param seconds: the time that it had; `None` if it was ended because another failed
    """

    seconds: float | None
    frames: list[Frame]

    def __str__(self) -> str:
        if self.seconds is None:
            what = tell("It was still running when another rank failed.")
        else:
            what = tell(
                "It was still running after {seconds:g} s.", seconds=self.seconds
            )
        return "\n".join([*([show(self.frames)] if self.frames else []), what])


@dataclass(slots=True)
class Outcome:
    """What became of one rank: a result, as pickled bytes, or a failure."""

    rank: int
    result: bytes | None = None
    failure: Raised | Ended | Stuck | None = None

    @property
    def place(self) -> int:
        """Where the outcome stands in the message: the lower, the nearer to the cause."""
        match self.failure:
            case Raised() if self.failure.lost_connection:
                return 1
            case Stuck() if self.failure.seconds is None:
                return 2
            case None:
                return 3
        return 0


class Results(list[Result]):
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
    groups = {str(first.failure): [first.rank]}
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
        return "\n".join([*map(str, own(failure.frames)), what])
    return str(failure)


def who(ranks: Sequence[int]) -> str:
    """Some ranks, by their numbers.

    >>> who([1]), who([2, 0])
    ('rank 1', 'ranks 0, 2')
    """
    numbers = ", ".join(map(str, sorted(ranks)))
    if len(ranks) == 1:
        return tell("rank {number}", number=numbers)
    return tell("ranks {numbers}", numbers=numbers)


def raised(error: BaseException, depth: int = 0) -> Raised:
    """What a rank sends about its error: text only, since its class may be unknown
    elsewhere.

    :param error: an error that has been raised and caught
    :param depth: how many errors have been raised from it
    """
    cause = error.__cause__
    # Two errors may name each other as their causes.
    before = raised(cause, depth + 1) if cause is not None and depth < 8 else None
    return Raised(
        type(error).__name__,
        str(error),
        frames_of(error.__traceback__),
        before,
        is_blank_line(error),
    )


def standing(stacks: str, within: str) -> list[Frame]:
    r"""The frames of a rank in the text that
    [`faulthandler`](https://docs.python.org/3/library/faulthandler.html) has written.

    :param stacks: its text, with the stacks of all threads, the innermost frame first
    :param within: the file of the function `call`, which calls the reader's function

    >>> text = 'Thread 0x1:\n  File "t.py", line 9 in wait\n\nCurrent thread 0x2:\n'
    >>> text += '  File "cell.py", line 3 in work\n  File "rank.py", line 50 in call\n'
    >>> standing(text, "rank.py")
    [Frame(file='cell.py', line=3, function='work')]
    """
    for stack in re.split(r"\n(?=\S)", stacks):
        found = [
            Frame(file, int(line), function)
            for file, line, function in re.findall(
                r'^  File "(.*)", line (\d+) in (.*)$', stack, re.MULTILINE
            )
        ]
        calls = [(frame.file, frame.function) for frame in found]
        if (within, "call") in calls:
            # The frames that follow belong to the rank's process.
            return found[: calls.index((within, "call"))][::-1]
    return []
