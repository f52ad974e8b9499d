"""Train with ranks that are killed at chosen moments, once each time the job is started.

    torchrun --max-restarts 2 ... tests/mortal.py PLAN TRACE [OPTIONS OF shardbook.train]

PLAN says who dies in each attempt: `backward:1:7:2,rename:0:0:1` lets rank 1 die in the first attempt, when
it comes to a backward pass for the second time after step 7 was taken, and rank 0 in the second attempt, when
it first renames a checkpoint. `time:0:7:30` kills it 30 ms after that step, wherever it is then. Without
words nobody dies.

Each rank adds lines to a file of its own in the folder TRACE, of every attempt: the steps that it took, the
saves that it began, what it wrote, and its death. Nothing removes them.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from typing import Any

from shardbook.precision.loss_scaling import ShardedGradScaler
from shardbook.state import checkpoints, run_state, sharded
from shardbook.train import loop
from shardbook.zero.hooks import Hooks
from shardbook.zero.scheduler import Scheduler

# Where each moment lies: an object and the name of the function that is about to run.
MOMENTS: dict[str, tuple[Any, str]] = {
    "load": (checkpoints.Checkpoints, "load"),
    "read": (run_state, "read"),
    "forward": (Hooks, "before_forward"),
    "backward": (Hooks, "before_backward"),
    "reduce": (Scheduler, "exchange"),
    # With a scaler, since the optimizer itself is also tried out before the first step.
    "optimizer": (ShardedGradScaler, "step"),
    "save": (checkpoints.Checkpoints, "save"),
    "plan": (sharded.Written, "create_local_plan"),
    "write": (sharded.Writer, "write_data"),
    "index": (sharded.Writer, "finish"),
    "sum": (checkpoints, "gathered"),
    "rename": (Path, "rename"),
    "named": (checkpoints, "flush_folder"),
    "remove": (shutil, "rmtree"),
}
ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
RANK = int(os.environ["RANK"])


class Trace:
    """The lines that a rank leaves behind, whatever becomes of it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = os.open(folder / f"rank-{RANK}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, **said: Any) -> None:
        """One line, in one write."""
        os.write(self.file, (json.dumps({"attempt": ATTEMPT, **said}) + "\n").encode())

    def watch(self) -> None:
        """Let the steps and the saves add their lines."""
        step, save, write = loop.step, checkpoints.Checkpoints.save, sharded.Writer.write_data

        def traced_step(run: Any) -> Any:
            taken = step(run)
            # As text, so that NaN equals NaN.
            self.add(step=run.number, loss=repr(taken.loss), norm=repr(taken.norm))
            return taken

        def traced_save(self_: Any, number: int, *args: Any, **others: Any) -> None:
            self.add(save=number)
            save(self_, number, *args, **others)

        def traced_write(self_: Any, *args: Any) -> Any:
            written = write(self_, *args)
            folder = Path(self_.path)
            self.add(wrote=sum(file.stat().st_size for file in folder.glob(f"__{RANK}_*.distcp")))
            return written

        loop.step = traced_step
        checkpoints.Checkpoints.save = traced_save  # type: ignore[assignment, method-assign]
        sharded.Writer.write_data = traced_write  # type: ignore[method-assign]


class Death:
    """What kills this rank in this attempt."""

    def __init__(self, trace: Trace, moment: str, after: int, count: int) -> None:
        self.trace, self.moment, self.after, self.count = trace, moment, after, count
        # Before it has come to its step, nothing counts.
        self.armed = after == 0 and moment != "time"
        self.calls = 0

    def prepare(self) -> None:
        """Put it where its moment lies."""
        step = loop.step

        def stepping(run: Any) -> Any:
            if run.number >= self.after and not self.armed:
                self.armed = True
                if self.moment == "time":
                    Timer(self.count / 1000, self.come).start()
            return step(run)

        loop.step = stepping
        if self.moment != "time":
            where, name = MOMENTS[self.moment]
            setattr(where, name, self.before(getattr(where, name)))

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which kills the process instead of running for the `count`th time."""

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += self.armed
            if self.armed and self.calls == self.count:
                self.come()
            return function(*args, **kwargs)

        return call

    def come(self) -> None:
        """End this process at once."""
        self.trace.add(dies=self.moment)
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    plan, folder, *arguments = sys.argv[1:]
    trace = Trace(Path(folder))
    trace.watch()
    for word in plan.split(",")[ATTEMPT : ATTEMPT + 1]:
        if word:
            moment, rank, after, count = word.split(":")
            if int(rank) == RANK:
                Death(trace, moment, int(after), int(count)).prepare()
    code = loop.main(arguments)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
