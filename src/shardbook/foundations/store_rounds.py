r"""# Rounds through the store

> Ranks that are about to start the same exchange continue together. If two differ, all ranks raise one error.

After the first step every rank knows [the order](exchange_order.py) of the exchanges.
This chapter is about the moments in which a rank does not find its next exchange there.
It must then ask all other ranks, and it cannot use an exchange, because exchanges are
what it is about to check.

The ranks therefore compare their steps through the store, a table of keys and values
that one process keeps for all of them. Each comparison is a *round*. The keys of a
round begin with its number:

| key | value | written by |
|---|---|---|
| `first` | the rank that came first, and its step | the first rank that comes |
| `came` | the ranks that have come with the same step, one bit for each | each of them |
| `decided` | the result of the round | the first rank that knows it |
| `read` | the number of ranks that have read that the ranks disagree | each of them |

A round ends in one of four ways:

- The last rank comes, and all have the same step.
- A rank comes with another step.
- A rank that does not come reads the store, and finds that it has already started
  another exchange.
- The time limit is over.

Several ranks may find an end at the same moment. So `decided` is written only if it is
empty, and every rank takes the value that is there.

A rank that is only late causes no disagreement. In the first step one rank may compile
for minutes while the others have finished. These [report it](standstill.py) after one
minute. They wait as long as they would wait in an exchange, which is the time limit of
their process group. After that they raise an error that names the ranks that have not
come. A rank of this machine that [has died](ended.py) is named within a second.
"""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from datetime import timedelta
from hashlib import sha256
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from shardbook.foundations.agreement import Disagreement
from shardbook.foundations.ended import ended, sign_in
from shardbook.foundations.steps import Step, Wish, rule
from shardbook.foundations.torch_private import default_store, time_limit

__all__ = ["Meeting"]


class Meeting:
    """The rounds of some ranks. Ranks that come to a round leave it together.

    A round costs each rank a few messages of some hundred bytes, whatever the number of
    ranks, and some short messages after each pause while it waits.

    :param store: keys that no other meeting uses, the same ones on all its ranks
    :param rank: this process, numbered among all processes
    :param world_size: how many ranks must come
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
        # has waited](leaving.py#waits_in) for a while.
        self.issued = 0
        self.waits_in = -1
        # Another thread [may read the store](monitor.py) while this one is in no round.
        self.lock = threading.Lock()
        # This rank's report about [a standstill](standstill.py) that lasts.
        self.standstill = ""

    @staticmethod
    def of(group: Any) -> Meeting:
        """A meeting of the ranks of a process group."""
        ranks = tuple(dist.get_process_group_ranks(group))
        digest = sha256(repr(ranks).encode()).hexdigest()[:16]
        # These ranks may shard several models. They do so in the same order, so each
        # meeting gets the same number on all of them, and its own keys.
        prefix = f"shardbook.foundations.store_rounds/{digest}/{opened[ranks]}"
        opened[ranks] += 1
        store: Any = default_store()
        keys = PrefixStore(prefix, store)
        limit = limit_of(group, store.timeout)
        meeting = Meeting(keys, dist.get_rank(), len(ranks), limit)
        meeting.ranks = ranks
        sign_in(keys, meeting.rank)
        return meeting

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
        """Record that this rank has come.

        A number of the store has 64 bits. So some ranks share one number, and the last
        of them adds one to the count of full numbers.

        :returns: whether all ranks have come
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
            # If the store has ended, this raises an error.
            if self.store.check([key]):
                return True
            # A rank that [has died](ended.py) will not come.
            if clock() >= end or ended(self.store, self.missing()):
                return False

    def look(self, issued: int) -> None:
        """Raise an error if a rank has opened a round to which this rank cannot come.

        Compare the numbers of exchanges. If the other rank has started at least as many
        as this one, it is ahead, and this rank will come to the round later. If it has
        started fewer, this rank has already started, as agreed before, the exchange at
        whose place the other has opened the round. The two disagree.
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
        """The ranks that have not come to this round."""
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
        """[Read the store](#Meeting.look) from another thread, unless this rank is in a
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
