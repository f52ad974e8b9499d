r"""# Do the ranks keep the order?

> Before a rank starts an exchange, it makes sure that all ranks are about to start the same one.

[The first check](agreement.py) compares models. Ranks with equal models can still run
them differently, for example where a branch of the model depends on the data. And an
exchange carries no name. The first one that rank 0 starts meets the first one that rank
1 starts, whatever they are for. Take two blocks of equal size. Rank 0 gathers block 2,
and rank 1, which skipped it, gathers block 3:

| | rank 0 | rank 1 | what rank 0 receives as block 2 |
|---|---|---|---|
| block 2 runs on both | gather block 2 | gather block 2 | half of block 2, half of block 2 |
| rank 1 skips it | gather block 2 | gather block 3 | half of block 2, half of block 3 |

The sizes fit, so no error is raised, and the model trains on a mixture. If the sizes
differ, the process aborts or waits for its time limit, and nothing says which unit it
was. After the exchange it is too late to ask.

So the ranks agree on the order. In the first step each exchange is agreed by itself,
in a round through the *store*: the small table of keys and values by which the ranks
found each other at the start. From then on every rank knows what comes after what. A
rank that is about to do what it knows looks into its own memory and sends nothing.

Ranks may leave the known order, if all of them do. The rank that finds itself about to
leave it opens another round. If all ranks come to that round with the same wish, the
order has changed and they go on. If one is about to do something else, they all raise
one error. And a rank that keeps to the known order does not come at all. It starts its
exchange, waits for the others, looks into the store meanwhile, and finds the open round
there. It then raises the same error. Only gloo lets a rank look while it waits.
Elsewhere [a thread](monitor.py) looks: the error is in the log of each rank within some
seconds, and the program raises it at its next exchange. If the program is already
waiting for the device, the backend ends it at the time limit of the process group.

Nothing wrong has been exchanged then. The exchange that was started has no partner, and
the rank that deviates has started none.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import Work

from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.collectives import world
from shardbook.foundations.leaving import announce_leaving, name_the_failed, waits_in
from shardbook.foundations.monitor import start_monitor
from shardbook.foundations.progress import Progress
from shardbook.foundations.steps import Step
from shardbook.foundations.store_rounds import Meeting

__all__ = ["Order"]
# sidelit: show


class Order:
    """The order in which the units of one model exchange, and what this rank does about it.

    One process alone has nobody to disagree with, so there every call is free.

    :param group: the ranks that take part; `None` means all
    :param device: where the exchanged tensors live
    """

    # How long a rank waits for an exchange before it looks into the store again.
    glance = timedelta(seconds=1)

    def __init__(
        self, group: Any = None, *, device: torch.device | str = "cpu"
    ) -> None:
        self.group, (_, world_size) = group, world(group)
        alone = world_size == 1 or dist.get_backend(group) == "fake"
        self.meeting = None if alone else Meeting.of(group)
        if self.meeting is not None:
            announce_leaving(self, self.meeting)
        # On other backends `wait` only queues a wait on the device, and with a time
        # limit it would block this thread. So there [another thread](monitor.py) looks
        # into the store. On every backend that thread reports [a
        # standstill](standstill.py).
        backend = f"{torch.device(device).type}:gloo"
        self.blocks = backend in dist.get_backend_config(group).split(",")
        self.kind = "first"
        self.index = 0
        self.issued = 0
        self.place: tuple[str, int] = ("", 0)
        self.passes = 0
        self.table: dict[tuple[Any, ...], Step] = {}
        self.progress = Progress()
        if self.meeting is not None:
            self.monitor = start_monitor(self)

    def begin(self, kind: str) -> None:
        """A pass begins, such as "forward" or "backward".

        A pass in which nothing is exchanged leaves no trace.
        """
        self.kind, self.index = kind, 0

    def before(self, action: str, unit: str, parameter: str) -> None:
        """Call this just before an exchange is started.

        :param action: what is about to happen, such as "gather"
        :param unit: the unit's name
        :param parameter: the name of the unit's first parameter
        :raises Disagreement: if another rank is about to do something else, on every
            rank with the same sentence, and from then on in each call. The program has
            to be started again, because an exchange may still wait for its partner.
        """
        self.check()
        if self.meeting is None:
            return
        step = Step(self.kind, self.index, action, unit, parameter)
        known = self.known()
        if step != known:
            self.progress.wish = step
            self.meeting.agree(self.issued, step, known)
            self.progress.wish = None
            self.learn(step)
        self.advance(step)

    def known(self) -> Step | None:
        """What comes next, as far as the ranks know.

        A *place* is the kind of the pass under way, and the number of steps since it
        began. The table holds for each place either how the pass goes on or which pass
        begins next, never both. With both, a rank could do the one and another rank the
        other, and each would find its step in the table.

        Which pass begins next may depend on more than the last one. With gradients
        accumulated over four batches, the first three forward passes are followed by
        another kind of backward pass than the fourth. So for that question the number
        of passes since the last reduction belongs to the place.
        """
        return self.table.get(self.place) or self.table.get((*self.place, self.passes))

    def learn(self, step: Step) -> None:
        """Enter what all ranks have agreed on. Every rank has the same table at the same place."""
        if step.number:
            self.table[self.place] = step
        else:
            self.table.pop(self.place, None)
            self.table[(*self.place, self.passes)] = step

    def advance(self, step: Step) -> None:
        """Move on to the next place."""
        self.index += 1
        if step.action != "end":
            self.issued += 1
            self.progress.started.append(step)
        if self.meeting is not None:
            self.meeting.issued = self.issued
        self.place = (step.kind, self.index)
        if step.number == 0:
            # A program that only evaluates reduces nothing. Without a limit to the
            # count each of its passes would be new, and would need rounds.
            self.passes = min(self.passes + 1, 64)
        if step.action == "reduce":
            self.passes = 0

    def end(self) -> None:
        """Call this when a backward pass is over, before an optimizer can step.

        A rank that left out the last unit would meet no other exchange until the next
        forward pass, and its optimizer would have stepped by then. So the end of a pass
        has its place in the order, too.
        """
        self.before("end", "", "")

    def watch(self, works: Iterable[Work]) -> None:
        """Wait for exchanges on gloo, and learn meanwhile of a rank that will never take
        part.

        On other backends `wait` makes a stream wait and not this thread. There it is
        left to whoever reads the result, on the stream that reads it.

        :raises Disagreement: if there is such a rank
        :raises RuntimeError: if the exchange fails, or exceeds the group's time limit
        """
        self.check()
        if self.meeting is None or not self.blocks:
            return
        for work in works:
            while not self.arrived(work, self.meeting):
                pass

    def arrived(self, work: Work, meeting: Meeting) -> bool:
        """Wait for an exchange for a short time and tell whether it is complete."""
        try:
            work.wait(self.glance)
        except RuntimeError:
            failed = work.is_completed()
            # The peer may be gone because it has raised the sentence that lies in the
            # store. If the store is gone as well, the exchange's own error is the one
            # to show.
            with suppress(RuntimeError):
                meeting.look(self.issued)
                waits_in(meeting, self.issued)
            if not failed:
                return False
            # It raises that error again, unless the exchange was completed in between.
            try:
                work.wait()
            except RuntimeError as error:
                name_the_failed(meeting, self.progress.last, error)
                raise
        return True

    # sidelit: depth Ranks that have disagreed already, or find out together that they do.

    def check(self) -> None:
        """Raise again what the ranks have disagreed about, if they have.

        :raises Disagreement: with the same sentence as at first
        """
        if self.meeting is not None and self.meeting.verdict is not None:
            raise Disagreement(self.meeting.verdict)

    def refuse(self, sentence: str) -> NoReturn:
        """Stop for something that every rank has found out by itself.

        :raises Disagreement: with this sentence, and again in each later call
        """
        if self.meeting is not None:
            self.meeting.verdict = sentence
        raise Disagreement(sentence)
