r"""# The ranks keep one order of exchanges

> Before a rank starts an exchange, it makes sure that all ranks are about to start the same one.

[The first check](agreement.py) compares models. Ranks with equal models can still run
them differently, for example if a branch of the model depends on the data. An exchange
carries no name: the first one that rank 0 starts meets the first one that rank 1
starts, whatever they are for. Take two blocks of equal size. Rank 0 gathers block 2,
but rank 1 has skipped block 2 and gathers block 3:

| | rank 0 | rank 1 | what rank 0 receives as block 2 |
|---|---|---|---|
| block 2 runs on both | gather block 2 | gather block 2 | half of block 2, half of block 2 |
| rank 1 skips it | gather block 2 | gather block 3 | half of block 2, half of block 3 |

The sizes fit, so no error is raised, and the model trains on a mixture of two blocks.
If the sizes differ, the process aborts or waits for its time limit, and no message says
which unit it was. After the exchange it is too late to find out.

So the ranks agree on the order. In the first step they agree on each exchange
separately, in a *round* through the *store*. The store is a small table of keys and
values, through which the ranks found each other when the program started. After the
first step every rank knows which exchange follows which. A rank that starts the
expected exchange looks it up in its own memory and sends no message.

Ranks may leave the known order if all of them do. The rank that is about to leave it
opens another round. If all ranks take part in that round with the same exchange, the
order has changed, and they continue. If one of them is about to start another exchange,
they all raise one error.

A rank that keeps to the known order does not take part in the round. It starts its
exchange and waits for the others. While it waits it reads the store, finds the open
round there, and raises the same error. Only gloo lets a thread do that while it waits.
On other backends [a separate thread](watchdog.py#module/a-monitor-thread-for-ranks)
reads the store. The error is then in the log of each rank within some seconds, and the
program raises it at its next exchange. If the program already waits for the device, the
backend ends it at the time limit of the process group.

No wrong values have been exchanged at that moment. The exchange that was started has no
partner, and the rank that deviates has started none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed import Work

from shardbook.foundations.agreement import Disagreement, Rendezvous, Step
from shardbook.foundations.collectives import world
from shardbook.foundations.watchdog import (
    Progress,
    announce_leaving,
    name_the_failed,
    start_monitor,
    waits_in,
)

__all__ = ["Order"]


class Order:
    """The order in which the units of one model exchange, and the check that this rank
    keeps it.

    In a process that trains alone, every call returns at once.

    :param group: the ranks that take part; `None` means all
    :param device: the device of the exchanged tensors
    """

    # The time for which a rank waits for an exchange before it reads the store again.
    glance = timedelta(seconds=1)

    def __init__(
        self, group: Any = None, *, device: torch.device | str = "cpu"
    ) -> None:
        self.group, (_, world_size) = group, world(group)
        alone = world_size == 1 or dist.get_backend(group) == "fake"
        self.rendezvous = None if alone else Rendezvous.of(group)
        # On other backends than gloo `wait` only queues a wait on the device, and with
        # a time limit it would block this thread. So there [another
        # thread](watchdog.py#module/a-monitor-thread-for-ranks) reads the store. On
        # every backend that thread also reports [a standstill](watchdog.py).
        backend = f"{torch.device(device).type}:gloo"
        self.blocks = backend in dist.get_backend_config(group).split(",")
        self.begin("first")
        self.issued = 0
        self.place: tuple[str, int] = ("", 0)
        self.passes = 0
        self.table: dict[tuple[Any, ...], Step] = {}
        self.progress = Progress()
        # How often this rank has [loaded values](state_dict.py) into a unit of stage 0,
        # and whether it did so without the others.
        self.loads: Counter[str] = Counter()
        self.loaded_alone = False
        if self.rendezvous is not None:
            announce_leaving(self, self.rendezvous)
            self.monitor = start_monitor(self, self.rendezvous)

    def begin(self, kind: str) -> None:
        """Begin a forward or backward pass.

        If it exchanges nothing, it has no place in the order.

        :param kind: the kind of pass, such as `"forward"` or `"backward"`
        """
        self.kind, self.index = kind, 0

    def before(self, action: str, unit: str, parameter: str) -> None:
        """Check the order just before an exchange is started.

        :param action: the kind of exchange, such as `"gather"`
        :param unit: the unit's name
        :param parameter: the name of the unit's first parameter
        :raises Disagreement: if another rank is about to start another exchange, with
            the same message on every rank, and from then on in each call. The program
            has to be started again, because an exchange may still wait for its partner.
        """
        if self.rendezvous is None:
            return
        if self.rendezvous.verdict is not None:
            self.check()
        step = Step(self.kind, self.index, action, unit, parameter)
        # A *place* is the kind of the forward or backward pass under way, and the number
        # of steps since it began. A step is one exchange here. After the last known step
        # of a pass either the same pass goes on, or the next pass begins. The table holds
        # only one of the two for each place. If it held both, one rank could take the
        # first and another rank the second, and each would find its step in the table.
        #
        # Which pass begins next may depend on more than the last one. With gradients
        # accumulated over four micro-batches, another kind of backward pass follows the
        # fourth forward pass than follows the first three. So for this question the place
        # also contains the number of passes since the last reduction.
        table, place = self.table, self.place
        known = table.get(place) or table.get((*place, self.passes))
        if step != known:
            self.progress.wish = step
            self.rendezvous.agree(self.issued, step, known)
            self.progress.wish = None
            self.learn(step)
        self.index += 1
        if action != "end":
            self.issued += 1
            self.progress.started.append(step)
        self.rendezvous.issued = self.issued
        self.place = (step.kind, self.index)
        if not step.number:
            # A program that only evaluates never reduces. Without a limit to the count
            # each of its forward passes would be new, and would need rounds.
            self.passes = min(self.passes + 1, 64)
        if action == "reduce":
            self.passes = 0

    def learn(self, step: Step) -> None:
        """Enter a step on which all ranks have agreed. Every rank has the same table at
        the same place.
        """
        if step.number:
            self.table[self.place] = step
        else:
            self.table.pop(self.place, None)
            self.table[(*self.place, self.passes)] = step

    def watch(self, works: Iterable[Work]) -> None:
        """Wait for exchanges on gloo, and meanwhile detect a rank that will never take
        part.

        On other backends `wait` makes a stream wait and not this thread. There it is
        called later, on the stream that reads the result.

        :param works: the exchanges
        :raises Disagreement: if there is such a rank
        :raises RuntimeError: if the exchange fails, or exceeds the group's time limit
        """
        if self.rendezvous is None:
            return
        if self.rendezvous.verdict is not None:
            self.check()
        for work in works if self.blocks else ():
            arrived = False
            while not arrived:
                try:
                    work.wait(self.glance)
                    arrived = True
                except RuntimeError:
                    arrived = self.has_failed(work, self.rendezvous)

    # sidelit: depth Exchanges that do not arrive, and ranks that find out together that they disagree.

    def has_failed(self, work: Work, rendezvous: Rendezvous) -> bool:
        """Look for a rank that will never take part, after a wait without success.

        :returns: false if the exchange may still arrive
        :raises Disagreement: if a rank will never take part
        :raises RuntimeError: if the exchange itself has failed
        """
        failed = work.is_completed()
        # The exchange may have failed because another rank has raised the error whose
        # text is in the store, and has ended. If the process that keeps the store has
        # ended as well, the exchange's own error is raised.
        with suppress(RuntimeError):
            rendezvous.look(self.issued)
            waits_in(rendezvous, self.issued)
        if not failed:
            return False
        # `wait` raises the exchange's error again, unless the exchange was completed in
        # between.
        try:
            work.wait()
        except RuntimeError as error:
            name_the_failed(rendezvous, self.progress.last, error)
            raise
        return True

    def check(self) -> None:
        """Raise the error again on which the ranks have disagreed, if they have.

        :raises Disagreement: with the same message as at first
        """
        if self.rendezvous is not None and self.rendezvous.verdict is not None:
            raise Disagreement(self.rendezvous.verdict)

    def refuse(self, sentence: str) -> NoReturn:
        """Stop because of an error that every rank has found for itself.

        :param sentence: the message
        :raises Disagreement: with this message, and again in each later call
        """
        if self.rendezvous is not None:
            self.rendezvous.verdict = sentence
        raise Disagreement(sentence)
