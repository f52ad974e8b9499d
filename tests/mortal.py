"""Train with a rank that is killed at a chosen moment, the first time the job is started and not again.

    torchrun ... tests/mortal.py MOMENT RANK COUNT [OPTIONS OF shardbook.train]

The rank gets SIGKILL when it comes to this moment for the COUNTth time.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardbook.precision.sharded_scaler import ShardedGradScaler
from shardbook.state import checkpoints, sharded
from shardbook.train.loop import main
from shardbook.zero.conductor import Conductor
from shardbook.zero.hooks import Hooks

# Where each moment lies: an object and the name of the function that is about to run.
MOMENTS: dict[str, tuple[Any, str]] = {
    "forward": (Hooks, "before_forward"),
    "backward": (Hooks, "before_backward"),
    "reduce": (Conductor, "exchange"),
    # With a scaler, since the optimizer itself is also tried out before the first step.
    "optimizer": (ShardedGradScaler, "step"),
    "plan": (sharded.Written, "create_local_plan"),
    "write": (sharded.Writer, "write_data"),
    "index": (sharded.Writer, "finish"),
    "sum": (checkpoints, "gathered"),
    "rename": (Path, "rename"),
    "named": (checkpoints, "flush_folder"),
    "remove": (shutil, "rmtree"),
}


def dies(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The function, which kills the process instead of running for the `count`th time."""
    calls = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return call


if __name__ == "__main__":
    moment, rank, count, *arguments = sys.argv[1:]
    if os.environ["RANK"] == rank and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        where, name = MOMENTS[moment]
        setattr(where, name, dies(getattr(where, name), int(count)))
    code = main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
