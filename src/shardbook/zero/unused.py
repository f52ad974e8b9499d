r"""# Unused parameters

> A parameter that no rank has used in a step keeps the gradient `None`, so that no optimizer changes it.

A mixture of experts may send no token to an expert. Training with random depth may
leave out a layer. In an unsharded program the gradient of such a parameter stays
`None`, and the optimizer skips it. If the gradient were zero, the optimizer would not
skip it: in AdamW weight decay would shrink it, and momentum would move it on. So the
difference matters.

A rank knows only which parameters it has used itself. If another rank has used a
parameter, the mean is not zero, and every rank has to take the same step. So each
parameter is in one of three cases:

| this rank has used it | another rank has | gradient |
|---|---|---|
| yes | | the mean |
| no | yes | the mean, to which this rank gave zeros |
| no | no | stays as it was, often `None` |

In the second and the third case a rank needs to know what the others used. The ranks
send one number of 4 bytes for each parameter *tensor* and take the largest, which is
one small all-reduce at the end of the backward pass. A transformer block of 7 million
values in 12 parameters then costs 48 bytes beside the 28 million bytes of its
gradients. A rank that has used all of its parameters, as is usual, does not wait for
the answer on the host. The exception is a step whose gradients [have waited](flat.py)
in earlier micro-batches.

If [each unit steps by itself](accumulate.py#module/stepping-inside-the-backward-pass),
the answer is needed as soon as the unit's mean has arrived. Then each unit sends its
own numbers.

[Stage 0](unit.py#module/stage-0) sends the numbers before the gradients, and always reads the
answer. In stage 0 nothing is gathered, so a rank may run units that another rank skips,
in any order. The answer names the units that any rank has used. Every rank then
exchanges these units in the order of the model. So each rank may drop layers at random.

`shard(model, unused="zero")` gives unused parameters the gradient zero instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, NoReturn
from zlib import crc32

import torch
import torch.distributed as dist

from shardbook.foundations.collectives import all_reduce_max, world
from shardbook.foundations.exchange_order import Order
from shardbook.zero.flat import Flat, resize
from shardbook.zero.offload import host_memory
from shardbook.zero.unit import Unit

if TYPE_CHECKING:
    from shardbook.zero.scheduler import Scheduler
from shardbook.zero.waiting import CHANGED, refuse_changed

__all__ = ["Usage"]

# sidelit: hide
NOT_DUE, DUE, USED = range(3)
# sidelit: show


class Usage:
    """The parameters of some units that any rank has used, as the ranks find out
    together.

    :param units: the same units on every rank, in the same order
    :param scheduler: [the scheduler](scheduler.py#Scheduler) of these units
    """

    def __init__(self, units: Sequence[Unit], scheduler: Scheduler) -> None:
        self.units = units
        self.order = scheduler.order
        self.zero = scheduler.unused_get_zero
        self.waited = scheduler.waited
        # In stage 0 a rank may have used a unit that another has skipped, so there the
        # ranks compare everything. In the other stages they have used the same units.
        self.everything = bool(units) and units[0].stage == 0
        self.late: list[Unit] = []
        self.answer: list[int] | None = None
        flats = [
            flat
            for unit in units
            for flat in (unit.trainable if self.everything else unit.pending)
        ]
        # The index of the first number of each vector. In stage 0 two other numbers
        # come before them.
        counts = [2 * self.everything, *(len(flat.parameters) for flat in flats)]
        self.starts = dict(zip(flats, accumulate(counts), strict=False))
        if flats:
            self.send()

    @classmethod
    def at_the_end(cls, scheduler: Scheduler) -> Usage:
        """Compare the units of a backward pass at its end, except those that have
        compared for themselves.

        `late` are then the units whose gradients are still to be exchanged.
        """
        late = [*dict.fromkeys([*scheduler.late, *scheduler.kept])]
        # A unit that is recomputed may have been exchanged and be due again.
        every = dict.fromkeys([*scheduler.exchanged, *late])
        units = [unit for unit in every if not unit.after_reduce]
        replicated = [unit for unit in scheduler.units if unit.stage == 0]
        usage = cls(replicated or units, scheduler)
        usage.late = usage.used_by_any() if replicated else late
        return usage

    def send(self) -> None:
        """Start the exchange of one number for each parameter.

        The number says whether this rank has used the parameter, and, if it has not, whether
        the parameter's vector is due for an exchange. The largest of all ranks counts.
        """
        some = next(iter(self.starts))
        first = some.layout.slots[0].names[0]
        if self.everything:
            self.order.before("reduce", "the gradients", first)
            steps = steps_taken(self.starts)
            numbers = [steps, -steps]
        else:
            names = [unit.name for unit in self.units if unit.pending]
            units = ", ".join(names) if len(names) < 6 else in_short(names)
            self.order.before("compare", f"the used parameters of {units}", first)
            numbers = []
        for flat in self.starts:
            flat.note_use()
            known = {
                **dict.fromkeys(flat.used, USED),
                **dict.fromkeys(flat.changed, CHANGED),
            }
            unused = DUE if flat.pending else NOT_DUE
            numbers += [
                known.get(index, unused) for index in range(len(flat.parameters))
            ]
        # Zeros are added so that all pieces have the same size and every rank sends the
        # same number of bytes.
        numbers += [0] * (-len(numbers) % (2 * world(self.order.group)[1]))
        # A single process has the answer already, even if it stands in for the other
        # ranks.
        if self.order.rendezvous is None:
            self.answer = numbers
        # The numbers are exchanged on the stream of the gathers, which does not wait
        # for gradients. So on a GPU the answer arrives before the gradients are
        # computed. And no other code allocates memory on this stream, so the numbers'
        # memory is not used again too early.
        unit = self.units[0]
        with unit.device.stream(unit.gather_stream):
            self.numbers = torch.empty(
                len(numbers), dtype=torch.int32, device=some.device
            )
            # Neighbours with the same number are filled by one kernel. A copy from the
            # host would make the host wait.
            start = 0
            for number, equal in groupby(numbers):
                stop = start + len(list(equal))
                self.numbers[start:stop].fill_(number)
                start = stop
            self.pending = all_reduce_max(self.numbers, group=self.order.group)

    def wait(self) -> None:
        """Wait until the largest numbers have arrived; on a GPU only the stream waits."""
        self.order.watch(self.pending.works)
        unit = self.units[0]
        with unit.device.stream(unit.gather_stream):
            self.pending.wait()

    def read(self) -> list[int]:
        """The largest number of all ranks for each parameter; on a GPU the host waits for it."""
        if self.answer is None:
            self.wait()
            unit = self.units[0]
            with unit.device.stream(unit.gather_stream):
                answer = host_memory(self.numbers)
                answer.copy_(self.numbers)
            self.answer = answer.tolist()
        return self.answer

    def numbers_of(self, flat: Flat) -> list[int]:
        """The part of the answer that belongs to one vector."""
        start = self.starts[flat]
        return self.read()[start : start + len(flat.parameters)]

    def used_by_any(self) -> list[Unit]:
        """The units to exchange in stage 0, in the order of the model.

        :raises Disagreement: if the ranks' optimizers have not stepped equally often
        """
        if not self.starts:
            return []
        most, least, *_ = self.read()
        if most != -least:
            refuse_other_steps(self.starts, self.order)
        for flat in self.starts:
            flat.pending = max(self.numbers_of(flat)) != NOT_DUE
        late = [unit for unit in self.units if unit.pending]
        for unit in late:
            unit.usage = self
        return late

    def settle(self, units: Iterable[Unit] | None = None) -> None:
        """Store or drop the parts of the mean that have waited for the answer.

        :param units: the units to settle; all by default
        """
        chosen = self.units if units is None else units
        flats = [
            flat for unit in chosen for flat in unit.pending if flat in self.starts
        ]
        if not flats:
            return
        if self.waited:
            self.refuse_changes()
        # Without this wait the memory of the numbers could be used again too early.
        self.wait()
        for flat in flats:
            numbers = self.numbers_of(flat) if flat.unsure else ()
            flat.decide([i for i, each in enumerate(numbers) if each == USED])
            if self.zero:
                flat.add_zero()
        # A thread of the backend may refer to the numbers a little longer, so their
        # memory is freed here. What of them is still needed, the host has read.
        resize(self.numbers, 0)

    # sidelit: depth Gradients that were changed while they waited.

    def refuse_changes(self) -> None:
        """Raise an error if any rank [changed gradients while they waited](waiting.py)."""
        for flat in self.starts:
            names = (slot.names[0] for slot in flat.layout.slots)
            refuse_changed(names, self.numbers_of(flat))


def in_short(names: Sequence[str]) -> str:
    """Many units that compare, as words of a message: two names, and a checksum of all.

    A rank may have left out a unit that another has used. Their vectors would have
    different lengths, so the ranks agree on the units first.
    """
    digest = crc32("\n".join(names).encode())
    return f"{names[0]}, {names[1]} and {len(names) - 2} more units ({digest:08x})"


# sidelit: depth Ranks in stage 0 whose optimizers have not stepped equally often.


def steps_taken(flats: Iterable[Flat]) -> int:
    """A checksum of the steps, equal on two ranks if their optimizers have changed each
    vector equally often.
    """
    return sum(n * flat.changes for n, flat in enumerate(flats, 1)) % 2**31


def refuse_other_steps(flats: Iterable[Flat], order: Order) -> NoReturn:
    """Refuse to continue, because a rank has left out a step.

    Its parameters differ from those of the other ranks, and in stage 0 nothing would
    make them equal again. Every rank calls this function, and they find out which rank
    it is.

    :raises Disagreement: always, with the same message on every rank
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
