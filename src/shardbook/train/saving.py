r"""# Saving and going on

> The line that started a run goes on with it, whatever has ended it.

```sh
torchrun --standalone --nproc-per-node 2 --max-restarts 3 \
    -m shardbook.train --checkpoints run --save-every 50
```

With `--checkpoints` a run saves [its state](run_state.py) into a folder every so many
steps, and after its last one. At its start it looks into the folder, and goes on from
the newest checkpoint. So nobody has to know whether a run is new. If a process dies,
`torchrun` ends the others and starts all of them again, and each step since the last
checkpoint is taken once more, with the same result to the bit:

| | steps that were taken | the next one |
|---|---|---|
| the run starts | | 1 |
| it saves, after step 50 | 1 to 50 | 51 |
| a machine loses power in step 73 | 1 to 72 | |
| `torchrun` starts it again | 1 to 50 | 51 |

If a checkpoint cannot be written, because the disk is full or read-only, the run ends
with one sentence. The checkpoint before it stays, and nothing half-written does.

A scheduler that wants a machine back sends `SIGTERM` and waits a little. A run answers
by saving after the step that is under way, or the one after it, and ends. All ranks
have to leave after the same step, though the signal reaches them at different moments.
So a rank that got it writes the number of the *next* step into [the
store](store_rounds.py). No other rank can finish that step before this one has begun
it, and so each finds the number there when it looks.
"""

# sidelit: hide
from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch.distributed as dist

from shardbook.command import Mistake
from shardbook.foundations.torch_private import default_store
from shardbook.state.checkpoints import Checkpoints
from shardbook.train.assemble import Run

__all__ = ["LEFT", "Saves", "saving"]
# sidelit: show

# The exit code of a program that `SIGTERM` has ended.
LEFT = 128 + signal.SIGTERM


class Saves:
    """The checkpoints of a run, and the signal that ends it.

    :param run: before its first step; it goes on from the newest checkpoint
    :param frozen: whether [what is not trained](run_state.py) is saved, too
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
        # All ranks end [at the same step](not_finite.py). What a thread has begun to
        # save is from before, and gets its name.
        if self.checkpoints is not None and isinstance(error, Mistake):
            with suppress(OSError):
                self.checkpoints.wait()

    def after_step(self) -> bool:
        """Save, if it is time to, and tell whether the run has to end here. Collective.

        :raises Mistake: if a checkpoint cannot be written
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
                raise Mistake(
                    f"{error}; make room there, and start the same line again"
                ) from error
        return leaving and run.number < self.last


def others(run: Run) -> dict[str, Any]:
    """What has a state beside the model and its optimizer."""
    return {
        "scaler": run.scaler,
        "batches": run.batches,
        "not_finite": run.not_finite,
        **run.others,
    }


class Signal:
    """Whether `SIGTERM` has come to a rank, and after which step all of them leave."""

    KEY = "shardbook.train: leave after step"

    def __init__(self) -> None:
        self.came = False
        self.before: Any = None

    def listen(self) -> None:
        """Note the signal from now on, and go on."""
        self.before = signal.signal(signal.SIGTERM, self.note)

    def ignore(self) -> None:
        """Let the signal end the program again."""
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)

    def note(self, number: int, frame: FrameType | None) -> None:
        """What the signal does."""
        self.came = True

    def due(self, step: int) -> bool:
        """Whether all ranks leave after this step, the number of steps that were taken."""
        store = default_store()
        if store.check([self.KEY]):
            return int(store.get(self.KEY)) <= step
        if self.came:
            store.set(self.KEY, str(step + 1))
        # One rank alone has nobody to wait for.
        return self.came and dist.get_world_size() == 1


def saving(add: Callable[..., Any]) -> None:
    """Where a run saves itself, and how often."""
    add(
        "--checkpoints",
        type=Path,
        metavar="FOLDER",
        help="save the run into this folder, and go on from the newest checkpoint in it",
    )
    add("--save-every", type=int, metavar="STEPS", default=100, help="how often")
    add(
        "--keep",
        type=int,
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
