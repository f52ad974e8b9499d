r"""# Agreement between the ranks

> The ranks compare their models, and later the exchanges that they are about to start.
> If two ranks differ, all ranks raise one error.

Every rank runs the same program, and each builds the model for itself. Suppose one of
them reads another configuration. Its vectors then have another layout, and a collective
does not detect that. If the total sizes are equal, the values of two parameters swap
places, and no error is raised. If the sizes differ, the process aborts, or all ranks
wait until the time limit of their process group. After the exchange nothing can tell
which parameter was wrong.

So the ranks compare descriptions before the first exchange. A description takes about a
hundred bytes for each parameter, whatever the parameter's size. All ranks get all
descriptions, so each comes to the same result. If one rank has to raise an error, every
rank raises the same error, and no rank is left waiting.

Ranks with equal models may still [run other units](exchange_order.py). So the ranks
also compare [the next exchange of each rank](#module/the-next-exchange-of-a), by its
name. They compare it in [rounds](#module/rounds-through-the-store), to which every rank
must come. A rank that does not come may be late, or its process may have ended. For
ranks of one machine [the operating system](#module/a-rank-whose-process-has)
distinguishes the two.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, fields
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore

from shardbook.foundations.collectives import world
from shardbook.foundations.torch_private import default_store, time_limit

__all__ = [
    "Description",
    "Disagreement",
    "Rendezvous",
    "Step",
    "Wish",
    "agree",
    "ended",
    "rule",
    "sign_in",
]


class Disagreement(ValueError):
    """An error that all ranks raise, because they differ.

    They hold different modules, or one of them holds a module that cannot be sharded,
    or [one leaves the common order](exchange_order.py) of exchanges.
    """


@dataclass(frozen=True, slots=True)
class Description:
    """The properties of one parameter or buffer that must be equal on all ranks.

    The device's type is one of them. Its index is not, since each rank has a device of
    its own.
    """

    unit: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    device: str
    requires_grad: bool
    tied_to: str | None = None


def describe(parameters: Sequence[tuple[str, str, Tensor]]) -> list[Description]:
    """The descriptions of parameters and buffers.

    A tied parameter is stored once. If it is tied on one rank only, names and shapes
    still agree, but the vectors have different lengths. So a description says to which
    name it is tied.
    """
    first: dict[int, str] = {}
    return [
        description(*parameter, first.setdefault(id(parameter[2]), parameter[1]))
        for parameter in parameters
    ]


def description(unit: str, name: str, parameter: Tensor, first: str) -> Description:
    """The description of one parameter.

    :param first: the first name under which the parameter was found
    """
    return Description(
        unit=unit,
        name=name,
        shape=tuple(parameter.shape),
        dtype=str(parameter.dtype).removeprefix("torch."),
        device=parameter.device.type,
        requires_grad=parameter.requires_grad,
        tied_to=None if first == name else first,
    )


def agree(
    parameters: Sequence[tuple[str, str, Tensor]],
    group: Any = None,
    *,
    settings: str = "",
    objection: str | None = None,
) -> None:
    """Return if all ranks agree, and raise the same error on all ranks if one does not.

    :param parameters: unit, name and parameter or buffer, in the order in which this
        rank will lay them out
    :param group: the ranks that must agree; `None` means all
    :param settings: further settings that must be equal on every rank, as text
    :param objection: the reason why this rank cannot continue, if there is one; every
        rank then raises it
    :raises Disagreement: on every rank, naming the first rank that differs from rank 0,
        the parameter, and the difference
    :raises RuntimeError: if there is no process group yet
    """
    _, world_size = world(group)
    # In a simulated group of one process, as the planner uses it, there are no other
    # ranks.
    if dist.get_backend(group) == "fake":
        if objection is not None:
            raise Disagreement(objection)
        return
    # A rank with an objection still takes part in this exchange. If it raised an error
    # before it, the other ranks would wait here until their time limit.
    mine = [] if objection else describe(parameters)
    answers: list[Any] = [None] * world_size
    dist.all_gather_object(answers, (objection, settings, mine), group=group)
    for rank, (objected, _, _) in enumerate(answers):
        if objected is not None:
            raise Disagreement(f"rank {rank}: {objected}")
    _, agreed, expected = answers[0]
    for rank, (_, theirs, found) in enumerate(answers):
        if theirs != agreed:
            raise Disagreement(
                f"rank {rank} shards with {theirs}, rank 0 with {agreed}; "
                "call shard with the same arguments on every rank"
            )
        difference = compare(expected, found)
        if difference is not None:
            raise Disagreement(
                f"rank {rank} differs from rank 0: {difference}; "
                "build the same module on every rank"
            )


def compare(
    expected: Sequence[Description], found: Sequence[Description]
) -> str | None:
    """The first difference between rank 0's parameters and another rank's, or `None`.

    >>> a = Description("block 0", "weight", (4, 4), "float32", "cpu", True)
    >>> b = Description("block 0", "weight", (4, 8), "float32", "cpu", True)
    >>> compare([a], [b])
    'weight in block 0 has shape (4, 8) instead of (4, 4)'
    >>> compare([a], [])
    'weight in block 0 is missing'
    """
    if (tied := tied_otherwise(expected, found)) is not None:
        return tied
    for theirs, ours in zip(expected, found, strict=False):
        here = f"{ours.name} in {ours.unit}"
        for field in fields(Description):
            wanted, got = getattr(theirs, field.name), getattr(ours, field.name)
            if wanted != got:
                if field.name in ("unit", "name"):
                    expected_here = f"{theirs.name} in {theirs.unit}"
                    return f"{here} stands where {expected_here} is expected"
                return f"{here} has {field.name} {got} instead of {wanted}"
    if len(found) < len(expected):
        missing = expected[len(found)]
        return f"{missing.name} in {missing.unit} is missing"
    if len(found) > len(expected):
        extra = found[len(expected)]
        return f"{extra.name} in {extra.unit} is one parameter too many"
    return None


# sidelit: depth A parameter that is tied on one rank and not on another.


def tied_otherwise(
    expected: Sequence[Description], found: Sequence[Description]
) -> str | None:
    """The first parameter that is tied on only one of two ranks, as a message, or `None`."""
    # A tie can move a parameter into another unit, and then the two lists no longer
    # match item by item. So ties are compared first, by name.
    ties = {theirs.name: theirs.tied_to for theirs in expected}
    for ours in found:
        wanted = ties.get(ours.name, ours.tied_to)
        if wanted != ours.tied_to:
            return (
                f"{ours.name} in {ours.unit} is tied to {ours.tied_to or 'nothing'}, "
                f"on rank 0 to {wanted or 'nothing'}"
            )
    return None


# sidelit: core


# ## The next exchange of a rank
#
# > Each exchange has a name that ranks compare, and that an error prints.
#
# Before an exchange the ranks compare what each of them [is about to
# start](exchange_order.py). Suppose rank 0 is about to gather `blocks.3` as the fourth
# exchange of its forward pass. Rank 1 is about to gather `blocks.4`, because it has
# skipped a block. The two steps differ, and the error prints both.


class Step(NamedTuple):
    """An exchange or the end of a pass.

    >>> print(Step("forward", 3, "gather", "blocks.3", "blocks.3.weight"))
    gather blocks.3 (parameter blocks.3.weight) as exchange 4 of its forward pass
    >>> print(Step("backward", 8, "end", "", ""))
    end its backward pass after 8 exchanges
    """

    kind: str
    number: int
    action: str
    unit: str
    parameter: str

    def __str__(self) -> str:
        if self.action == "leave":
            return "end its program or to drop the model"
        if self.action == "end":
            return f"end its {self.kind} pass after {self.number} exchanges"
        return (
            f"{self.action} {self.unit} (parameter {self.parameter}) "
            f"as exchange {self.number + 1} of its {self.kind} pass"
        )


class Wish(NamedTuple):
    """The record that a rank writes into the store when it opens a round.

    `issued`, the number of exchanges that the rank has started, distinguishes equal
    exchanges of different training steps. `known` is the exchange that followed in the
    known order. Ranks that keep to that order start it, and do not take part in the
    round.
    """

    rank: int
    issued: int
    step: Step
    known: Step | None

    @staticmethod
    def read(text: bytes) -> Wish:
        """The record that a rank has written."""
        rank, issued, step, known = json.loads(text)
        return Wish(rank, issued, Step(*step), Step(*known) if known else None)

    def __str__(self) -> str:
        return (
            f"rank {self.rank}, after {self.issued} exchanges, is about to {self.step}"
        )


RULE = "every rank has to run the same units in the same order, with the same requires_grad"
UNEVEN = "give every rank as many batches, or loop over shardbook.join(batches)"


# sidelit: depth The advice in an error.


def rule(*steps: Step | None) -> str:
    """The advice for ranks that do not come to the same step.

    If one of them begins another kind of pass, its batches may have run out.
    """
    begun = [step for step in steps if step is not None and step.number == 0]
    if any(step.action == "leave" for step in begun):
        return UNEVEN
    # A kind that mentions [newly frozen
    # parameters](whole_parameter.py#module/freezing-and-unfreezing) is no other kind.
    kinds = {step.kind.rpartition(") ")[2] for step in begun}
    return f"{RULE}; {UNEVEN}" if len(kinds) > 1 else RULE


# sidelit: core


# ## Rounds through the store
#
# > Ranks that are about to start the same exchange continue together. If two differ, all
# > ranks raise one error.
#
# After the first step every rank knows [the order](exchange_order.py) of the exchanges.
# This section is about the moments in which a rank does not find its next exchange
# there. It must then ask all other ranks, and it cannot use an exchange, because
# exchanges are what it is about to check.
#
# The ranks therefore compare their steps through the store, a table of keys and values
# that one process keeps for all of them. Each comparison is a *round*. The keys of a
# round begin with its number:
#
# | key | value | written by |
# |---|---|---|
# | `first` | the first rank that took part, and its step | that rank |
# | `came` | the ranks that take part with the same step, one bit for each | each of them |
# | `decided` | the result of the round | the first rank that knows it |
# | `read` | the number of ranks that have read that the ranks disagree | each of them |
#
# A round ends in one of four ways:
#
# - All ranks take part, and have the same step.
# - A rank takes part with another step.
# - A rank that does not take part reads the store, and finds that it has already
#   started another exchange.
# - The time limit is over.
#
# Several ranks may find an end at the same moment. So `decided` is written only if it is
# empty, and every rank takes the value that is there.
#
# A rank that is only late causes no disagreement. In the first step one rank may
# compile for minutes while the others have finished. These [report it](watchdog.py)
# after one minute. They wait as long as they would wait in an exchange, which is the
# time limit of their process group. After that they raise an error that names the ranks
# that have not taken part. A rank of this machine that [has
# died](agreement.py#module/a-rank-whose-process-has) is named within a second.


class Rendezvous:
    """The rounds of some ranks. Ranks that take part in a round leave it together.

    A round costs each rank a few messages of some hundred bytes, whatever the number of
    ranks, and some short messages after each pause while it waits.

    :param store: keys that no other rendezvous uses, the same ones on all its ranks
    :param rank: this process, numbered among all processes
    :param world_size: how many ranks must take part
    :param limit: how long a rank waits for the others
    """

    # How long a rank waits for the store before it looks whether a rank has died.
    glance = timedelta(seconds=1)

    def __init__(self, store: Any, rank: int, world_size: int, limit: timedelta):
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.limit = limit
        self.ranks: Sequence[int] = range(world_size)
        self.rounds = 0
        self.verdict: str | None = None
        # The number of exchanges that this rank has started, and [the one in which it
        # has waited](watchdog.py#waits_in) for a while.
        self.issued = 0
        self.waits_in = -1
        # Another thread [may read the
        # store](watchdog.py#module/a-monitor-thread-for-ranks) while this one is in no
        # round.
        self.lock = threading.Lock()
        # This rank's report about [a standstill](watchdog.py) that lasts.
        self.standstill = ""

    @staticmethod
    def of(group: Any) -> Rendezvous:
        """A rendezvous of the ranks of a process group."""
        ranks = tuple(dist.get_process_group_ranks(group))
        digest = sha256(repr(ranks).encode()).hexdigest()[:16]
        # These ranks may shard several models. They do so in the same order, so each
        # rendezvous gets the same number on all of them, and its own keys.
        prefix = f"shardbook.foundations.agreement/{digest}/{opened[ranks]}"
        opened[ranks] += 1
        store: Any = default_store()
        keys = PrefixStore(prefix, store)
        limit = limit_of(group, store.timeout)
        rendezvous = Rendezvous(keys, dist.get_rank(), len(ranks), limit)
        rendezvous.ranks = ranks
        sign_in(keys, rendezvous.rank)
        return rendezvous

    def agree(self, issued: int, step: Step, known: Step | None) -> None:
        """Return if all ranks are about to start this step, and raise an error on all
        ranks if one is not.
        """
        with self.lock:
            self.hold(issued, step, known)

    def hold(self, issued: int, step: Step, known: Step | None) -> None:
        """Hold a round, unless the ranks have disagreed already."""
        if self.verdict is not None:
            raise Disagreement(self.verdict)
        mine = Wish(self.rank, issued, step, known)
        try:
            answer = self.answer(mine)
        except RuntimeError as error:
            self.lose_store(mine, error)
        except BaseException as error:
            self.withdraw(mine, error)
            raise
        if answer != AGREED:
            self.part(answer)
        self.rounds += 1

    def answer(self, mine: Wish) -> str:
        """The result of the round, the same on all ranks: `AGREED` or an error's text."""
        number = self.rounds
        # Each rank compares its step with that of the first rank. So a comparison takes
        # the same time for any number of ranks, and a difference is found as soon as it
        # arrives.
        first = self.open(mine)
        if (first.issued, first.step) != (mine.issued, mine.step):
            return self.publish(f"{mine}, but {first}; {rule(first.step, mine.step)}")
        if self.come():
            answer = self.publish(AGREED)
            # All ranks are here, so the keys of the round before are no longer read.
            for key in ("first", "decided", *self.words(), *["words"][: self.shared]):
                self.store.delete_key(f"{number - 1}/{key}")
            return answer
        if not self.wait_for(f"{number}/decided"):
            dead = ended(self.store, self.missing())
            return self.publish(f"{mine}, but {self.absent(dead)}", len(dead))
        return str(self.store.get(f"{number}/decided").decode())

    def open(self, mine: Wish) -> Wish:
        """Open the next round, unless another rank was faster.

        :returns: the record of the first rank that came
        """
        text = self.store.compare_set(f"{self.rounds}/first", "", json.dumps(mine))
        return Wish.read(text)

    def come(self) -> bool:
        """Record that this rank takes part.

        A number of the store has 64 bits. So some ranks share one number, and the last
        of them adds one to the count of full numbers.

        :returns: whether all ranks take part
        """
        word, bit = divmod(self.ranks.index(self.rank), WORD)
        came = self.store.add(f"{self.rounds}/came/{word}", 1 << bit)
        if came != (1 << len(self.ranks[word * WORD :][:WORD])) - 1:
            return False
        words = len(self.words())
        return not self.shared or self.store.add(f"{self.rounds}/words", 1) == words

    def wait_for(self, key: str) -> bool:
        """Wait until the store has a key, for as long as the limit allows.

        The store could wake a waiting rank up. But PyTorch prints a warning when such a
        wait ends without the key, and an interrupt from the keyboard comes only then.
        """
        end = clock() + self.limit.total_seconds()
        while True:
            until(lambda: bool(self.store.check([key])), self.glance)
            # If the process that keeps the store has ended, this raises an error.
            if self.store.check([key]):
                return True
            # A rank that [has died](agreement.py#module/a-rank-whose-process-has) will
            # not take part.
            if clock() >= end or ended(self.store, self.missing()):
                return False

    def look(self, issued: int) -> None:
        """Raise an error if a rank has opened a round in which this rank cannot take
        part.

        Compare the numbers of exchanges. If the other rank has started at least as many
        as this one, it is ahead, and this rank will take part in the round later. If it
        has started fewer, this rank has already started, as agreed before, the exchange
        at whose place the other has opened the round. The two disagree.
        """
        number = self.rounds
        if not self.store.check([f"{number}/first"]):
            return
        first = Wish.read(self.store.get(f"{number}/first"))
        if first.issued < issued:
            went = f"rank {self.rank} went on, as agreed before, to "
            went += f"{first.known or f'exchange {issued}'}"
            self.part(
                self.publish(f"{first}, but {went}; {rule(first.step, first.known)}")
            )
        if self.store.check([f"{number}/decided"]):
            self.part(self.store.get(f"{number}/decided").decode())

    def publish(self, decision: str, dead: int = 0) -> str:
        """Write the result of the round, unless another rank was faster.

        :param dead: how many ranks will never read it, because they have died
        :returns: the result that is in the store
        """
        key = f"{self.rounds}/decided"
        decided = str(self.store.compare_set(key, "", decision).decode())
        if dead and decided == decision:
            self.store.add(f"{self.rounds}/read", dead)
        return decided

    def part(self, verdict: str) -> NoReturn:
        """Raise the error once every rank has read it.

        The process of one rank may keep the store, which ends with that process. But an
        unreachable rank reads nothing, so this rank waits for a few seconds only.
        """
        self.verdict = verdict
        key = f"{self.rounds}/read"
        with suppress(RuntimeError):
            self.store.add(key, 1)
            until(lambda: self.store.add(key, 0) == self.world_size, FAREWELL)
        raise Disagreement(verdict)

    # sidelit: depth An interrupt, a lost store, ranks that do not come, over 32 ranks, and other threads.

    def withdraw(self, mine: Wish, error: BaseException) -> None:
        """Take part in no further round after an interrupt, and tell the other ranks."""
        # This rank may have been counted before the interrupt. If it came to the same
        # round again, the others would count it twice.
        name = type(error).__name__
        self.verdict = (
            f"{mine}, but did not wait for the other ranks ({name}); "
            "start the program again on every rank"
        )
        with suppress(RuntimeError):
            self.publish(self.verdict)

    def lose_store(self, mine: Wish, error: RuntimeError) -> NoReturn:
        """Refuse to continue without the store, whose process has ended."""
        self.verdict = (
            f"{mine}, but the store through which the ranks agree cannot be reached "
            f"({str(error).splitlines()[0]}); the process that keeps it, rank 0 or "
            "torchrun, has ended: see its own output"
        )
        raise Disagreement(self.verdict) from error

    def missing(self) -> list[int]:
        """The ranks that have not taken part in this round."""
        came = [self.store.add(f"{self.rounds}/{word}", 0) for word in self.words()]
        return [
            rank
            for place, rank in enumerate(self.ranks)
            if not came[place // WORD] >> place % WORD & 1
        ]

    def absent(self, dead: Sequence[int]) -> str:
        """The text about ranks that have died, or have not come in time."""
        missing = self.missing()
        if dead:
            return f"rank {', '.join(map(str, dead))} has died; see its own output"
        return (
            f"rank {', '.join(map(str, missing))} has not come to agree within "
            f"{self.limit}, the time limit of the process group; if it is only late, as "
            "a rank that compiles, pass a longer timeout to init_process_group, and if "
            f"it has ended, see its own output{'; ' * bool(self.standstill)}"
            f"{self.standstill}"
        )

    def words(self) -> list[str]:
        """The keys of the numbers that hold one bit for each rank."""
        return [f"came/{word}" for word in range(-(-len(self.ranks) // WORD))]

    @property
    def shared(self) -> bool:
        """Whether the ranks need more than one number."""
        return len(self.ranks) > WORD

    def glimpse(self, issued: int, store: Any) -> None:
        """[Read the store](#Rendezvous.look) from another thread, unless this rank is in a
        round.

        :param store: the same keys over a connection of that thread
        """
        if self.lock.acquire(blocking=False):
            view = copy(self)
            view.store = store
            try:
                view.look(issued)
            except Disagreement:
                self.verdict = view.verdict
                raise
            finally:
                self.lock.release()


AGREED = "agreed"
FAREWELL = timedelta(seconds=3)
WORD = 32
clock = time.monotonic
opened: Counter[tuple[int, ...]] = Counter()


def until(condition: Callable[[], bool], limit: timedelta) -> bool:
    """Whether a condition came true in time.

    The condition is checked repeatedly, with pauses that grow with the time waited.
    """
    end, pause = clock() + limit.total_seconds(), 50e-6
    while not condition():
        if clock() > end:
            return False
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return True


# sidelit: depth Backends without a time limit of their own.


def limit_of(group: Any, otherwise: timedelta) -> timedelta:
    """How long the exchanges of a group may take.

    The limit is an option of the backend. A backend without options has the limit of
    the store, which is that of the first group.
    """
    limit = time_limit(dist.group.WORLD if group is None else group)
    return otherwise if limit is None else limit


# sidelit: core


# ## A rank whose process has ended
#
# > A killed rank sends no message, but the operating system knows that its process is gone.
#
# Suppose rank 1 is killed while rank 0 waits for it in [a
# round](agreement.py#module/rounds-through-the-store). From the store alone, rank 0
# cannot tell a killed rank from one that is compiling. After a minute it would
# [report](watchdog.py) that rank 1 does not come, without the reason, and it would wait
# until the time limit of the process group. So each rank writes into the store which
# process it is. A rank that has waited for a second looks up the processes of the ranks
# that have not come:
#
# | entry of a rank in the store | answer of the system | conclusion |
# |---|---|---|
# | another machine | none | the rank may be late |
# | this machine, process 4711, started at tick 81,300 | 4711 started then and runs | the rank is late |
# | the same | there is no 4711, or it started at another time | the rank has died |
#
# The system gives the number of a process to another process some day. So the entry holds
# the time at which the process started, too. Systems without Linux's `/proc` are not
# asked at all. `torchrun` watches the processes of each machine itself, and ends all
# ranks when one of them dies.
#
# In the middle of an exchange the backend closes the connection at once, and its error
# names a socket. In that case the same entries serve [to name the rank and the
# unit](watchdog.py#name_the_absent).


def sign_in(store: Any, rank: int) -> None:
    """Write into the store which process a rank is.

    :param store: keys that these ranks share
    """
    here = machine()
    if here is not None:
        pid = os.getpid()
        store.set(f"process/{rank}", json.dumps([here, pid, began(pid)]))


def ended(store: Any, ranks: Iterable[int]) -> list[int]:
    """The ranks among `ranks` whose processes ran on this machine and have ended."""
    here, found = machine(), []
    for rank in ranks:
        key = f"process/{rank}"
        if here is not None and store.check([key]):
            where, pid, start = json.loads(store.get(key))
            if where == here and began(pid) != start:
                found.append(rank)
    return found


def machine() -> str | None:
    """The name of the machine or container within which process numbers are unique.

    :returns: `None` without `/proc`
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Inside a container the same numbers belong to other processes.
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def began(pid: int) -> int | None:
    """The time at which a process started, in ticks of the system's clock.

    :returns: `None` if the process has ended
    """
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The program's name comes second, in brackets, and may contain any character.
    state, *numbers = said.rpartition(")")[2].split()
    # A process whose exit code has not been fetched is still listed.
    return None if state in "ZX" else int(numbers[18])
