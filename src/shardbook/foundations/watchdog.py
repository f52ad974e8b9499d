r"""# Standstill

> After a minute without an exchange, the log of each rank names the rank that holds up the others.

Rank 1 waits for a file server that does not answer. Rank 0 has started the gather of
`blocks.3` and waits for rank 1. An exchange may take as long as [the time limit of its
process group](agreement.py#limit_of), which is half an hour by default, and the
error at its end names a socket. The reader of the logs needs to know three things much
earlier: which rank waits, for which other rank, and what that rank is doing. So after
60 seconds the log of rank 0 says:

    rank 0 has waited for 60 s, after 42 exchanges, for rank 1 to
    gather blocks.3 (parameter blocks.3.weight) as exchange 4 of its
    forward pass; rank 0 is at train.py:92 in main (inside of
    exchange_order.py:192 in watch); rank 1 has started 41 exchanges,
    the last one 61 s ago to gather blocks.2 (parameter
    blocks.2.weight) as exchange 3 of its forward pass, and is at
    train.py:88 in main (inside of queue.py:171 in get)

The log of rank 1 says that rank 0 waits, and shows the whole call stack of rank 1. The
lines in the report are those of the user's program: the innermost call that belongs
neither to PyTorch nor to this library nor to Python itself.

A thread of each rank [wakes up](watchdog.py#module/a-monitor-thread-for-ranks) every
few seconds and writes into the store how many exchanges its rank has started. Only if
its own rank has started none for a while does the thread read the records of the other
ranks. A training step pays almost nothing for this, because the rank's own thread
records its exchanges in memory. The other thread has its own connection to the store. A
connection serves one caller at a time, and in [a
round](agreement.py#module/rounds-through-the-store) the rank itself occupies its
connection while it waits.

| what the thread finds | report |
|---|---|
| its rank waits, and a rank has not come | the awaited ranks, the exchange, and how far each rank has got |
| its rank waits, and all ranks have come | the connection between them may be at fault |
| its rank does not wait, and others wait for it | the ranks that wait, and the line of its own program |
| no rank waits | none: the model is not in use |

A rank that compiles for two minutes is late, although nothing is wrong. The report
names it after the first minute all the same, because the other ranks cannot know what
it will do. When it continues, the log of each rank that has reported it says so. If the
standstill lasts, the report is repeated after 120, 240, … seconds.

[The progress of a rank](#module/the-progress-of-a-rank) is the number of exchanges that
it has started, and the line at which it waits. A rank whose program ends makes no more
progress. It [writes so into the store](#module/a-rank-that-leaves), and the other ranks
raise an error instead of waiting.

Only the model's exchanges are watched. If a rank waits in a barrier of the program's
own while another is in its data loader, there is no report.

If a rank has written nothing for 15 seconds, its process may have ended, its machine
may be unreachable, or the rank may hang in an extension that holds Python's lock. The
report says so. For a process of this machine the system tells [whether it has
died](agreement.py#module/a-rank-whose-process-has).
"""

from __future__ import annotations

import json
import logging
import os
import sysconfig
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
import torch.distributed as dist

from shardbook.foundations.agreement import (
    FAREWELL,
    UNEVEN,
    Disagreement,
    Rendezvous,
    Step,
    Wish,
    ended,
    until,
)
from shardbook.foundations.hook_context import frame_of

if TYPE_CHECKING:
    from shardbook.foundations.exchange_order import Order

__all__ = [
    "Progress",
    "Record",
    "Standstill",
    "announce_leaving",
    "came",
    "line_of",
    "name_the_failed",
    "stack_of",
    "standstill_after",
    "start_monitor",
    "waits_in",
    "whole_stack",
]


class Standstill:
    """Writes down how far this rank has got, and finds the ranks that hold up others.

    :param rendezvous: the rounds of these ranks, which count this rank's exchanges
    :param progress: the exchanges that this rank has started
    :param blocks: whether an exchange blocks the thread that waits for it, as on gloo
    :param waits: the functions in which a thread waits for other ranks
    :param limit: how long a rank may stand still before a report
    """

    # How long a rank writes nothing before its process counts as unreachable.
    silence = timedelta(seconds=15)

    def __init__(
        self,
        rendezvous: Rendezvous,
        progress: Progress,
        *,
        blocks: bool,
        waits: Iterable[CodeType],
        limit: timedelta,
    ) -> None:
        self.rendezvous, self.progress, self.blocks = rendezvous, progress, blocks
        self.waits, self.limit = frozenset(waits), limit.total_seconds()
        self.others = [rank for rank in rendezvous.ranks if rank != rendezvous.rank]
        self.beat, self.reported = 0, False
        self.place: Any = None
        self.since = self.look_at = 0.0
        self.waits_since: float | None = None
        # The last record of each other rank, and when this rank first read it.
        self.heard: dict[int, tuple[Record, float]] = {}

    def tick(self, now: float, store: Any) -> None:
        """Write how far this rank has got. If it has stood still, read the other records.

        :param now: the time in seconds, by any clock
        :param store: the keys of the rendezvous
        :raises RuntimeError: if the process that keeps the store has ended
        """
        wish = self.progress.wish
        place = self.rendezvous.issued, self.rendezvous.rounds, wish
        if place != self.place:
            self.go_on(now)
            self.place = place
        mine = self.record(now)
        store.set(f"progress/{self.rendezvous.rank}", json.dumps(mine))
        if now - self.since < self.look_at:
            return
        self.listen(now, store)
        # The first reading only shows which ranks still write.
        if mine.still < self.limit:
            self.look_at = self.limit
        elif self.report(mine, now, store):
            self.look_at = 2 * mine.still
        elif mine.waited is not None and mine.waited < self.limit:
            self.look_at = mine.still + self.limit - mine.waited
        else:
            self.look_at = 1.25 * mine.still

    def record(self, now: float) -> Record:
        """The record that this rank writes about itself."""
        self.beat += 1
        started, rounds, wish = self.place
        still, stack = now - self.since, stack_of(self.progress.thread)
        if not any(call.code in self.waits for call in stack):
            # If the device waits, the call stack does not show it.
            self.waits_since = None if self.blocks else self.since
        elif self.waits_since is None:
            self.waits_since = now
        waited = None if self.waits_since is None else now - self.waits_since
        last, where = self.progress.last, line_of(stack) if still else ""
        return Record(self.beat, started, rounds, wish, last, still, waited, where)

    def go_on(self, now: float) -> None:
        """Reset the times, because this rank has started something since the last one."""
        if self.reported:
            logging.getLogger("shardbook").warning(
                "rank %d goes on after %.0f s", self.rendezvous.rank, now - self.since
            )
        self.since, self.reported, self.rendezvous.standstill = now, False, ""
        self.waits_since = None
        self.look_at = max(0.0, self.limit - self.silence.total_seconds())

    def listen(self, now: float, store: Any) -> None:
        """Read the records of the other ranks."""
        for rank in self.others:
            key = f"progress/{rank}"
            if store.check([key]):
                record = Record.read(store.get(key))
                before = self.heard.get(rank)
                if before is None or before[0].beat != record.beat:
                    self.heard[rank] = record, now

    def report(self, mine: Record, now: float, store: Any) -> bool:
        """Write a report to the log, unless no rank has waited for that long.

        :returns: whether a report was written
        """
        step, absent = self.awaited(mine)
        waiting = [rank for rank in self.others if self.waits_for_this(rank, mine)]
        waits = mine.waited is not None and mine.waited >= self.limit
        # If the device waits, only an exchange that a partner has not started shows it.
        if not self.blocks and mine.wish is None:
            waits = waits and bool(absent)
        if not waits and not waiting:
            return False
        sentence = self.headline(mine, waits, step, absent, waiting)
        if mine.where:
            sentence += f"; rank {self.rendezvous.rank} is at {mine.where}"
        told = list(dict.fromkeys([*absent, *waiting, *self.others]))
        told, more = told[:8], len(told[8:])
        dead = ended(store, absent)
        for rank in told:
            sentence += f"; rank {rank} {self.news(rank, now, rank in dead)}"
        sentence += f"; and {more} more ranks" if more else ""
        self.rendezvous.standstill, self.reported = sentence, True
        stack = "" if waits else f"\n{whole_stack(self.progress.thread)}"
        logging.getLogger("shardbook").warning("%s%s", sentence, stack)
        return True

    def headline(
        self,
        mine: Record,
        waits: bool,
        step: Step | None,
        absent: list[int],
        waiting: list[int],
    ) -> str:
        """The beginning of the report: which rank waits for which, as seen by this one."""
        who, after = f"rank {self.rendezvous.rank}", f"after {mine.started} exchanges"
        if not waits:
            return (
                f"{who} has started nothing for {mine.still:.0f} s, {after}, and "
                f"{named(waiting)} {verb(waiting, 'wait')} for it"
            )
        waited = f"{who} has waited for {mine.waited:.0f} s, {after},"
        if absent:
            return f"{waited} for {named(absent)} to {step}"
        return (
            f"{waited} to {step}, though every rank has come; the connection between "
            "them may be at fault"
        )

    def awaited(self, mine: Record) -> tuple[Step | None, list[int]]:
        """The step for which this rank waits, and the ranks that have not come to it.

        In a round this rank waits for all ranks that have not come. In an exchange it
        waits for its partners. Exchanges that a partner has not started cannot end, and
        this rank waits for the earliest of them first.
        """
        found = {rank: record for rank, (record, _) in self.heard.items()}
        if mine.wish is not None:
            absent = [
                rank for rank in self.others if not came(found.get(rank), mine.rounds)
            ]
            return mine.wish, absent
        started = list(self.progress.started)
        first = mine.started - len(started)
        lacks: dict[int, list[int]] = {}
        for rank in self.others:
            # Of a rank without a record only this much is known.
            reached = found[rank].started if rank in found else mine.started - 1
            ahead = islice(enumerate(started, first), max(0, reached - first), None)
            for number, step in ahead:
                if rank in self.partners(step):
                    lacks.setdefault(number, []).append(rank)
                    break
        if not lacks:
            return mine.last, []
        number = min(lacks)
        return started[number - first], lacks[number]

    def waits_for_this(self, rank: int, mine: Record) -> bool:
        """Whether another rank waits for this one."""
        if rank not in self.heard:
            return False
        theirs = self.heard[rank][0]
        # The record is some seconds old.
        if theirs.waited is None or theirs.waited < 0.8 * self.limit:
            return False
        if theirs.wish is not None:
            return not came(mine, theirs.rounds)
        if theirs.started <= mine.started or theirs.last is None:
            return False
        return rank in self.partners(theirs.last)

    def partners(self, step: Step) -> Sequence[int]:
        """The ranks that take part in an exchange with this one."""
        return self.progress.partners.get(step.action, self.others)

    def news(self, rank: int, now: float, dead: bool) -> str:
        """The known state of another rank."""
        if dead:
            return "has died; see its own output"
        if rank not in self.heard:
            return "has written nothing yet"
        record, since = self.heard[rank]
        if now - since < self.silence.total_seconds():
            return str(record)
        return (
            f"has not answered for {now - since:.0f} s: its process has ended or hangs, "
            f"or its machine cannot be reached; before that it {record}"
        )


def named(ranks: list[int]) -> str:
    """Some ranks, as a phrase of the report."""
    more = f" and {len(ranks[8:])} more" if ranks[8:] else ""
    return f"rank {', '.join(map(str, ranks[:8]))}{more}"


def verb(ranks: list[int], word: str) -> str:
    """A verb in the form for one rank or for several."""
    return word if len(ranks) > 1 else f"{word}s"


class after:
    """How long a rank of this process may stand still before a report."""

    limit: timedelta | None = timedelta(seconds=60)


def standstill_after(seconds: float | None) -> None:
    """Choose the number of seconds without an exchange after which a rank reports.

    The default is 60. Call this before `shard`, on every rank.

    :param seconds: more than 0, or `None` for no reports
    :raises ValueError: if the number is not more than 0
    """
    if seconds is not None and not seconds > 0:
        raise ValueError(
            f"standstill_after({seconds!r}) is no time to wait; pass a number of seconds "
            "above 0, or None for no reports"
        )
    after.limit = None if seconds is None else timedelta(seconds=seconds)


# ## The progress of a rank
#
# > A rank records the exchanges that it has started, and another thread reads the line at which it waits.
#
# To find [which rank holds up the others](watchdog.py), the ranks compare how far each
# of them has got. Every rank starts the same exchanges in the same order, so a number is
# enough. If rank 0 has started 42 exchanges and rank 1 has started 41, exchange 42 waits
# for rank 1. Rank 0 finds the name of that exchange among the last ones that it has
# recorded. One record costs less than a microsecond.
#
# No exchange tells why rank 1 does not come. It may be in its data loader, in a compiler,
# or in a loop of its own. But Python keeps the stack of calls of each thread, and another
# thread may read it at any time. The thread that hangs does not have to do anything for
# that.


class Progress:
    """The exchanges that a rank has started, in its own memory.

    The thread that trains creates this object.
    """

    def __init__(self) -> None:
        # A rank may be ahead of the others by some exchanges, but not by that many.
        self.started: deque[Step] = deque(maxlen=1024)
        # The step on which the ranks are about to agree, while this rank is in a round.
        self.wish: Step | None = None
        # [The ranks that meet](collectives.py#Groups.partners) in an exchange, by its
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
    :param rounds: how many [rounds](agreement.py#module/rounds-through-the-store) it has left
    :param wish: the step of the next round, if it takes part in that round
    :param last: the exchange that it has started last
    :param still: the seconds for which it has started no exchange and taken part in no
        round
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
    """Whether a rank has taken part in a round, according to its last record."""
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


# ## A monitor thread for ranks that wait
#
# > Where a waiting rank cannot read the store, a separate thread reads it.
#
# On gloo a rank waits for an exchange in its own thread, and
# [reads](exchange_order.py#Order.watch) the store meanwhile. On NCCL the device waits,
# and the thread continues. Suppose another rank has left the common order, so that the
# exchange never ends. The thread blocks only when it waits for the device itself, and
# then it cannot raise anything: at the time limit of the process group the backend ends
# the process.
#
# So each order has a monitor thread. On such backends the monitor reads the store once a
# second. If it finds that the ranks disagree, it does two things:
#
# - It writes the error to the log, so the log has the reason even if the process is
#   ended.
# - It makes the program raise the same error at its next exchange, or before its
#   optimizer steps. A program that is already waiting for the device cannot be
#   interrupted.
#
# On all backends the monitor writes down how many exchanges its rank has started, and
# reports [a standstill](watchdog.py), in which the ranks agree on the next exchange but
# one of them does not come.


# How often a rank writes its progress: every 5 seconds, and at least 12 times within
# the time after which a standstill is reported.
BEAT, BEATS = timedelta(seconds=5), 12


def start_monitor(order: Order, rendezvous: Rendezvous) -> threading.Thread | None:
    """Start the monitor of an [order](exchange_order.py#Order).

    The thread ends with the order, with its process group, or with the program.

    :returns: the thread, which also ends once the ranks disagree; `None` if it would
        have nothing to do
    """
    looks, standstill = not order.blocks, None
    period, beat = order.glance.total_seconds(), 0.0
    if after.limit is not None:
        waits = (type(order).watch.__code__, type(rendezvous).wait_for.__code__)
        standstill = Standstill(
            rendezvous,
            order.progress,
            blocks=order.blocks,
            waits=waits,
            limit=after.limit,
        )
        beat = min(BEAT, after.limit / BEATS).total_seconds()
        period = min(beat, period) if looks else beat
    elif not looks:
        return None
    over = threading.Event()
    # The thread refers to the rendezvous, which holds no tensors. A reference to the order
    # would keep the order, and its model's tensors, forever.
    thread = threading.Thread(
        target=monitor,
        args=(rendezvous, standstill, looks, over, period, beat),
        name="shardbook monitor",
        daemon=True,
    )
    thread.start()
    weakref.finalize(order, stop, over, thread)
    return thread


def monitor(
    rendezvous: Rendezvous,
    standstill: Standstill | None,
    looks: bool,
    over: threading.Event,
    period: float,
    beat: float,
) -> None:
    """Read the store until the ranks disagree, or their process group has ended.

    :param looks: whether only this thread looks for a disagreement
    :param over: set when the order no longer needs the thread
    :param period: the seconds between two looks for a disagreement
    :param beat: the seconds between two looks for a standstill
    """
    group, due, store = weakref.ref(dist.group.WORLD), 0.0, None
    while not over.wait(period):
        try:
            joined = dist.group.WORLD
            if (
                rendezvous.verdict is not None
                or joined is None
                or group() is not joined
            ):
                return
            store = store or own_connection(rendezvous.store)
            if looks:
                rendezvous.glimpse(rendezvous.issued, store)
            now = time.monotonic()
            if standstill is not None and now >= due:
                standstill.tick(now, store)
                due = now + beat
        except Disagreement as error:
            logging.getLogger("shardbook").error("%s", error)
            return
        except RuntimeError:
            # The process that keeps the store has ended.
            return


def own_connection(store: Any) -> Any:
    """The same keys over another connection.

    A connection serves one caller at a time. The rank itself may be using its own, in a
    call that waits for another rank.
    """
    try:
        return store.clone()
    except RuntimeError:
        # A store that a program has written in Python may allow no second connection.
        return store


def stop(over: threading.Event, thread: threading.Thread) -> None:
    """End a thread, and wait for its last look, so that the program does not end in it."""
    over.set()
    with suppress(RuntimeError):
        thread.join(1)


# ## A rank that leaves
#
# > A rank whose program ends writes so into the store, so that the other ranks do not wait for it.
#
# Rank 1 has 99 batches and rank 0 has 100. In the last step rank 0 starts an exchange,
# while rank 1 has ended its loop. [The order](exchange_order.py) compares what the ranks
# are about to do, but rank 1 is not about to do anything. If rank 1 wrote nothing, rank
# 0 would wait until the time limit of its process group. Then the backend would raise
# an error that names a socket.
#
# A rank leaves in one of two ways:
#
# - **Its program ends, or drops the model.** The rank then opens [a
#   round](agreement.py#module/rounds-through-the-store) and does not wait for the answer.
#   The round says that after 5049 exchanges this rank is about to leave. A rank that
#   starts exchange 5050 finds the round in the store within a second, and raises the
#   error. If all ranks leave after the same number of exchanges, no rank reads the round.
# - **Its program continues without the model, or is killed.** It may wait at a barrier of
#   its own, for example. Then the exchange of the other ranks fails in the end. Each rank
#   that has waited in the exchange for more than a second has written so into the store.
#   The error names the ranks that have not, and the ranks of this machine [whose process
#   has ended](agreement.py#module/a-rank-whose-process-has). If a rank is only late, the
#   others [report it](watchdog.py) after a minute.
#
# [`join`](accumulate.py#module/unequal-numbers-of-batches-on) is for ranks that are
# meant to have unequal numbers of batches.


def announce_leaving(order: Order, rendezvous: Rendezvous) -> None:
    """Make this rank write into the store when its program ends or its model is dropped.

    :param order: the order of the model's exchanges, which lives as long as the model
    :param rendezvous: the rounds of the model's ranks
    """
    weakref.finalize(order, leave, rendezvous, os.getpid())


def leave(rendezvous: Rendezvous, process: int) -> None:
    """Open a round without waiting for its end. Ranks that wait in a round get an error.

    :param process: the process of the model; a forked child process has a copy of the
        model, and writes nothing
    """
    if rendezvous.verdict is None and os.getpid() == process:
        wish = Wish(rendezvous.rank, rendezvous.issued, LEAVE, None)
        # The process that keeps the store may already have ended.
        with suppress(RuntimeError):
            first = rendezvous.open(wish)
            if (first.issued, first.step) != (wish.issued, wish.step):
                rendezvous.publish(f"{wish}, but {first}; {UNEVEN}")


LEAVE = Step("", 0, "leave", "", "")
MOMENT = timedelta(milliseconds=300)


def waits_in(rendezvous: Rendezvous, issued: int) -> None:
    """Write into the store in which exchange this rank has waited for a while.

    :param issued: the number of exchanges that this rank has started; it waits for the
        last of them
    """
    if rendezvous.waits_in != issued:
        rendezvous.store.set(f"waits/{rendezvous.rank}", str(issued))
        rendezvous.waits_in = issued


def name_the_failed(
    rendezvous: Rendezvous, step: Step | None, error: RuntimeError
) -> NoReturn:
    """Raise an error about an exchange that failed, with the ranks that died or stayed
    away.

    :param step: the exchange that this rank has started last
    :param error: the backend's error
    :raises Disagreement: on every rank that waited, if there are such ranks
    :raises RuntimeError: if there are none, or the process that keeps the store has
        ended, too
    """
    cause, issued = str(error).splitlines()[0], rendezvous.issued
    try:
        waits_in(rendezvous, issued)
        name_the_absent(rendezvous, step, cause)
    except RuntimeError as gone:
        cause += f"; the store through which the ranks agree has ended, too ({gone})"
    raise RuntimeError(
        f"exchange {issued} of rank {rendezvous.rank}, {step}, has failed ({cause}); "
        "see the output of the other ranks"
    ) from error


def name_the_absent(rendezvous: Rendezvous, step: Step | None, cause: str) -> None:
    """Raise an error if ranks have died or have not come to an exchange that failed.

    :param cause: the backend's message
    :raises Disagreement: if there are such ranks
    """
    issued = rendezvous.issued

    def absent() -> list[int]:
        return [
            rank for rank in rendezvous.ranks if not has_come(rendezvous, rank, issued)
        ]

    def died() -> list[int]:
        return ended(rendezvous.store, rendezvous.ranks)

    # A rank reads the store once a second. So the others get a moment to write.
    until(lambda: not absent() or bool(died()), FAREWELL)
    # A process that was killed is still listed for a moment after its connections
    # close.
    until(lambda: bool(died()), MOMENT)
    # A rank whose program has ended meanwhile has written so.
    rendezvous.look(issued)
    missing = absent()
    if dead := died():
        sentence = (
            f"rank {', '.join(map(str, dead))} has died, and exchange {issued}, in which "
            f"rank {rendezvous.rank} waits to {step}, has failed ({cause}); see its own "
            "output"
        )
        rendezvous.part(rendezvous.publish(sentence, len(dead)))
    if missing:
        who = f"rank {', '.join(map(str, missing))}"
        sentence = (
            f"{who} has not come to exchange {issued}, in which rank {rendezvous.rank} "
            f"waits to {step}, and the exchange has failed ({cause}); if {who} has raised "
            f"no error of its own, {UNEVEN}{'; ' * bool(rendezvous.standstill)}"
            f"{rendezvous.standstill}"
        )
        rendezvous.part(rendezvous.publish(sentence))


def has_come(rendezvous: Rendezvous, rank: int, issued: int) -> bool:
    """Whether a rank has waited in this exchange or in a later one."""
    key = f"waits/{rank}"
    return rendezvous.store.check([key]) and int(rendezvous.store.get(key)) >= issued
