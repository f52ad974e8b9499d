"""The same step without one wait: what a model of a GPU's streams finds, and that a CPU shows no difference.

The wait is the one after which the compute stream may read a unit that was gathered. On a CPU the streams do
nothing, so the step without it is recorded as well, and compared. What a GPU would be free to do is computed
from a second run, in which every operation, stream and wait is written down (`shardbook.check`): once for
each time the wait was asked for, that one alone is left out.
"""

from __future__ import annotations

from typing import Any

from tools.record import step as right
from tools.record.frame import ranks
from tools.record.lines import points, removed

from shardbook.check.race_recorder import Recorder
from shardbook.check.race_replay import Race, Trace, Wait, races
from shardbook.train.loop import step
from shardbook.zero.unit import Unit

WHERE = "shardbook/zero/unit.py#Unit.finish_fetch"
LINE = "compute_stream(self.home).wait_stream(self.gather_stream)"


def record() -> Any:
    """The events without the wait, and at each place where it was the races that the model finds."""
    found = right.together(ranks(2, right.on_a_rank, without_the_wait))
    places = [event for event in found["events"] if event["line"] == LINE]
    for event, raced in zip(places, ranks(2, raced_without)[0], strict=True):
        event["removed"] = True
        event["races" if raced["count"] else "harmless"] = raced
    racing = sum("races" in event for event in places)
    values = {"places": len(places), "racing": racing}
    return {"removed": {"at": WHERE, "line": LINE}, "values": values, **found}


def without_the_wait() -> None:
    """Take the line out of this process."""
    Unit.finish_fetch.__code__ = removed(Unit.finish_fetch, LINE)


def raced_without() -> list[dict[str, Any]]:
    """For each time that the third step asks for the wait, what races if it is left out."""
    with Recorder() as recorder:
        run = right.small_run()
        step(run)
        step(run)
        before = len(recorder.trace)
        step(run)
    assert races(recorder.trace) == []
    ((point,),) = points({WHERE: (LINE,)}).values()
    line = f"unit.py:{point.first}"
    waits = [
        place
        for place, event in enumerate(recorder.trace)
        if place >= before and isinstance(event, Wait) and event.lines[:1] == (line,)
    ]
    return [told(races(without(recorder.trace, place))) for place in waits]


def without(trace: Trace, place: int) -> Trace:
    """All events but one."""
    return trace[:place] + trace[place + 1 :]


def told(found: list[Race]) -> dict[str, Any]:
    """How many races there are, and the first one."""
    if not found:
        return {"count": 0}
    # Behind the comma stands a line of the library, whose number changes with every comment above it.
    later, earlier = (access.partition(",")[0] for access in (found[0].later, found[0].earlier))
    return {"count": len(found), "later": later, "earlier": earlier}
