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
from dataclasses import asdict, astuple, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
SET_FLAGS, UP_AND_RUNNING = 0x8914, 0x41


@dataclass(frozen=True)
class Size:
    """The model, the batch and the number of timed steps."""

    layers: int
    width: int
    context: int
    batch: int
    steps: int


@dataclass(frozen=True)
class Run:
    """What one run showed: seconds a step, peak bytes over the base, bytes sent by a rank in a step."""

    seconds: float
    peak: float
    sent: float | None
    parameters: int


def run(name: str, ranks: int, size: Size) -> Run:
    """Run one contender and read its figures from the last line that it prints."""
    command = [sys.executable, "-m", "benchmarks.launch", name, str(ranks), json.dumps(asdict(size))]
    apart = namespace()
    # Large blocks go back to the system as soon as they are freed, or the peak would depend on luck.
    settings = {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        [*apart, *command],
        cwd=ROOT,
        env={**os.environ, **settings, "COUNTED": "1" if apart else ""},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def namespace() -> list[str]:
    """The command that gives a program a network of its own, or nothing where the system forbids it."""
    command = ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None:
        return []
    return command if subprocess.run([*command, "true"], capture_output=True).returncode == 0 else []


def start(name: str, ranks: int, size: Size) -> None:
    """Run all ranks in this network and leave their output on ours."""
    if os.environ["COUNTED"]:
        raise_loopback()
    port = free_port()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contender", name, *map(str, astuple(size))],
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
    codes = [process.wait() for process in processes]
    if any(codes):
        sys.exit(f"{name} on {ranks} ranks failed; its message stands above")


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
    start(sys.argv[1], int(sys.argv[2]), Size(**json.loads(sys.argv[3])))
