r"""# A rank whose process has ended

> A killed rank sends no message, but the operating system knows that its process is gone.

Suppose rank 1 is killed while rank 0 waits for it in [a round](store_rounds.py). From
the store alone, rank 0 cannot tell a killed rank from one that is compiling. After a
minute it would [report](standstill.py) that rank 1 does not come, without the reason,
and it would wait until the time limit of the process group. So each rank writes into
the store which process it is. A rank that has waited for a second looks up the
processes of the ranks that have not come:

| entry of a rank in the store | answer of the system | conclusion |
|---|---|---|
| another machine | none | the rank may be late |
| this machine, process 4711, started at tick 81,300 | 4711 started then and runs | the rank is late |
| the same | there is no 4711, or it started at another time | the rank has died |

The system gives the number of a process to another process some day. So the entry holds
the time at which the process started, too. Systems without Linux's `/proc` are not
asked at all. `torchrun` watches the processes of each machine itself, and ends all
ranks when one of them dies.

In the middle of an exchange the backend closes the connection at once, and its error
names a socket. In that case the same entries serve [to name the rank and the
unit](leaving.py#name_the_absent).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["ended", "sign_in"]


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
