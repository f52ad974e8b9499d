"""Ranks that exchange over NCCL, also two on one card, and jobs for them that may go wrong.

NCCL refuses two ranks of one host on one card, and tells hosts apart by `NCCL_HOSTID`. So ranks that share a
card each get a name of their own, and exchange as between two machines, over the loopback.

A job may raise, hang, or end its process, and the others must still be done:

    jobs = Jobs(together(kit), on_a_rank, seconds=20)  # a function at the top level of the part's module
    found = jobs.run(["first", "second"])  # each rank calls on_a_rank("first"), and then on_a_rank("second")
    found["second"].values, found["second"].why  # what each rank has returned, and what went wrong

Each rank writes down what a job returns before it begins the next one. The jobs after one that has ended a
process go on in fresh processes.
"""

from __future__ import annotations

import faulthandler
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from tools.gpu.kit import BACKENDS, Kit
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from shardbook.foundations.ranks import RanksFailed, ServerEnded

# What NCCL needs to connect ranks that share a card.
APART = {
    "NCCL_HOSTID": "host-{rank}",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_GIN_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
}


@dataclass(frozen=True)
class Together:
    """How several ranks of a part run.

    :param count: the number of ranks
    :param backend: what carries their exchanges
    :param environ: variables of each rank
    :param why: why it is not NCCL, on a machine with CUDA
    """

    kit: Kit
    count: int
    backend: str
    environ: Mapping[str, str] = field(default_factory=dict)
    why: str = ""

    def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        timeout: float,
        environ: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call a function on all of these ranks."""
        variables = {**self.environ, **(environ or {})}
        return self.kit.ranks(
            self.count, function, *args, backend=self.backend, timeout=timeout, environ=variables
        )


def together(kit: Kit) -> Together:
    """As many ranks as there are cards, or two on one card, over NCCL if it connects them."""
    _, shared = BACKENDS[kit.device]
    if kit.device != "cuda":
        return Together(kit, kit.several, shared)
    if not dist.is_nccl_available():
        return Together(kit, kit.several, shared, why="this PyTorch has no NCCL")
    with tempfile.TemporaryDirectory(prefix="nccl-") as folder:
        # Every warning of NCCL is in the file of its rank.
        notes = {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": f"{folder}/{{rank}}"}
        found = Together(kit, kit.several, "nccl", APART if kit.cards == 1 else {})
        try:
            if found.call(connects, timeout=30, environ=notes) == [True] * kit.several:
                return found
            why = "the sum of an all-reduce is wrong"
        except (RanksFailed, ServerEnded) as error:
            print(error, flush=True)
            told = [line for line in str(error).splitlines() if line.strip()]
            texts = [file.read_text("utf-8", "replace") for file in sorted(Path(folder).iterdir())]
            warned = [line for text in texts for line in text.splitlines() if "WARN" in line]
            why = warned[0] if warned else f"{told[0]} … {told[-1]}"
    return Together(kit, kit.several, shared, why=why[:300])


def connects() -> bool:
    """Whether an all-reduce gives the sum."""
    device, size = take_device("cuda"), dist.get_world_size()
    values = torch.full((1000,), dist.get_rank() + 1.0, device=device)
    dist.all_reduce(values)
    return bool((values == size * (size + 1) / 2).all().item())


def take_device(kind: str) -> torch.device:
    """The device of this rank, which becomes the current one."""
    if kind == "cpu":
        return torch.device(kind)
    module = torch.get_device_module(kind)
    number = dist.get_rank() % module.device_count() if kind == "cuda" else 0
    module.set_device(number)
    if kind == "cuda":
        # The optimizer of an offloaded model runs on the host.
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // dist.get_world_size()))
    return torch.device(kind, number)


@dataclass
class Found:
    """What a job has come to.

    :param values: what each rank has returned, by its number
    :param why: what went wrong, with the number of the rank
    """

    values: dict[int, Any] = field(default_factory=dict)
    why: str = ""

    def take(self, rank: int, note: Mapping[str, Any], story: str) -> None:
        """Take over what a rank has written, or what is told of its end."""
        if "value" in note:
            self.values[rank] = note["value"]
        elif "error" in note:
            self.why = f"rank {rank}: {note['error']}"
        elif not self.why:
            marks = [line for line in story.splitlines() if line.startswith(f"--- rank {rank}: ")]
            self.why = f"rank {rank}: {marks[0].partition(': ')[2] if marks else 'it did not end'}"


@dataclass
class Jobs:
    """Jobs of one function, for ranks that share a process group or for ranks that train alone.

    :param seconds: how long a job may take
    :param alone: whether each rank is the only one of its group, and has jobs of its own
    """

    ranks: Together
    function: Callable[..., Any]
    seconds: float
    alone: bool = False
    environ: Mapping[str, str] = field(default_factory=dict)

    def run(self, keys: Sequence[str], *args: Any, limit: float | None = None) -> dict[str, Found]:
        """Do the jobs one after the other."""
        return self.share([keys] * self.ranks.count, *args, limit=limit)

    def share(
        self, shares: Sequence[Sequence[str]], *args: Any, limit: float | None = None
    ) -> dict[str, Found]:
        """Do the jobs of each rank, as long as there is time.

        :param shares: the jobs of each rank; the same ones if the ranks are not `alone`
        :param limit: the seconds for all jobs together
        :returns: what each job that was begun has come to
        """
        until = time.monotonic() + min(limit or self.ranks.kit.left, self.ranks.kit.left)
        found: dict[str, Found] = {}
        shares = [[*share] for share in shares]
        while any(shares) and until - time.monotonic() > 2:
            before = len(found)
            self.round(shares, args, until, found)
            shares = [[key for key in share if key not in found] for share in shares]
            if len(found) == before:
                break
        return found

    def round(
        self, shares: Sequence[Sequence[str]], args: Any, until: float, found: dict[str, Found]
    ) -> None:
        """Do jobs in one set of processes, until one of them ends its process."""
        story = ""
        with tempfile.TemporaryDirectory(prefix="jobs-") as folder:
            given = (folder, self.function, args, shares, self.seconds, until, self.alone)
            # What is left at the end is the time to start and to end.
            timeout = max(until - time.monotonic(), 1.0) + self.seconds + 10
            try:
                self.ranks.call(work, *given, timeout=timeout, environ=self.environ)
            except (RanksFailed, ServerEnded) as error:
                story = str(error)
            for file in Path(folder).glob("*.json"):
                for key, note in json.loads(file.read_text("utf-8")).items():
                    found.setdefault(key, Found()).take(int(file.stem), note, story)
        if story and not found:
            # Not even a first job was begun.
            raise AssertionError(story)


# --- on a rank ---


class Over(Exception):
    """Raised by a job with its result, if no other job may run in this process."""


class Notes:
    """What this rank has found so far, in a file."""

    current: Notes

    def __init__(self, folder: str) -> None:
        self.file = Path(folder, f"{dist.get_rank()}.json")
        self.told: dict[str, Any] = {}
        self.key = ""

    def begin(self, key: str) -> None:
        self.key = key
        self.write({})

    def value(self, value: Any) -> None:
        """Note the result of the present job. A thread may do that while the job itself still waits."""
        self.write({"value": value})

    def write(self, note: dict[str, Any]) -> None:
        self.told[self.key] = note
        draft = self.file.with_suffix(".draft")
        draft.write_text(json.dumps(self.told), "utf-8")
        draft.replace(self.file)


def work(
    folder: str,
    function: Callable[..., Any],
    args: Any,
    shares: Sequence[Sequence[str]],
    seconds: float,
    until: float,
    alone: bool,
) -> None:
    """Do the jobs of this rank."""
    Notes.current = notes = Notes(folder)
    rank, store = dist.get_rank(), PrefixStore("jobs", _get_default_store())
    if alone:
        backend = dist.get_backend_config().split(",")
        dist.destroy_process_group()
        name = "gloo" if "cuda:gloo" in backend else ",".join(backend)
        dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
    for number, key in enumerate(shares[rank]):
        # One rank decides for all whether there is time, so that none is left behind.
        go = time.monotonic() < until
        if not alone and rank == 0:
            store.set(f"go/{number}", str(int(go)))
        elif not alone:
            go = store.get(f"go/{number}") == b"1"
        if not go:
            break
        faulthandler.dump_traceback_later(seconds, exit=True)
        notes.begin(key)
        try:
            notes.value(function(key, *args))
        except Over as over:
            notes.value(over.args[0])
            leave(store)
        except Exception as error:
            traceback.print_exc()
            said = str(error).strip().splitlines() or [""]
            notes.write({"error": f"{type(error).__name__}: {said[0]}"[:300]})
            os._exit(1)
    faulthandler.cancel_dump_traceback_later()


def leave(store: Any) -> NoReturn:
    """End this process at once, when the others are about to as well: an exchange may be stuck."""
    with suppress(RuntimeError):
        store.add("over", 1)
        end = time.monotonic() + 3
        while store.add("over", 0) < dist.get_world_size() and time.monotonic() < end:
            time.sleep(0.05)
    os._exit(0)


def agreed(values: Mapping[int, Any], count: int) -> bool:
    """Whether all ranks have returned the same."""
    return len(values) == count and len({json.dumps(value) for value in values.values()}) == 1
