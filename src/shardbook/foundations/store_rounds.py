r"""# A round through the store

> Ranks that are about to take the same step go on together. If their steps differ, all raise one error.

[The order](exchange_order.py) is known to every rank after the first step. This chapter
is about the moments in which a rank does not find its next step there. It then has to
ask all other ranks, without any of the exchanges that it is about to check.

So it asks through the store, a table of keys and values that one process keeps for all.
Each round has keys of its own, which begin with the number of the round:

| key | value | who writes it |
|---|---|---|
| `first` | the rank that came first, and what it is about to do | the first to come |
| `came` | which ranks have come with the same wish, a bit for each | each of them |
| `decided` | how the round ends | the first rank that knows it |
| `read` | how many have read that the ranks disagree | each of them |

A round ends in one of four ways. The last rank comes, and all have the same wish. A
rank comes with another wish. A rank that does not come looks into the store and sees
that it has already gone another way. Or the time limit is over. Several ranks may find
an end at the same moment, so `decided` is written only if it is empty, and every rank
takes the value that is there.

A rank that is only late disagrees with nobody. In the first step one rank may compile
for minutes while the others are done. They [report it](standstill.py) after one minute,
and wait as long as they would wait in an exchange, that is, for the time limit of their
process group. If that is over, they raise an error that names the ranks that have not
come. A rank of this machine that [has died](ended.py) is named within a second.
"""

# sidelit: hide
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
# sidelit: show


class Meeting:
    """The rounds that ranks hold through the store. Ranks that come to a round leave it together.

    A round costs each rank a few messages of some hundred bytes, however many ranks
    there are, and a short one for each `glance` while it waits.

    :param store: keys that no other meeting uses, the same ones on all its ranks
    :param rank: this process, numbered among all processes
    :param world_size: how many ranks have to come
    :param limit: how long a rank waits for the others
    """

    # How long a rank waits for the store before a keyboard interrupt can get through.
    glance = timedelta(seconds=1)

    def __init__(self, store: Any, rank: int, world_size: int, limit: timedelta):
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.limit = limit
        self.ranks: Sequence[int] = range(world_size)
        self.rounds = 0
        self.verdict: str | None = None
        # How many exchanges this rank has started, and [in which one it has
        # waited](leaving.py#waits_in) for a while.
        self.issued = 0
        self.waits_in = -1
        # Another thread [may look](monitor.py) while this one does not hold a round.
        self.lock = threading.Lock()
        # What this rank has reported about [a standstill](standstill.py) that lasts.
        self.standstill = ""

    @staticmethod
    def of(group: Any) -> Meeting:
        """A meeting of the ranks of a process group."""
        ranks = tuple(dist.get_process_group_ranks(group))
        digest = sha256(repr(ranks).encode()).hexdigest()[:16]
        # These ranks may shard several models. They do so in the same order, so each
        # meeting gets the same number on all of them, and keys of its own.
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
        """Return when all ranks are about to take this step; raise on all ranks if one is not."""
        with self.lock:
            self.hold(issued, step, known)

    def hold(self, issued: int, step: Step, known: Step | None) -> None:
        """Hold a round, unless the ranks have disagreed meanwhile."""
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
        """What the round ends with, the same on all ranks: `AGREED` or the sentence to raise."""
        number = self.rounds
        # Each rank compares its wish with that of the first to come. So it does not
        # matter how many ranks there are, and the first difference is found when it
        # arrives.
        first = self.open(mine)
        if (first.issued, first.step) != (mine.issued, mine.step):
            return self.publish(f"{mine}, but {first}; {rule(first.step, mine.step)}")
        if self.come():
            answer = self.publish(AGREED)
            # All ranks are here, so nobody reads the keys of the round before.
            for key in ("first", "decided", *self.words(), *["words"][: self.shared]):
                self.store.delete_key(f"{number - 1}/{key}")
            return answer
        if not self.wait_for(f"{number}/decided"):
            dead = ended(self.store, self.missing())
            return self.publish(f"{mine}, but {self.absent(dead)}", len(dead))
        return str(self.store.get(f"{number}/decided").decode())

    def open(self, mine: Wish) -> Wish:
        """Open the next round, unless another rank was faster; the wish of the first to come."""
        text = self.store.compare_set(f"{self.rounds}/first", "", json.dumps(mine))
        return Wish.read(text)

    def come(self) -> bool:
        """Note that this rank has come.

        A number of the store has 64 bits. So some ranks share one number, and the last
        of them counts it.

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

        The store wakes a waiting rank up. Each wait is short, so that an interrupt from
        the keyboard gets through, and others in this process can use the store.
        """
        end = clock() + self.limit.total_seconds()
        while True:
            with suppress(RuntimeError):
                self.store.wait([key], self.glance)
            # If the store is gone, this raises again.
            if self.store.check([key]):
                return True
            # A rank that [has died](ended.py) will not come.
            if clock() >= end or ended(self.store, self.missing()):
                return False

    def look(self, issued: int) -> None:
        """Raise if a rank has opened a round and this rank cannot come to it any more.

        A rank that has started no fewer exchanges than this one has started all that
        this one waits for. It is ahead, and this rank will come to the round later. A
        rank that has started fewer stands where this one went on as agreed.
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
        """Decide how the round ends, unless another rank was faster; return what was decided.

        :param dead: how many ranks will never read it, because they have died
        """
        key = f"{self.rounds}/decided"
        decided = str(self.store.compare_set(key, "", decision).decode())
        if dead and decided == decision:
            self.store.add(f"{self.rounds}/read", dead)
        return decided

    def part(self, verdict: str) -> NoReturn:
        """Raise the verdict, once every rank has read it.

        One of the ranks may be the one that keeps the store, and the store ends with
        it. But a rank that cannot be reached reads nothing, so this does not wait for
        long.
        """
        self.verdict = verdict
        key = f"{self.rounds}/read"
        with suppress(RuntimeError):
            self.store.add(key, 1)
            until(lambda: self.store.add(key, 0) == self.world_size, FAREWELL)
        raise Disagreement(verdict)

    # sidelit: depth An interrupt, a lost store, ranks that do not come, over 32 ranks, and other threads.

    def withdraw(self, mine: Wish, error: BaseException) -> None:
        """Take part in no other round after an interrupt, and let the others know."""
        # This rank was interrupted and may have been counted. If it came to the same
        # round again, the others would take it for two ranks.
        name = type(error).__name__
        self.verdict = (
            f"{mine}, but did not wait for the other ranks ({name}); "
            "start the program again on every rank"
        )
        with suppress(RuntimeError):
            self.publish(self.verdict)

    def lose_store(self, mine: Wish, error: RuntimeError) -> NoReturn:
        """Refuse to go on without the store, which has ended with the process that keeps it."""
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
        """The sentence about ranks that have died, or have not come in time."""
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
        """The keys of the numbers that hold a bit for each rank."""
        return [f"came/{word}" for word in range(-(-len(self.ranks) // WORD))]

    @property
    def shared(self) -> bool:
        """Whether the ranks need more than one number."""
        return len(self.ranks) > WORD

    def glimpse(self, issued: int, store: Any) -> None:
        """[Look](#Meeting.look) from another thread, unless this rank holds a round.

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
    """Whether the condition came true in time.

    The store can wait for a key, but not for a number. So it is asked again and again,
    in pauses that grow with the time waited.
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
    """How long the exchanges of a group may take. Only the backend's options say so. A
    backend without them has the limit of the store, which is that of the first group.
    """
    limit = time_limit(dist.group.WORLD if group is None else group)
    return otherwise if limit is None else limit
