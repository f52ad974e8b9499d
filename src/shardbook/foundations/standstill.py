r"""# Standstill

> After a minute without an exchange, the log of each rank names the rank that holds up the others.

Rank 1 waits for a file server that does not answer. Rank 0 has started the gather of
`blocks.3` and waits for rank 1. An exchange may take as long as [the time limit of its
process group](store_rounds.py#limit_of), which is half an hour by default, and the
error at its end names a socket. The reader of the logs needs to know three things much
earlier: which rank waits, for which other rank, and what that rank is doing. So after
60 seconds the log of rank 0 says:

    rank 0 has waited for 60 s, after 42 exchanges, for rank 1 to
    gather blocks.3 (parameter blocks.3.weight) as exchange 4 of its
    forward pass; rank 0 is at train.py:92 in main (inside of
    exchange_order.py:196 in arrived); rank 1 has started 41 exchanges,
    the last one 61 s ago to gather blocks.2 (parameter
    blocks.2.weight) as exchange 3 of its forward pass, and is at
    train.py:88 in main (inside of queue.py:171 in get)

The log of rank 1 says that rank 0 waits, and shows the whole call stack of rank 1. The
lines in the report are those of the user's program: the innermost call that belongs
neither to PyTorch nor to this library nor to Python itself.

A thread of each rank [wakes up](monitor.py) every few seconds and writes into the store
how many exchanges its rank has started. Only if its own rank has started none for a
while does the thread read the records of the other ranks. A training step pays almost
nothing for this, because the rank's own thread records its exchanges in memory. The
other thread has its own connection to the store. A connection serves one caller at a
time, and in [a round](store_rounds.py) the rank itself occupies its connection while it
waits.

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

Only the model's exchanges are watched. If a rank waits in a barrier of the program's
own while another is in its data loader, there is no report.

If a rank has written nothing for 15 seconds, its process may have ended, its machine
may be unreachable, or the rank may hang in an extension that holds Python's lock. The
report says so. For a process of this machine the system tells [whether it has
died](ended.py).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from datetime import timedelta
from itertools import islice
from types import CodeType
from typing import Any

from shardbook.foundations.ended import ended
from shardbook.foundations.progress import (
    Progress,
    Record,
    came,
    line_of,
    stack_of,
    whole_stack,
)
from shardbook.foundations.steps import Step

__all__ = ["Standstill", "standstill_after"]


class Standstill:
    """Writes down how far this rank has got, and finds the ranks that hold up others.

    :param meeting: the rounds of these ranks, which count this rank's exchanges
    :param progress: the exchanges that this rank has started
    :param blocks: whether an exchange blocks the thread that waits for it, as on gloo
    :param waits: the functions in which a thread waits for other ranks
    :param limit: how long a rank may stand still before a report
    """

    # How long a rank writes nothing before its process counts as unreachable.
    silence = timedelta(seconds=15)

    def __init__(
        self,
        meeting: Any,
        progress: Progress,
        *,
        blocks: bool,
        waits: Iterable[CodeType],
        limit: timedelta,
    ) -> None:
        self.meeting, self.progress, self.blocks = meeting, progress, blocks
        self.waits, self.limit = frozenset(waits), limit.total_seconds()
        self.others = [rank for rank in meeting.ranks if rank != meeting.rank]
        self.beat, self.reported = 0, False
        self.place: Any = None
        self.since = self.look_at = 0.0
        self.waits_since: float | None = None
        # The last record of each other rank, and when this rank first read it.
        self.heard: dict[int, tuple[Record, float]] = {}

    def tick(self, now: float, store: Any) -> None:
        """Write how far this rank has got. If it has stood still, read the other records.

        :param now: the time in seconds, by any clock
        :param store: the keys of the meeting
        :raises RuntimeError: if the store has ended
        """
        wish = self.progress.wish
        place = self.meeting.issued, self.meeting.rounds, wish
        if place != self.place:
            self.go_on(now)
            self.place = place
        mine = self.record(now)
        store.set(f"progress/{self.meeting.rank}", json.dumps(mine))
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
                "rank %d goes on after %.0f s", self.meeting.rank, now - self.since
            )
        self.since, self.reported, self.meeting.standstill = now, False, ""
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
            sentence += f"; rank {self.meeting.rank} is at {mine.where}"
        told = list(dict.fromkeys([*absent, *waiting, *self.others]))
        told, more = told[:8], len(told[8:])
        dead = ended(store, absent)
        for rank in told:
            sentence += f"; rank {rank} {self.news(rank, now, rank in dead)}"
        sentence += f"; and {more} more ranks" if more else ""
        self.meeting.standstill, self.reported = sentence, True
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
        who, after = f"rank {self.meeting.rank}", f"after {mine.started} exchanges"
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
