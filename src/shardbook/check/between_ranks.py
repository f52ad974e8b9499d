r"""# Comparing notes between ranks

> Some faults show only when ranks compare what they have done, so they exchange notes
> through the store.

Suppose every rank trains on the same batch. No rank can detect this fault alone, because
each sees a normal batch. So the ranks of a checked run compare notes. They do not use
collectives for this, because the order of the collectives is itself checked. Instead
each rank writes a short text into the *store*, the small table through which the ranks
[found each other](store_rounds.py). Then it reads the texts of the others under the
same key.

A rank whose program took another branch may never write its note. The other ranks wait
for it up to a limit. For a rank that has ended they do not wait at all.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from shardbook.foundations.torch_private import default_store

__all__ = ["BetweenRanks"]


class BetweenRanks:
    """Exchanges notes between the ranks of one checked run.

    The object is made after the script has joined its process group.
    """

    # `limit` is the time in seconds that a rank waits for the notes of others. `runs`
    # counts the checked runs of this process.
    limit = 10.0
    runs = 0

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        store: Any = default_store()
        # Each run has keys of its own.
        BetweenRanks.runs += 1
        self.store = PrefixStore(f"shardbook.check/{BetweenRanks.runs}", store)
        # The ranks that did not answer in time. Later notes of these ranks are read if
        # they exist already, without waiting.
        self.silent: set[int] = set()

    def compare(self, key: str, note: Any) -> list[Any]:
        """Write this rank's note, and read those of all ranks.

        :param key: a name that is used for this comparison only
        :param note: plain data
        :returns: the notes in rank order, `None` for a rank that wrote none in time
        """
        self.store.set(f"{key}/{self.rank}", json.dumps(note))
        end = time.monotonic() + self.limit
        return [
            note if rank == self.rank else self.wait_for(f"{key}/{rank}", rank, end)
            for rank in range(self.world_size)
        ]

    def wait_for(self, key: str, rank: int, end: float) -> Any:
        """Wait for the note of another rank; `None` if the note does not come.

        :param end: the time at which to stop waiting, by the monotonic clock
        """
        while not self.store.check([key]):
            over = self.store.check([f"{ENDED}/{rank}"]) and not self.store.check([key])
            if over or rank in self.silent or time.monotonic() >= end:
                self.silent.add(rank)
                return None
            # The store's own `wait` would print a warning for each timeout.
            time.sleep(0.005)
        return json.loads(self.store.get(key))

    def ended(self, note: Any) -> list[Any]:
        """Make the last comparison. After this call no rank waits for this rank.

        :returns: on rank 0 the notes of all ranks, on the others only this rank's note
        """
        if self.rank:
            # If rank 0 runs the store and has ended already, writing fails.
            with suppress(RuntimeError):
                self.store.set(f"{ENDED}/{self.rank}", json.dumps(note))
            return [note]
        self.silent.clear()
        return self.compare(ENDED, note)


# The key of the last notes.
ENDED = "ended"
