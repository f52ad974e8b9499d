r"""# Resuming a run

> The command line that started a run also resumes it, after a crash, a `SIGTERM` or a
> full disk.

```sh
torchrun --standalone --nproc-per-node 2 --max-restarts 3 \
    -m shardbook.train --checkpoints run --save-every 50
```

With `--checkpoints` a run saves [its state](run_state.py) into a folder, here every 50
steps, and after its last step. At its start the program searches the folder and resumes
from the newest checkpoint. So the same line starts a new run and resumes an old one. If
a process dies, `torchrun` ends the others and starts all of them again. Each step since
the last checkpoint is repeated, with the same result bit for bit:

| event | steps in the model's state | next step |
|---|---|---|
| the run starts | none | 1 |
| the run saves after step 50 | 1 to 50 | 51 |
| a machine loses power in step 73 | 1 to 72 | |
| `torchrun` starts the run again | 1 to 50 | 51 |

If a checkpoint cannot be written, because the disk is full or read-only, the run ends
with one sentence. The previous checkpoint stays, and no half-written files are left.

A scheduler of a cluster that needs a machine for another job sends `SIGTERM` and waits
a little. The run then saves after the current step or the next one, and ends. All ranks
have to leave after the same step, but the signal reaches them at different moments. So
a rank that received the signal writes the number of the *next* step into [the
store](store_rounds.py). No other rank can finish that step before this rank has begun
it. So every rank finds the number in the store when it checks after that step.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

import torch.distributed as dist

from shardbook.command import Failure, Mistake, folder_to_write, whole
from shardbook.foundations.torch_private import default_store
from shardbook.state.checkpoints import Checkpoints
from shardbook.train.assemble import Run

__all__ = ["LEFT", "Saves", "saving"]

# The exit code of a program that was ended by `SIGTERM`.
LEFT = 128 + signal.SIGTERM


class Saves:
    """Saves and resumes a run, and ends it after `SIGTERM`.

    :param run: a run before its first step; it is resumed from the newest checkpoint
    :param frozen: whether [frozen parameters](run_state.py) are saved, too
    """

    def __init__(
        self, options: argparse.Namespace, run: Run, *, frozen: bool = True
    ) -> None:
        self.run, self.every, self.last = run, options.save_every, options.steps
        self.signals = Signal()
        self.checkpoints: Checkpoints | None = None
        if options.checkpoints is not None:
            self.checkpoints = Checkpoints(
                options.checkpoints,
                keep=options.keep,
                background=options.save_in_background,
                frozen=frozen,
            )
            self.go_on(self.checkpoints)

    def go_on(self, checkpoints: Checkpoints) -> None:
        """Load the newest checkpoint, if there is one.

        :raises Mistake: if it is damaged, or belongs to another run
        """
        run = self.run
        try:
            step = checkpoints.load(run.model, run.optimizer, **others(run))
        except (ValueError, OSError) as error:
            raise Mistake(f"--checkpoints {checkpoints.folder}: {error}") from error
        if step is not None:
            run.number = step

    def __enter__(self) -> Saves:
        if self.checkpoints is not None:
            self.signals.listen()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.signals.ignore()
        # At a loss or gradient that [is not finite](not_finite.py), all ranks end at
        # the same step. A thread may still be writing an earlier, good checkpoint, so
        # the program waits until this checkpoint has its name.
        if self.checkpoints is not None and isinstance(error, Mistake):
            with suppress(OSError):
                self.checkpoints.wait()

    def after_step(self) -> bool:
        """Save if a checkpoint is due, and return whether the run has to end now. Collective.

        :raises Failure: if a checkpoint cannot be written
        """
        if self.checkpoints is None:
            return False
        run = self.run
        leaving = self.signals.due(run.number)
        if leaving or run.number % self.every == 0 or run.number == self.last:
            try:
                self.checkpoints.save(
                    run.number, run.model, run.optimizer, **others(run)
                )
                if leaving or run.number == self.last:
                    self.checkpoints.wait()
            except OSError as error:
                raise Failure(
                    f"{error}; make room there, and start the same line again"
                ) from error
        return leaving and run.number < self.last


def others(run: Run) -> dict[str, Any]:
    """The objects with a state other than the model and the optimizer."""
    return {
        "scaler": run.scaler,
        "batches": run.batches,
        "not_finite": run.not_finite,
        **run.others,
    }


class Signal:
    """Receives `SIGTERM`, and lets all ranks leave after the same step."""

    KEY = "shardbook.train: leave after step"

    def __init__(self) -> None:
        self.came = False
        self.before: Any = None

    def listen(self) -> None:
        """From now on, record the signal instead of ending the program."""
        self.before = signal.signal(signal.SIGTERM, self.note)

    def ignore(self) -> None:
        """Let the signal end the program again."""
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)

    def note(self, number: int, frame: FrameType | None) -> None:
        """Record that the signal came."""
        self.came = True

    def due(self, step: int) -> bool:
        """Whether all ranks leave now.

        :param step: how many steps were taken
        """
        store = default_store()
        if store.check([self.KEY]):
            return int(store.get(self.KEY)) <= step
        if self.came:
            store.set(self.KEY, str(step + 1))
        # A single rank can leave at once.
        return self.came and dist.get_world_size() == 1


def saving(add: Callable[..., Any]) -> None:
    """The options for checkpoints."""
    add(
        "--checkpoints",
        type=folder_to_write,
        metavar="FOLDER",
        help="save the run into this folder, and go on from the newest checkpoint in it",
    )
    add(
        "--save-every",
        type=whole(1, 10**12),
        metavar="STEPS",
        default=100,
        help="how often",
    )
    add(
        "--keep",
        type=whole(1, 10**6),
        metavar="NUMBER",
        default=2,
        help="how many checkpoints stay, the newest ones",
    )
    add(
        "--save-in-background",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="write checkpoints while training goes on; takes memory for a copy",
    )
