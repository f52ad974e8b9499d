"""The table that closes a run of `shardbook.train`, counted beside forecast, for each stage on two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tools.record.frame import ROOT

# So few tokens that the stages differ in their peaks, too.
OPTIONS = "--layers 8 --context 32 --batch 1 --steps 8"
KEPT = (
    *("ranks", "stage", "steps", "layers", "width", "heads", "context", "vocabulary", "parameters"),
    *("loss_first", "loss_last", "loss_of_not_knowing"),
    *(
        "sent",
        "sent_by_collective",
        "sent_forecast",
        "sent_formula",
        "steady",
        "steady_forecast",
        "steady_terms",
    ),
    *("peak", "peak_forecast", "peak_moment"),
)


def record() -> Any:
    """The figures of the four runs, with the commands that a reader would type."""
    return [run(stage) for stage in range(4)]


def exact(data: Any) -> Any:
    """Bytes and formulas, and not the last digits of the losses."""
    return [{name: value for name, value in one.items() if not name.startswith("loss")} for one in data]


def run(stage: int) -> Any:
    """One run of the program, started as a reader starts it."""
    words = ["--standalone", "--nproc-per-node", "2", "-m", "shardbook.train"]
    options = ["--stage", str(stage), *OPTIONS.split()]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        subprocess.run(
            [sys.executable, "-m", "torch.distributed.run", *words, *options, "--json", str(file)],
            cwd=ROOT,
            env={
                **os.environ,
                "OMP_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "TORCH_CPP_LOG_LEVEL": "ERROR",
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=True,
        )
        figures = json.loads(file.read_text("utf-8"))
    return {"run": " ".join(["torchrun", *words, *options]), **{name: figures[name] for name in KEPT}}
