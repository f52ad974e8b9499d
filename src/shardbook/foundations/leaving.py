r"""# A rank that has left

> A rank whose program ends writes it down, so that the others learn who they wait for.

Rank 1 has 99 batches and rank 0 has 100. In the last step rank 0 starts an exchange,
and rank 1 has ended its loop. With equal ranks [the order](exchange_order.py) would
compare what both are about to do, but rank 1 is about to do nothing more. Without this
chapter rank 0 would wait until the time limit of its process group, and then raise an
error of the backend that names a socket.

A rank leaves in one of two ways:

- **Its program ends, or it drops the model.** Then it opens [a round](store_rounds.py)
  without waiting for the answer: after 5049 exchanges it is about to leave. A rank that
  starts exchange 5050 finds that round in the store within a second, and raises the
  sentence. If all ranks leave after the same number of exchanges, nobody reads it.
- **It goes on without the model,** for example to a barrier of its own, or it is
  killed. Then the exchange of the others fails in the end. Each rank that has waited
  for longer than a second has written so into the store. Who has not is absent, and is
  named, and so is a rank of this machine [whose process is gone](ended.py). If a rank
  is only late, the others [report it](standstill.py) after a minute.

[`join`](uneven.py) is for ranks that are meant to have unequal numbers of batches.
"""

# sidelit: hide
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
# sidelit: show


def announce_leaving(order: Any, meeting: Meeting) -> None:
    """Let this rank say so when its program ends, or its model is dropped.

    :param order: the order of the model's exchanges, which lives as long as the model
    :param meeting: the rounds of the model's ranks
    """
    weakref.finalize(order, leave, meeting, os.getpid())


def leave(meeting: Meeting, process: int) -> None:
    """Open a round and do not wait for its end. Ranks that wait in a round get the answer.

    :param process: the process whose model it is; a child process that was forked has
        a copy of the model, and says nothing
    """
    if meeting.verdict is None and os.getpid() == process:
        wish = Wish(meeting.rank, meeting.issued, LEAVE, None)
        # The process that keeps the store may have ended before.
        with suppress(RuntimeError):
            first = meeting.open(wish)
            if (first.issued, first.step) != (wish.issued, wish.step):
                meeting.publish(f"{wish}, but {first}; {UNEVEN}")


LEAVE = Step("", 0, "leave", "", "")
MOMENT = timedelta(milliseconds=300)


def waits_in(meeting: Meeting, issued: int) -> None:
    """Write down in which exchange this rank has waited for a while.

    :param issued: how many exchanges it has started, the last of which it waits for
    """
    if meeting.waits_in != issued:
        meeting.store.set(f"waits/{meeting.rank}", str(issued))
        meeting.waits_in = issued


def name_the_failed(
    meeting: Meeting, step: Step | None, error: RuntimeError
) -> NoReturn:
    """Say which exchange has failed, and which ranks have died or have not come to it.

    :param step: the exchange that this rank has started last
    :param error: what the backend said
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
    """Raise the sentence about ranks that have died, or have not come to an exchange that failed.

    :param cause: what the backend said
    :raises Disagreement: if there are such ranks
    """
    issued = meeting.issued

    def absent() -> list[int]:
        return [rank for rank in meeting.ranks if not came(meeting, rank, issued)]

    def died() -> list[int]:
        return ended(meeting.store, meeting.ranks)

    # A rank looks into the store once a second. So the others have a moment to write.
    until(lambda: not absent() or bool(died()), FAREWELL)
    # A process that was killed is still listed for a moment after its connections are
    # closed.
    until(lambda: bool(died()), MOMENT)
    # A rank that has ended its program meanwhile has said so.
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
    """Whether a rank has waited in this exchange, or in a later one."""
    key = f"waits/{rank}"
    return meeting.store.check([key]) and int(meeting.store.get(key)) >= issued
