r"""# Unused parameters

> What no rank has used in a step keeps the gradient `None`, so that no optimizer moves it.

A mixture of experts may send no token to an expert, or training with random depth may
leave out a layer. In an unsharded program the gradient of such a parameter stays
`None`, and the optimizer passes it by. With the gradient zero it would not: AdamW lets
weight decay shrink it, and momentum moves it on. So the difference matters.

A rank knows what it has used itself. If another rank has used a parameter, the mean is
not zero, and every rank has to take the same step. So for each parameter there are
three cases:

| this rank has used it | another rank has | gradient |
|---|---|---|
| yes | | the mean |
| no | yes | the mean, to which this rank gave zeros |
| no | no | stays as it was, often `None` |

In the last two cases a rank needs the others' answer. The ranks send one number of 4
bytes for each parameter *tensor* and take the largest. That is one small all-reduce at
the end of the backward pass. A transformer block of 7 million values in 12 parameters
costs 48 bytes then, beside 28 million. Nobody waits for it on the host who has used all
parameters, which is the usual case. The exception is a step whose gradients [have
waited](waiting.py).

If [each unit steps by itself](step_in_backward.py), the answer is needed as soon as the
unit's mean has arrived. Then each unit sends its own numbers along.

[Stage 0](replicate.py) sends the numbers first and reads them always. In stage 0
nothing is gathered, so a rank may run units that another rank skips, in any order. The
numbers say which units any rank has used. These are then exchanged in the order of the
model, on every rank. So layers can be dropped at random, by each rank on its own.

`shard(model, unused="zero")` gives unused parameters the gradient zero instead.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from shardbook.foundations.collectives import all_reduce_max, world
from shardbook.foundations.exchange_order import Order
from shardbook.parameters.flat import Flat, resize
from shardbook.parameters.gradients import FlatWithGradients
from shardbook.parameters.host import host_memory
from shardbook.parameters.waiting import CHANGED, refuse_changed
from shardbook.zero.unit import Unit

__all__ = ["Usage"]

NOT_DUE, DUE, USED = range(3)
# sidelit: show


class Usage:
    """Which parameters of some units any rank has used, as the ranks find out together.

    :param units: the same ones on every rank, in the same order
    :param conductor: [who conducts them](conductor.py#Conductor)
    """

    def __init__(self, units: Sequence[Unit], conductor: Any) -> None:
        self.units = units
        self.order = conductor.order
        self.zero = conductor.unused_get_zero
        self.waited = conductor.waited
        # In stage 0 a rank may have used a unit that another has skipped, so there the
        # ranks compare everything. In the other stages they have used the same units.
        self.everything = bool(units) and units[0].stage == 0
        self.late: list[Unit] = []
        self.answer: list[int] | None = None
        flats = [
            flat
            for unit in units
            for flat in (unit.trainable if self.everything else unit.due)
        ]
        # Where the numbers of each vector begin. In stage 0 two others come first.
        counts = [2 * self.everything, *(len(flat.parameters) for flat in flats)]
        self.starts = dict(zip(flats, accumulate(counts), strict=False))
        if flats:
            self.send()

    @classmethod
    def at_the_end(cls, conductor: Any) -> Usage:
        """Compare the units of a backward pass that ends, but for those that have
        compared by themselves.

        `late` are then the units that are still to be exchanged.
        """
        late = [
            unit
            for unit in dict.fromkeys([*conductor.late, *conductor.kept])
            if unit not in conductor.exchanged
        ]
        units = [
            unit for unit in [*conductor.exchanged, *late] if not unit.after_reduce
        ]
        replicated = [unit for unit in conductor.drivers if unit.stage == 0]
        usage = cls(replicated or units, conductor)
        usage.late = usage.used_by_any() if replicated else late
        return usage

    def send(self) -> None:
        """Start the exchange: for each parameter a number that says whether this rank has
        used it, or at least whether its vector is due.
        """
        some = next(iter(self.starts))
        first = some.layout.slots[0].names[0]
        if self.everything:
            self.order.before("reduce", "the gradients", first)
            steps = steps_taken(self.starts)
            numbers = [steps, -steps]
        else:
            self.order.before("compare", "the used parameters", first)
            numbers = []
        for flat in self.starts:
            flat.note_use()
            numbers += [number_of(flat, i) for i in range(len(flat.parameters))]
        # With equal pieces every rank sends the same number of bytes.
        numbers += [0] * (-len(numbers) % (2 * world(self.order.group)[1]))
        # One process alone, also if it plays the others, has the answer already.
        if self.order.meeting is None:
            self.answer = numbers
        # The numbers go over the stream of the gathers. It has nothing to do with the
        # gradients, so on a GPU the answer does not wait for them to be computed. And
        # nobody else takes memory on it, so none is used again too early.
        unit = self.units[0]
        with unit.device.stream(unit.gather_stream):
            self.numbers = torch.empty(
                len(numbers), dtype=torch.int32, device=some.device
            )
            # Equal neighbours are written by one kernel, and nothing is copied from the
            # host, which would wait for the copy.
            start = 0
            for number, equal in groupby(numbers):
                stop = start + len(list(equal))
                self.numbers[start:stop].fill_(number)
                start = stop
            self.pending = all_reduce_max(self.numbers, group=self.order.group)

    def arrive(self) -> None:
        """Wait until the largest numbers are there; on a GPU only the stream waits."""
        self.order.watch(self.pending.works)
        unit = self.units[0]
        with unit.device.stream(unit.gather_stream):
            self.pending.wait()

    def read(self) -> list[int]:
        """The largest number for each parameter. On a GPU the host waits for it."""
        if self.answer is None:
            self.arrive()
            unit = self.units[0]
            with unit.device.stream(unit.gather_stream):
                answer = host_memory(self.numbers)
                answer.copy_(self.numbers)
            self.answer = answer.tolist()
        return self.answer

    def numbers_of(self, flat: FlatWithGradients) -> list[int]:
        """The part of the answer that belongs to one vector."""
        start = self.starts[flat]
        return self.read()[start : start + len(flat.parameters)]

    def used_by_any(self) -> list[Unit]:
        """In stage 0: the units to exchange, in the order of the model.

        :raises Disagreement: if the ranks' optimizers have not stepped equally often
        """
        if not self.starts:
            return []
        most, least, *_ = self.read()
        if most != -least:
            refuse_other_steps(self.starts, self.order)
        self.refuse_changes()
        for flat in self.starts:
            flat.due = max(self.numbers_of(flat)) != NOT_DUE
        late = [unit for unit in self.units if unit.due]
        for unit in late:
            unit.usage = self
        return late

    def settle(self, units: Iterable[Unit] | None = None) -> None:
        """Hand out the parts of the mean that have waited for the answer, or drop them.

        :param units: whose; all by default
        """
        chosen = self.units if units is None else units
        flats = [flat for unit in chosen for flat in unit.due if flat in self.starts]
        if not flats:
            return
        if self.waited:
            self.refuse_changes()
        # Without this line the memory of the numbers could be used again too early.
        self.arrive()
        for flat in flats:
            numbers = self.numbers_of(flat) if flat.unsure else ()
            flat.decide([i for i, each in enumerate(numbers) if each == USED])
            if self.zero:
                flat.add_zero()
        # A thread of the backend may hold on to the numbers for a moment.
        if not any(flat.due for flat in self.starts):
            resize(self.numbers, 0)

    # sidelit: depth Gradients that were changed while they waited.

    def refuse_changes(self) -> None:
        """Refuse [what was changed while it waited](waiting.py), on any rank."""
        for flat in self.starts:
            names = (slot.names[0] for slot in flat.layout.slots)
            refuse_changed(names, self.numbers_of(flat))


def number_of(flat: FlatWithGradients, index: int) -> int:
    """What this rank says of a parameter. The largest number of all ranks counts."""
    if index in flat.changed:
        return CHANGED
    if index in flat.used:
        return USED
    return DUE if flat.due else NOT_DUE


# sidelit: depth Ranks in stage 0 whose optimizers have not stepped equally often.


def steps_taken(flats: Iterable[Flat]) -> int:
    """A number that two ranks have in common if their optimizers have stepped equally
    often on each of these vectors.
    """
    return sum(n * flat.changes for n, flat in enumerate(flats, 1)) % 2**31


def refuse_other_steps(flats: Iterable[Flat], order: Order) -> NoReturn:
    """A rank that left out a step has other parameters than the rest, and in stage 0
    nothing would make them equal again. Every rank comes here, and finds out which.

    :raises Disagreement: always, on every rank the same
    """
    names = [flat.layout.slots[0].names[0] for flat in flats]
    answers: list[Any] = [None] * world(order.group)[1]
    mine = [flat.changes for flat in flats]
    dist.all_gather_object(answers, (dist.get_rank(), mine), group=order.group)
    _, expected = answers[0]
    for rank, steps in answers:
        for name, here, there in zip(names, steps, expected, strict=True):
            if here != there:
                order.refuse(
                    f"rank {rank} has changed {name} in {here} steps or loads, rank "
                    f"{answers[0][0]} in {there}, so their parameters differ; call "
                    "optimizer.step() and load_state_dict() equally often on every rank"
                )
    raise AssertionError("the ranks have compared equal numbers")
