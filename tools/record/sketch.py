"""The bytes that the sketch of lesson 0 stores on a rank, plain and sharded, as the program prints them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

from tools.record.frame import ROOT

RANKS = (2, 4)
KINDS = ("parameters", "gradients", "optimizer state", "together")


def record() -> Any:
    """Runs on 2 and on 4 ranks, with the commands that a reader would type."""
    return [run(world_size) for world_size in RANKS]


def exact(data: Any) -> Any:
    """The bytes, and not the last digits of losses."""
    return [{key: one[key] for key in ("run", "ranks", *KINDS)} for one in data]


def run(world_size: int) -> Any:
    """What one run prints, as numbers."""
    words = ["--standalone", "--nproc-per-node", str(world_size), "-m", "shardbook.sketch"]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words],
        cwd=ROOT,
        env={
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TORCH_CPP_LOG_LEVEL": "ERROR",
        },
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    losses = re.findall(r"loss: plain (\S+), sharded (\S+)", done.stdout)
    return {
        "run": " ".join(["torchrun", *words]),
        "ranks": world_size,
        "losses": [[float(loss) for loss in pair] for pair in losses],
        "largest_difference": float(done.stdout.rsplit(" ", 1)[1]),
        **{kind: bytes_of(kind, done.stdout) for kind in KINDS},
    }


def bytes_of(kind: str, printed: str) -> list[int]:
    """The plain and the sharded number of a row."""
    (found,) = re.findall(rf"^{kind} +([\d,]+) +([\d,]+)$", printed, re.MULTILINE)
    return [int(number.replace(",", "")) for number in found]
