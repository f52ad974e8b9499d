"""Start the ranks of one contender, where possible on a network that counts nothing but their bytes."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

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


def run(name: str, ranks: int, size: Size) -> Run:
    """Run one contender and read its figures from the last line that it prints."""
    command = [sys.executable, "-m", "benchmarks.launch", name, str(ranks), json.dumps(asdict(size))]
    # Large blocks go back to the system as soon as they are freed, or the peak would depend on luck.
    settings = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "GLOO_SOCKET_IFNAME": "lo"}
    # A network of its own knows no host names, and torch warns of it in each process.
    settings["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    done = subprocess.run(
        [*namespace(), *command],
        cwd=ROOT,
        env={**os.environ, **settings, "COUNTED": "1" if namespace() else ""},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{name} on {ranks} ranks failed; its message stands above")
    return Run(**json.loads(done.stdout.splitlines()[-1]))


@cache
def namespace() -> tuple[str, ...]:
    """The command that gives a program a network of its own, or nothing where the system forbids it."""
    command = ("unshare", "--map-root-user", "--net")
    if shutil.which("unshare") is None:
        return ()
    return command if subprocess.run([*command, "true"], capture_output=True).returncode == 0 else ()


def start(name: str, ranks: int, size: str) -> int:
    """Run all ranks in this network and leave their output on ours."""
    if os.environ["COUNTED"]:
        raise_loopback()
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contender", name, size],
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
        )
        for rank in range(ranks)
    ]
    return max(abs(process.wait()) for process in processes)


def raise_loopback() -> None:
    """A fresh network has one interface, and that one is down."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sH14x", b"lo", UP_AND_RUNNING))


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


if __name__ == "__main__":
    sys.exit(start(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
