r"""# A rank that leaves

> A rank whose program ends writes so into the store, so that the other ranks do not wait for it.

Rank 1 has 99 batches and rank 0 has 100. In the last step rank 0 starts an exchange,
while rank 1 has ended its loop. [The order](exchange_order.py) compares what the ranks
are about to do, but rank 1 is not about to do anything. Without this chapter rank 0
would wait until the time limit of its process group. Then the backend would raise an
error that names a socket.

A rank leaves in one of two ways:

- **Its program ends, or drops the model.** The rank then opens [a
  round](store_rounds.py) and does not wait for the answer. The round says that after
  5049 exchanges this rank is about to leave. A rank that starts exchange 5050 finds the
  round in the store within a second, and raises the error. If all ranks leave after the
  same number of exchanges, no rank reads the round.
- **Its program continues without the model, or is killed.** It may wait at a barrier of
  its own, for example. Then the exchange of the other ranks fails in the end. Each rank
  that has waited in the exchange for more than a second has written so into the store.
  The error names the ranks that have not, and the ranks of this machine [whose process
  has ended](ended.py). If a rank is only late, the others [report it](standstill.py)
  after a minute.

[`join`](uneven.py) is for ranks that are meant to have unequal numbers of batches.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

from shardbook.foundations.ended import ended
from shardbook.foundations.steps import UNEVEN, Step, Wish
from shardbook.foundations.store_rounds import FAREWELL, Meeting, until

__all__ = ["announce_leaving", "name_the_failed", "waits_in"]


def announce_leaving(order: Any, meeting: Meeting) -> None:
    """Make this rank write into the store when its program ends or its model is dropped.

    :param order: the order of the model's exchanges, which lives as long as the model
    :param meeting: the rounds of the model's ranks
    """
    weakref.finalize(order, leave, meeting, os.getpid())


def leave(meeting: Meeting, process: int) -> None:
    """Open a round without waiting for its end. Ranks that wait in a round get an error.

    :param process: the process of the model; a forked child process has a copy of the
        model, and writes nothing
    """
    if meeting.verdict is None and os.getpid() == process:
        wish = Wish(meeting.rank, meeting.issued, LEAVE, None)
        # The process that keeps the store may already have ended.
        with suppress(RuntimeError):
            first = meeting.open(wish)
            if (first.issued, first.step) != (wish.issued, wish.step):
                meeting.publish(f"{wish}, but {first}; {UNEVEN}")


LEAVE = Step("", 0, "leave", "", "")
MOMENT = timedelta(milliseconds=300)


def waits_in(meeting: Meeting, issued: int) -> None:
    """Write into the store in which exchange this rank has waited for a while.

    :param issued: the number of exchanges that this rank has started; it waits for the
        last of them
    """
    if meeting.waits_in != issued:
        meeting.store.set(f"waits/{meeting.rank}", str(issued))
        meeting.waits_in = issued


def name_the_failed(
    meeting: Meeting, step: Step | None, error: RuntimeError
) -> NoReturn:
    """Raise an error about an exchange that failed, with the ranks that died or stayed
    away.

    :param step: the exchange that this rank has started last
    :param error: the backend's error
    :raises Disagreement: on every rank that waited, if there are such ranks
    :raises RuntimeError: if there are none, or the store has ended, too
    """
    cause, issued = str(error).splitlines()[0], meeting.issued
    try:
        waits_in(meeting, issued)
        name_the_absent(meeting, step, cause)
    except RuntimeError as gone:
        cause += f"; the store through which the ranks agree has ended, too ({gone})"
    raise RuntimeError(
        f"exchange {issued} of rank {meeting.rank}, {step}, has failed ({cause}); "
        "see the output of the other ranks"
    ) from error


def name_the_absent(meeting: Meeting, step: Step | None, cause: str) -> None:
    """Raise an error if ranks have died or have not come to an exchange that failed.

    :param cause: the backend's message
    :raises Disagreement: if there are such ranks
    """
    issued = meeting.issued

    def absent() -> list[int]:
        return [rank for rank in meeting.ranks if not came(meeting, rank, issued)]

    def died() -> list[int]:
        return ended(meeting.store, meeting.ranks)

    # A rank reads the store once a second. So the others get a moment to write.
    until(lambda: not absent() or bool(died()), FAREWELL)
    # A process that was killed is still listed for a moment after its connections
    # close.
    until(lambda: bool(died()), MOMENT)
    # A rank whose program has ended meanwhile has written so.
    meeting.look(issued)
    missing = absent()
    if dead := died():
        sentence = (
            f"rank {', '.join(map(str, dead))} has died, and exchange {issued}, in which "
            f"rank {meeting.rank} waits to {step}, has failed ({cause}); see its own "
            "output"
        )
        meeting.part(meeting.publish(sentence, len(dead)))
    if missing:
        who = f"rank {', '.join(map(str, missing))}"
        sentence = (
            f"{who} has not come to exchange {issued}, in which rank {meeting.rank} "
            f"waits to {step}, and the exchange has failed ({cause}); if {who} has raised "
            f"no error of its own, {UNEVEN}{'; ' * bool(meeting.standstill)}"
            f"{meeting.standstill}"
        )
        meeting.part(meeting.publish(sentence))


def came(meeting: Meeting, rank: int, issued: int) -> bool:
    """Whether a rank has waited in this exchange or in a later one."""
    key = f"waits/{rank}"
    return meeting.store.check([key]) and int(meeting.store.get(key)) >= issued
