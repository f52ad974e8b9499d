r"""# The progress of a rank

> A rank records the exchanges that it has started, and another thread reads the line at which it waits.

To find [which rank holds up the others](standstill.py), the ranks compare how far each
of them has got. Every rank starts the same exchanges in the same order, so a number is
enough. If rank 0 has started 42 exchanges and rank 1 has started 41, exchange 42 waits
for rank 1. Rank 0 finds the name of that exchange among the last ones that it has
recorded. One record costs less than a microsecond.

No exchange tells why rank 1 does not come. It may be in its data loader, in a compiler,
or in a loop of its own. But Python keeps the stack of calls of each thread, and another
thread may read it at any time. The thread that hangs does not have to do anything for
that.
"""

from __future__ import annotations

import json
import sysconfig
import threading
import traceback
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import torch

from shardbook.foundations.nesting import frame_of
from shardbook.foundations.steps import Step

__all__ = ["Progress", "Record", "came", "line_of", "stack_of", "whole_stack"]


class Progress:
    """The exchanges that a rank has started, in its own memory.

    The thread that trains creates this object.
    """

    def __init__(self) -> None:
        # A rank may be ahead of the others by some exchanges, but not by that many.
        self.started: deque[Step] = deque(maxlen=1024)
        # The step on which the ranks are about to agree, while this rank is in a round.
        self.wish: Step | None = None
        # [The ranks that meet](groups.py#Groups.partners) in an exchange, by its
        # action, if these are not all ranks.
        self.partners: dict[str, Sequence[int]] = {}
        self.thread = threading.get_ident()

    @property
    def last(self) -> Step | None:
        """The exchange that this rank has started last."""
        return self.started[-1] if self.started else None


class Record(NamedTuple):
    """The progress that a rank writes about itself.

    :param beat: how often it has written
    :param started: how many exchanges it has started
    :param rounds: how many [rounds](store_rounds.py) it has left
    :param wish: the step of the next round, if it has come to that round
    :param last: the exchange that it has started last
    :param still: the seconds for which it has started no exchange and come to no round
    :param waited: the seconds for which it has waited for other ranks; `None` if it
        does not wait
    :param where: the line of its program, if it stands still
    """

    beat: int
    started: int
    rounds: int
    wish: Step | None
    last: Step | None
    still: float
    waited: float | None
    where: str

    @staticmethod
    def read(text: bytes) -> Record:
        """The record that a rank has written."""
        record = Record(*json.loads(text))
        wish, last = (
            Step(*step) if step else None for step in (record.wish, record.last)
        )
        return record._replace(wish=wish, last=last)

    def __str__(self) -> str:
        said = f"has started {self.started} exchanges"
        if self.last is not None:
            said += f", the last one {self.still:.0f} s ago to {self.last}"
        if self.wish is not None:
            said += f", is about to {self.wish}"
        if self.where:
            waits = self.waited is not None
            said += f", and {'waits' if waits else 'is'} at {self.where}"
        return said


def came(record: Record | None, rounds: int) -> bool:
    """Whether a rank has come to a round, according to its last record."""
    if record is None:
        return False
    return record.rounds > rounds or (
        record.rounds == rounds and record.wish is not None
    )


# **The line of the program.** The innermost calls of a waiting thread belong to Python
# or to PyTorch. The reader of a log needs the line of the program itself.


class Call(NamedTuple):
    """A call that is under way, and its line.

    It refers to none of the call's variables. A frame would keep them all.
    """

    code: CodeType
    line: int

    def __str__(self) -> str:
        return f":{self.line} in {self.code.co_name}"


def stack_of(thread: int) -> list[Call]:
    """The calls of a thread, the innermost first."""
    frame, calls = frame_of(thread), []
    while frame is not None:
        calls.append(Call(frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return calls


def line_of(stack: list[Call]) -> str:
    """The line of the user's program in a stack of calls, and the innermost call.

    A program that is part of a library counts as a library, too. If the stack has no
    other calls, the innermost one is named.
    """
    if not stack:
        return ""
    inner = stack[0]
    user = next((call for call in stack if not in_library(call.code)), inner)
    said = f"{user.code.co_filename}{user}"
    if user is not inner:
        said += f" (inside of {Path(inner.code.co_filename).name}{inner})"
    return said


def in_library(code: CodeType) -> bool:
    """Whether code is Python's own, an installed package's, or this library's."""
    file = code.co_filename
    # The programs of this library count as the user's.
    if file.startswith(PROGRAMS):
        return False
    return file.startswith(("<frozen", *LIBRARIES))


BOOK = str(Path(__file__).parents[1])
PROGRAMS = f"{BOOK}/train/", f"{BOOK}/finetune_neox/"
INSTALLED = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
LIBRARIES = tuple(f"{one}/" for one in (BOOK, Path(torch.__file__).parent, *INSTALLED))


def whole_stack(thread: int) -> str:
    """The calls of a thread, as a traceback shows them."""
    calls = [
        (call.code.co_filename, call.line, call.code.co_name, None)
        for call in reversed(stack_of(thread))
    ]
    return "".join(traceback.format_list(calls)).rstrip()
