r"""# Standstill

> After a minute without an exchange, each rank says for whom it waits, or where it is itself.

Rank 1 waits for a file server that does not answer. Rank 0 has started the gather of
`blocks.3` and waits for rank 1. An exchange may take as long as [the time limit of its
process group](store_rounds.py#limit_of), half an hour unless the program says
otherwise, and the error at its end names a socket. The reader of the logs needs to know
three things much earlier: who waits, for whom, and what the late rank is doing. So
after 60 seconds the log of rank 0 says:

    rank 0 has waited for 60 s, after 42 exchanges, for rank 1 to
    gather blocks.3 (parameter blocks.3.weight) as exchange 4 of its
    forward pass; rank 0 is at train.py:92 in main (inside of
    exchange_order.py:196 in arrived); rank 1 has started 41 exchanges,
    the last one 61 s ago to gather blocks.2 (parameter
    blocks.2.weight) as exchange 3 of its forward pass, and is at
    train.py:88 in main (inside of queue.py:171 in get)

And the log of rank 1 says that rank 0 waits, with the whole stack of calls of rank 1.
Lines are those of the user's program: the innermost call that is neither PyTorch nor
this library nor Python's own.

A thread of each rank [wakes up](monitor.py) every few seconds and writes into the store
how far its rank has got. Only when its own rank has started nothing for a while does it
read what the others have written. A step pays for none of this: the rank's own thread
notes in memory which exchanges it has started. The other thread has a connection of its
own to the store, because a connection serves one caller at a time, and in [a
round](store_rounds.py) the first caller is the one that waits.

| what the rank finds | what it says |
|---|---|
| it waits, and a rank has not come | for which ranks, in which exchange, and how far each has got |
| it waits, and all ranks have come | that the connection between them may be at fault |
| it does not wait, and others wait for it | who waits, and where it is |
| nobody waits | nothing: the model is not in use |

A rank that compiles for two minutes is late, and nothing is wrong. After the first
minute it is named all the same, because the others cannot know what it will do. When it
goes on, the log of each rank that has reported says so, too. Where the ranks stand
still for longer, the report is repeated after 120, 240, … seconds.

Only the exchanges of the model are seen. A rank that waits in a barrier of the program's
own, while another one is in its data loader, says nothing.

A rank that has not written for 15 seconds is another matter. Its process may be gone,
or its machine cannot be reached, or it hangs inside of an extension that keeps Python's
lock. The report says so. If the process was one of this machine, the system knows
[whether it has died](ended.py).
"""

# sidelit: hide
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
# sidelit: show


class Standstill:
    """Writes down how far this rank has got, and finds out who waits for whom.

    :param meeting: the rounds of these ranks, which count what this one has started
    :param progress: what it has started
    :param blocks: whether an exchange blocks the thread that waits for it, as on gloo
    :param waits: the functions in which a thread waits for other ranks
    :param limit: how long a rank may stand still before that is reported
    """

    # How long a rank says nothing before its process counts as unreachable.
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
        # What each of the others has written last, and when this rank first read that.
        self.heard: dict[int, tuple[Record, float]] = {}

    def tick(self, now: float, store: Any) -> None:
        """Write how far this rank has got. If it has stood still, look for the others.

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
        # The first look only tells who still writes.
        if mine.still < self.limit:
            self.look_at = self.limit
        elif self.report(mine, now, store):
            self.look_at = 2 * mine.still
        elif mine.waited is not None and mine.waited < self.limit:
            self.look_at = mine.still + self.limit - mine.waited
        else:
            self.look_at = 1.25 * mine.still

    def record(self, now: float) -> Record:
        """What this rank writes about itself."""
        self.beat += 1
        started, rounds, wish = self.place
        still, stack = now - self.since, stack_of(self.progress.thread)
        if not any(call.code in self.waits for call in stack):
            # Where the device waits, the stack of calls does not show it.
            self.waits_since = None if self.blocks else self.since
        elif self.waits_since is None:
            self.waits_since = now
        waited = None if self.waits_since is None else now - self.waits_since
        last, where = self.progress.last, line_of(stack) if still else ""
        return Record(self.beat, started, rounds, wish, last, still, waited, where)

    def go_on(self, now: float) -> None:
        """This rank has started something since the last time."""
        if self.reported:
            logging.getLogger("shardbook").warning(
                "rank %d goes on after %.0f s", self.meeting.rank, now - self.since
            )
        self.since, self.reported, self.meeting.standstill = now, False, ""
        self.waits_since = None
        self.look_at = max(0.0, self.limit - self.silence.total_seconds())

    def listen(self, now: float, store: Any) -> None:
        """Read what the others have written."""
        for rank in self.others:
            key = f"progress/{rank}"
            if store.check([key]):
                record = Record.read(store.get(key))
                before = self.heard.get(rank)
                if before is None or before[0].beat != record.beat:
                    self.heard[rank] = record, now

    def report(self, mine: Record, now: float, store: Any) -> bool:
        """Write into the log who waits for whom, unless nobody has waited for so long.

        :returns: whether somebody has
        """
        step, absent = self.awaited(mine)
        waiting = [rank for rank in self.others if self.waits_for_this(rank, mine)]
        waits = mine.waited is not None and mine.waited >= self.limit
        # Where the device waits, only an exchange without a partner tells that it does.
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
        """Who waits for whom, from this rank's side."""
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
        """For what this rank waits, and for whom.

        In a round it waits for all that have not come. In an exchange it waits for its
        partners. An exchange that a partner has not started ends for nobody, and the
        earliest one is what this rank waits for first.
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
            # Of a rank that has written nothing yet only this much is known.
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
        # What it has written is some seconds old.
        if theirs.waited is None or theirs.waited < 0.8 * self.limit:
            return False
        if theirs.wish is not None:
            return not came(mine, theirs.rounds)
        if theirs.started <= mine.started or theirs.last is None:
            return False
        return rank in self.partners(theirs.last)

    def partners(self, step: Step) -> Sequence[int]:
        """The ranks that meet this one in an exchange."""
        return self.progress.partners.get(step.action, self.others)

    def news(self, rank: int, now: float, dead: bool) -> str:
        """What is known of another rank."""
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
    """Some ranks in a sentence."""
    more = f" and {len(ranks[8:])} more" if ranks[8:] else ""
    return f"rank {', '.join(map(str, ranks[:8]))}{more}"


def verb(ranks: list[int], word: str) -> str:
    """What they do."""
    return word if len(ranks) > 1 else f"{word}s"


class after:
    """How long a rank of this process stands still before that is reported."""

    limit: timedelta | None = timedelta(seconds=60)


def standstill_after(seconds: float | None) -> None:
    """Choose after how many seconds without an exchange a rank reports who waits for whom.

    At the start these are 60. Call this before `shard`, on every rank.

    :param seconds: more than 0, or `None` for no reports
    :raises ValueError: if the number is not more than 0
    """
    if seconds is not None and not seconds > 0:
        raise ValueError(
            f"standstill_after({seconds!r}) is no time to wait; pass a number of seconds "
            "above 0, or None for no reports"
        )
    after.limit = None if seconds is None else timedelta(seconds=seconds)
