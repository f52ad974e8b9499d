r"""# What the ranks tell each other

> The ranks of a watched run compare notes through the store, beside the exchanges that are being watched.

Some faults are seen by no rank alone: the same batch on every rank, or one rank that
leaves out a step. So the ranks compare. They do not use exchanges for that, since the
order of the exchanges is one of the things that are checked. They write short texts into
the *store*, the small table by which the ranks [found each other](store_rounds.py), and
each rank reads what the others have written under the same key.

A rank that has gone another way may never come to a comparison. Nobody waits for it
longer than a limit, and for a rank that has ended nobody waits at all.
"""

# sidelit: hide
from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from shardbook.foundations.torch_private import default_store

__all__ = ["BetweenRanks"]
# sidelit: show


class BetweenRanks:
    """The notes of all ranks of one watched run.

    It is made once the script has joined its process group.

    """

    # The seconds that a rank waits for the note of another, and how many runs this
    # process has watched.
    limit = 10.0
    runs = 0

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        store: Any = default_store()
        # Each run has keys of its own.
        BetweenRanks.runs += 1
        self.store = PrefixStore(f"shardbook.check/{BetweenRanks.runs}", store)
        # The ranks that did not answer in time. Their answers are taken if they are
        # there, and not waited for.
        self.silent: set[int] = set()

    def compare(self, key: str, note: Any) -> list[Any]:
        """Write this rank's note, and read those of all ranks.

        :param key: a name that no other comparison has
        :param note: plain data
        :returns: the notes in rank order, `None` for a rank that has written none in
            time
        """
        self.store.set(f"{key}/{self.rank}", json.dumps(note))
        end = time.monotonic() + self.limit
        return [
            note if rank == self.rank else self.wait_for(f"{key}/{rank}", rank, end)
            for rank in range(self.world_size)
        ]

    def wait_for(self, key: str, rank: int, end: float) -> Any:
        """The note of another rank; `None` if it does not come.

        :param end: the moment from which on nobody waits, by the monotonic clock
        """
        while not self.store.check([key]):
            over = self.store.check([f"{ENDED}/{rank}"]) and not self.store.check([key])
            if over or rank in self.silent or time.monotonic() >= end:
                self.silent.add(rank)
                return None
            # The store's own wait would write a warning for each wait in vain.
            time.sleep(0.005)
        return json.loads(self.store.get(key))

    def ended(self, note: Any) -> list[Any]:
        """The last comparison. From here on nobody waits for this rank.

        :returns: the notes of all ranks on rank 0, and on the others this rank's alone
        """
        if self.rank:
            # If rank 0 keeps the store and has ended, nobody is there to read.
            with suppress(RuntimeError):
                self.store.set(f"{ENDED}/{self.rank}", json.dumps(note))
            return [note]
        self.silent.clear()
        return self.compare(ENDED, note)


# The key of the last notes.
ENDED = "ended"
