"""Start ranks, where possible on a network that counts nothing but their bytes."""

from __future__ import annotations

import fcntl
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from shardbook.foundations.ranks import Server, Task

ROOT = Path(__file__).parent.parent
SET_FLAGS, UP_AND_RUNNING = 0x8914, 0x41


@dataclass(frozen=True)
class Size:
    """The model, the batch, and the number of steps before and under the clock."""

    layers: int = 8
    width: int = 512
    heads: int = 8
    context: int = 128
    vocabulary: int = 8192
    batch: int = 4
    steps: int = 6
    warm_up: int = 2


@dataclass(frozen=True)
class Run:
    """What one run showed: the slowest rank's median step, and bytes of the rank with most.

    `cpu` are the seconds that a rank's threads compute in a step, however long they wait for a core. `wire`
    are the bytes that the network counted, for one rank and one step; `payload` those of our ledger.
    `checks` are the seconds that a step spends on checking the order of its exchanges, `waits` those that it
    waits for their end, and `stored` what the bytes between two steps are. The last four are known of our own
    runs only.
    """

    seconds: float
    cpu: float
    peak: float
    steady: float
    wire: float | None
    payload: float | None
    checks: float | None
    waits: float | None
    stored: dict[str, int] | None


def enter_network() -> None:
    """Start this program anew in a network of its own, where the system permits that."""
    if "COUNTED" not in os.environ:
        # Large blocks go back to the system as soon as they are freed, or the peak would depend on luck.
        settings = {"MALLOC_MMAP_THRESHOLD_": "65536", "COUNTED": "1" if namespace() else ""}
        # A network of its own knows no host names, and torch warns of it in each process.
        settings["TORCH_CPP_LOG_LEVEL"] = "ERROR"
        words = [*namespace(), sys.executable, "-m", "benchmarks", *sys.argv[1:]]
        os.execvpe(words[0], words, {**os.environ, **settings})
    if os.environ["COUNTED"]:
        raise_loopback()


@cache
def namespace() -> tuple[str, ...]:
    """The command that gives a program a network of its own, or nothing where the system forbids it."""
    command = ("unshare", "--map-root-user", "--net")
    if shutil.which("unshare") is None:
        return ()
    return command if subprocess.run([*command, "true"], capture_output=True).returncode == 0 else ()


def raise_loopback() -> None:
    """A fresh network has one interface, and that one is down."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", UP_AND_RUNNING))


SERVER = Server(["benchmarks.contender"])
DAY_S = 24 * 60 * 60.0


def on_ranks(count: int, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function on several ranks, each a fresh process, and return what rank 0 has returned."""
    # The module of a program has a name by which the ranks can import it.
    spec = sys.modules[function.__module__].__spec__
    assert spec is not None
    named = getattr(import_module(spec.name), function.__name__)
    return SERVER.run(Task(count, pickle.dumps((named, arguments)), seconds=DAY_S))[0]
