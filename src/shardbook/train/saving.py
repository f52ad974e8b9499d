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
the last checkpoint is repeated, with the same result bit for bit. [Other
options](ranks.py#module/the-same-options-on-all) than before are refused or printed:

| event | steps in the model's state | next step |
|---|---|---|
| the run starts | none | 1 |
| the run saves after step 50 | 1 to 50 | 51 |
| a machine loses power in step 73 | 1 to 72 | |
| `torchrun` starts the run again | 1 to 50 | 51 |

If a checkpoint cannot be written, because the disk is full or read-only, the run ends
with one sentence. The previous checkpoint stays, and no half-written files are left.

Two runs in one folder would remove each other's files. So a run [claims its
folder](#Claim), and a second run is refused at its start.

A scheduler of a cluster that needs a machine for another job sends `SIGTERM` and waits
a little. The run then saves after the current step or the next one, and ends. All ranks
have to leave after the same step, but the signal reaches them at different moments. So
a rank that received the signal writes the number of the *next* step into [the
store](agreement.py#module/rounds-through-the-store). No other rank can finish that step
before this rank has begun it. So every rank finds the number in the store when it
checks after that step.
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch.distributed as dist

from shardbook.command import Failure, Mistake, folder_to_write, whole
from shardbook.foundations.torch_private import default_store
from shardbook.precision.loss_scaling import ShardedGradScaler
from shardbook.state.checkpoints import Checkpoints
from shardbook.state.together import on_first
from shardbook.train.plan import Run
from shardbook.train.ranks import RunOptions

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
        self.options = RunOptions(options)
        self.checkpoints: Checkpoints | None = None
        self.claim: Claim | None = None
        if options.checkpoints is not None:
            self.checkpoints = Checkpoints(
                options.checkpoints,
                keep=options.keep,
                background=options.save_in_background,
                frozen=frozen,
            )
            try:
                on_first(self.take_folder)
                self.go_on(self.checkpoints)
            except (ValueError, OSError) as error:
                self.release()
                raise Mistake(
                    f"--checkpoints {options.checkpoints}: {advised(error)}"
                ) from error

    def take_folder(self) -> None:
        """Claim the folder, on rank 0."""
        assert self.checkpoints is not None
        self.claim = Claim(self.checkpoints.folder)

    def release(self) -> None:
        """Let other runs use the folder."""
        if self.claim is not None:
            self.claim.release()

    def go_on(self, checkpoints: Checkpoints) -> None:
        """Load the newest checkpoint, if there is one.

        :raises ValueError: if it is damaged, or belongs to another run
        """
        run = self.run
        step = checkpoints.load(
            run.model, run.optimizer, options=self.options, **others(run)
        )
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
        self.release()

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
                on_first(self.check_folder)
                self.checkpoints.save(
                    run.number,
                    run.model,
                    run.optimizer,
                    options=self.options,
                    **others(run),
                )
                if leaving or run.number == self.last:
                    self.checkpoints.wait()
            except OSError as error:
                raise Failure(advised(error)) from error
        return leaving and run.number < self.last

    def check_folder(self) -> None:
        """Refuse to save into another folder than the run has claimed, on rank 0."""
        if self.claim is not None and not self.claim.holds():
            raise FileNotFoundError(
                f"{self.claim.folder} was moved or removed while the run used it; "
                "put it back, and start the same line again"
            )


def others(run: Run) -> dict[str, Any]:
    """The objects with a state other than the model and the optimizer."""
    return {
        "scaler": LossScale(run.scaler),
        "batches": run.batches,
        "not_finite": run.not_finite,
        **run.others,
    }


class LossScale:
    """The state of a scaler, which a run may turn on when it goes on.

    A run in FP32 or BF16 saves an empty state. A scaler refuses to load it, and here
    keeps the scale that it begins with.
    """

    def __init__(self, scaler: ShardedGradScaler) -> None:
        self.scaler = scaler

    def state_dict(self) -> dict[str, Any]:
        """The loss scale, or an empty dictionary."""
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the loss scale, if there is one."""
        if state:
            self.scaler.load_state_dict(state)


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


# sidelit: depth Two runs in one folder, and errors of a disk.


class Claim:
    """The claim of a run to its folder: a file that names the process, and that the process locks.

    The system releases the lock when the process ends, however it ends. So a run that
    was killed does not stand in the way of the next one.

    :param folder: created if it is missing
    :raises BlockingIOError: if another run uses the folder
    :raises OSError: if the file cannot be written
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / ".in-use"
        folder.mkdir(parents=True, exist_ok=True)
        while not self.taken():
            # A run that ended just now has removed the file that was locked here.
            pass

    def taken(self) -> bool:
        """Open and lock the file, and write this process into it. Whether the file is still there then."""
        self.file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self.refuse_others(whose(os.pread(self.file, 4096, 0)))
            if not self.holds():
                os.close(self.file)
                return False
            os.ftruncate(self.file, 0)
            os.pwrite(self.file, json.dumps(this_process()).encode(), 0)
        except BaseException:
            os.close(self.file)
            raise
        return True

    def holds(self) -> bool:
        """Whether the folder still has the file of this run."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(self.file))
        except OSError:
            return False

    def release(self) -> None:
        """Remove the file, and with it the lock."""
        with suppress(OSError):
            if self.holds():
                self.path.unlink()
            os.close(self.file)

    def refuse_others(self, holder: dict[str, Any]) -> None:
        """Lock the file.

        :param holder: the process that the file names
        :raises BlockingIOError: if the process is alive, or may be
        """
        who = f"process {holder.get('process')} on {holder.get('host')}"
        here = holder.get("host") in (None, socket.gethostname())
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            alive = False
        except OSError as error:
            # Some disks of clusters have no locks.
            taken = error.errno in (errno.EAGAIN, errno.EACCES)
            alive = taken or (here and is_alive(holder.get("process")))
        if alive:
            raise BlockingIOError(
                f"another run uses this folder ({who}); end it first, or name another folder"
            )
        # A scheduler may start a job again on another machine.
        again = holder.get("job") is not None and holder["job"] == this_process()["job"]
        if not here and not again:
            raise BlockingIOError(
                f"another run uses this folder, or was killed ({who}); if it has ended, remove "
                f"{self.path} and start the same line again"
            )


def this_process() -> dict[str, Any]:
    """What the file says: the machine, the process, and the job of `torchrun` if it has a name."""
    job = os.environ.get("TORCHELASTIC_RUN_ID", "none")
    return {
        "host": socket.gethostname(),
        "process": os.getpid(),
        "job": None if job == "none" else job,
    }


def whose(said: bytes) -> dict[str, Any]:
    """What a file says. Nothing if it was cut off."""
    try:
        found = json.loads(said)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def is_alive(process: Any) -> bool:
    """Whether there is another process of this number on this machine."""
    if type(process) is not int or process in (0, os.getpid()):
        return False
    try:
        os.kill(process, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def advised(error: Exception) -> str:
    """The text of an error, and what to do. Another rank may have told the error, as text."""
    text = str(error)
    if "[Errno " not in text:
        return text
    what = (what for number, what in REMEDIES.items() if f"[Errno {number}]" in text)
    return f"{text}; {next(what, 'put that right')}, and start the same line again"


REMEDIES = {
    errno.ENOSPC: "make room there",
    errno.EDQUOT: "make room there",
    errno.EFBIG: "allow larger files (ulimit -f)",
    errno.EROFS: "let that disk be written to",
    errno.EACCES: "let this user write there",
    errno.EPERM: "let this user write there",
    errno.ENOENT: "put the folder back",
    errno.ENOTDIR: "move the file away that lies where a folder has to be",
    errno.EEXIST: "move the file away that lies where a folder has to be",
}


# sidelit: core


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
