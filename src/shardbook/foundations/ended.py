r"""# A rank that has died

> A rank that was killed says nothing, but the system knows that its process is gone.

A rank that waits in [a round](store_rounds.py) would wait for a dead one as long as for
one that compiles. After a minute it would [report](standstill.py) that this rank does
not come, and not why, and it would go on waiting until the time limit of the process
group. So each rank writes into the store which process it is. A rank that has waited
for a second asks the system about the processes that have not come:

| what the store says of a rank | what the system says | so the rank |
|---|---|---|
| another machine | nothing | may be late |
| this machine, process 4711, begun at tick 81,300 | 4711 has begun then and runs | is late |
| the same | there is no 4711, or it is another one | has died |

A number of a process is used again some day, so the moment at which it began belongs to
it. Where Linux's `/proc` is missing nobody is asked. `torchrun` has its own eyes on
each machine: it ends all ranks when one dies.

In the middle of an exchange the backend closes the connection at once, and its error
names a socket. There the same question [names the rank and the
unit](leaving.py#name_the_absent).
"""

# sidelit: hide
from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["ended", "sign_in"]
# sidelit: show


def sign_in(store: Any, rank: int) -> None:
    """Write down which process a rank is.

    :param store: keys that these ranks share
    """
    here = machine()
    if here is not None:
        pid = os.getpid()
        store.set(f"process/{rank}", json.dumps([here, pid, began(pid)]))


def ended(store: Any, ranks: Iterable[int]) -> list[int]:
    """Those of some ranks whose processes were on this machine and are gone."""
    here, found = machine(), []
    for rank in ranks:
        key = f"process/{rank}"
        if here is not None and store.check([key]):
            where, pid, start = json.loads(store.get(key))
            if where == here and began(pid) != start:
                found.append(rank)
    return found


def machine() -> str | None:
    """What the processes that can see each other have in common; `None` without `/proc`."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Inside of a container the same numbers mean other processes.
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return None


def began(pid: int) -> int | None:
    """When a process began, in ticks of the system's clock; `None` if it has ended."""
    try:
        said = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name of the program comes second, in brackets, and may hold any letter.
    state, *numbers = said.rpartition(")")[2].split()
    # A process that nobody has asked for its exit code is still listed.
    return None if state in "ZX" else int(numbers[18])
