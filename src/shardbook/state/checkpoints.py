r"""# A folder of checkpoints

> A checkpoint gets its name only when it is complete, and a damaged one is detected
> before training goes on.

```python
checkpoints = Checkpoints(Path("run"), keep=2)
step = checkpoints.load(model, optimizer, schedule=schedule) or 0
while step < steps:
    ...
    step += 1
    if step % 100 == 0:
        checkpoints.save(step, model, optimizer, schedule=schedule)
```

A program can be killed at any moment, even while it saves. So the ranks write a
checkpoint under a hidden name, which `load` ignores. The checkpoint gets its real name
when all ranks are done. A run that is killed before that loses the steps since the
checkpoint before:

| step of `save` | in the folder | after a crash at this step |
|---|---|---|
| the ranks write their files | `.step-00000200.partial` | the next save removes the folder |
| rank 0 writes the sizes and checksums of all files | `whole.json` in that folder | the same |
| rank 0 renames the folder | `step-00000200` | this checkpoint is the newest one |
| rank 0 removes older checkpoints | | the next save removes them |

A checkpoint may be loaded on another number of ranks, or at another stage. Every value
is then the same to the bit: parameters, the optimizer's state, the loss scale, the
position in the text. The steps that follow may differ in the last bits, because other
numbers of ranks add gradients in another order.

A rename happens completely or not at all. Each file is flushed before the rename, so
its bytes are on the disk. But a disk may lose a file later, or a copy may end halfway.
So before anything is loaded, the ranks divide the files among themselves and compare
the sizes. The checksums are compared [while the elements are
read](checked_elements.py). If a checksum differs, a part of the model may already have
values from the checkpoint that is damaged. So load another checkpoint before you train
that model.
"""

from __future__ import annotations

import gc
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from shardbook.foundations.collectives import world
from shardbook.state.background import Background
from shardbook.state.checkpoint_index import Changed, Damaged
from shardbook.state.file_list import (
    WHOLE,
    checksums,
    contents,
    differences,
    flush_folder,
    write_list,
)
from shardbook.state.run_state import (
    Stateful,
    come_together,
    copied,
    load_run,
    state_of,
)
from shardbook.state.sharded import write
from shardbook.state.stored import Stretch
from shardbook.state.together import (
    gathered,
    on_each,
    on_first,
    refuse_unshared,
    told_alike,
)

__all__ = ["Checkpoints", "Damaged"]


class Checkpoints:
    """The checkpoints of one run.

    :param folder: on a disk that all ranks see; created if it is missing
    :param keep: how many checkpoints stay
    :param background: whether [a thread](background.py) writes while training goes on
    :param frozen: whether frozen parameters are saved, too; if not, `load` leaves them
        as they are
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        keep: int = 2,
        background: bool = False,
        frozen: bool = True,
    ) -> None:
        if type(keep) is not int or keep < 1:
            raise ValueError(
                f"keep={keep!r} is no number of checkpoints; choose 1 or more"
            )
        self.folder, self.keep, self.frozen = Path(folder), keep, frozen
        self.known = False
        self.background = Background() if background else None

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        **others: Stateful,
    ) -> None:
        """Save [the state of the run](run_state.py). Collective.

        :param step: how many steps the optimizer has taken
        :param others: other objects with a state that is the same on every rank
        :raises OSError: on every rank, if one of them cannot write; no files are left.
            If a thread writes, the next call raises the error.
        """
        self.wait()
        stored, settings = state_of(model, optimizer, self.frozen, **others)
        if self.background is None:
            with without_collector():
                self.write(step, stored, settings)
        else:
            copies, group = copied(stored), self.background.group
            self.background.start(partial(self.write, step, copies, settings, group))

    def wait(self) -> None:
        """Wait until the checkpoint that a thread writes has its name.

        :raises OSError: as `save` does
        """
        if self.background is not None:
            self.background.wait()

    def write(
        self,
        step: int,
        stored: list[Stretch],
        settings: dict[str, Any],
        group: dist.ProcessGroup | None = None,
    ) -> None:
        """Write a checkpoint, then name it. Collective."""
        name = f"step-{step:08d}"
        draft = self.folder / f".{name}.partial"
        try:
            on_first(lambda: self.make_room(draft), group)
            refuse_unshared(draft, group)
            with told_alike():
                written = write(draft, stored, settings, process_group=group)
            files = gathered(written, group)
            on_first(lambda: self.publish(draft, name, step, files), group)
        except BaseException as error:
            if world(None)[0] == 0:
                shutil.rmtree(draft, ignore_errors=True)
            if isinstance(error, OSError):
                where = f"step {step} could not be saved into {self.folder}"
                raise type(error)(f"{where}: {error}") from error
            raise

    def load(
        self,
        model: nn.Module,
        optimizer: Optimizer | None = None,
        **others: Stateful,
    ) -> int | None:
        """Load the newest checkpoint. Collective.

        :returns: the step of the checkpoint, or `None` if there is no checkpoint yet
        :raises Damaged: on every rank, if the checkpoint is damaged; the message names
            the checkpoint before it
        """
        self.wait()
        come_together(model, "load")
        names = on_first(lambda: [path.name for path in self.all()])
        if not names:
            return None
        self.known = True
        refuse_unshared(self.folder / names[0], file=WHOLE)
        newest = self.folder / names[0]
        step = self.check(newest, before=names[1:])
        try:
            with without_collector():
                load_run(newest, model, optimizer, self.frozen, **others)
        except Changed as error:
            refuse_damaged(newest, str(error), names[1:])
        return step

    def all(self) -> list[Path]:
        """The complete checkpoints, the newest first."""
        found = self.folder.glob("step-*") if self.folder.is_dir() else ()
        return sorted(
            (path for path in found if NAME.fullmatch(path.name)), reverse=True
        )

    def make_room(self, draft: Path) -> None:
        """Remove unfinished checkpoints of killed runs, and create the folder for a new one."""
        if self.known and not self.folder.is_dir():
            raise FileNotFoundError("the folder was moved or removed since it was used")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.known = True
        for left in self.folder.glob(".step-*.partial"):
            shutil.rmtree(left)
        draft.mkdir()

    def publish(
        self, draft: Path, name: str, step: int, written: list[dict[str, Any]]
    ) -> None:
        """Name a checkpoint, and remove the oldest beyond `keep`."""
        files = {file: said for each in written for file, said in each.items()}
        files |= checksums([draft / ".metadata"])
        write_list(draft, step, files)
        final = self.folder / name
        if final.exists():
            shutil.rmtree(final)
        draft.rename(final)
        flush_folder(self.folder)
        for old in self.all()[self.keep :]:
            shutil.rmtree(old)

    def check(self, folder: Path, before: list[str]) -> int:
        """Compare the sizes of a checkpoint's files with its list. Collective.

        :returns: the step after which the checkpoint was saved
        :raises Damaged: on every rank, naming the first file that differs
        """
        said = on_first(lambda: contents(folder))
        rank, ranks = world(None)
        mine = sorted(said["files"].items())[rank::ranks]
        complaints = [
            complaint
            for each in on_each(lambda: list(differences(folder, dict(mine))))
            for complaint in each
        ]
        if complaints:
            refuse_damaged(folder, complaints[0], before)
        step: int = said["step"]
        return step


@contextmanager
def without_collector() -> Iterator[None]:
    """A block without garbage collection.

    PyTorch describes each box by many small objects. Creating so many objects makes
    Python's collector search the whole program again and again, which takes longer than
    writing the file.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


NAME = re.compile(r"step-\d{8,}")


def refuse_damaged(folder: Path, what: str, before: list[str]) -> NoReturn:
    """Refuse a checkpoint, and name the one before it.

    :raises Damaged: always
    """
    offer = (
        f"; the one before is {before[0]}; remove this folder to go on from there"
        if before
        else ""
    )
    raise Damaged(f"{folder} is damaged: {what}{offer}")
