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
read](together.py#module/checksums-of-a-checkpoints-elements). If a checksum differs, a
part of the model may already have values from the checkpoint that is damaged. So load
another checkpoint before you train that model.

A disk that has damaged the newest checkpoint may have damaged the one before it, too. So
the ranks read the older ones in full, and the error names the newest that is whole.
"""

from __future__ import annotations

import gc
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from shardbook.foundations.collectives import world
from shardbook.state.file_formats import Damaged
from shardbook.state.folder_names import Background
from shardbook.state.optimizer_entries import Stretch
from shardbook.state.run_state import (
    Stateful,
    come_together,
    copied,
    load_run,
    state_of,
)
from shardbook.state.sharded import Reader, write
from shardbook.state.together import (
    WHOLE,
    checksums,
    contents,
    differences,
    flush_folder,
    gathered,
    on_each,
    on_first,
    refuse_unshared,
    told_alike,
    write_list,
)

__all__ = ["Checkpoints", "Damaged"]


class Checkpoints:
    """The checkpoints of one run.

    :param folder: on a disk that all ranks see; created if it is missing
    :param keep: how many checkpoints stay
    :param background: whether [a
        thread](folder_names.py#module/asynchronous-checkpoints) writes while training
        goes on
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
        if type(step) is not int or step < 0:
            raise ValueError(f"step={step!r} is no number of steps; pass 0 or more")
        self.wait()
        what = f"step {step}{' in the background' * (self.background is not None)}"
        stored, settings = state_of(model, optimizer, self.frozen, what, **others)
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
            the newest checkpoint that is whole
        :raises OSError: on every rank, if one of them cannot read
        """
        self.wait()
        come_together(model, "load")
        names = on_first(lambda: [path.name for path in self.all()])
        if not names:
            return None
        self.known = True
        newest = self.folder / names[0]
        refuse_unshared(newest, file=WHOLE)
        try:
            step = self.check(newest)
            with without_collector():
                load_run(newest, model, optimizer, self.frozen, **others)
        except Damaged as error:
            raise Damaged(f"{newest} is damaged: {error}{self.offer(names)}") from error
        return step

    def all(self) -> list[Path]:
        """The complete checkpoints, the newest first."""
        found = self.folder.glob("step-*") if self.folder.is_dir() else ()
        named = [path for path in found if NAME.fullmatch(path.name)]
        return sorted(named, key=step_of, reverse=True)

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

    def check(self, folder: Path, *, elements: bool = False) -> int:
        """Compare a checkpoint's files with its list. Collective.

        :param elements: whether to read the files, or to compare their sizes only
        :returns: the step after which the checkpoint was saved
        :raises Damaged: on every rank, naming the first file that differs
        """
        said = on_first(lambda: contents(folder))
        rank, ranks = world(None)
        mine = dict(sorted(said.files.items())[rank::ranks])
        found = on_each(lambda: list(differences(folder, mine, elements=elements)))
        complaints = [complaint for each in found for complaint in each]
        if said.step != step_of(folder):
            complaints.append(f"{WHOLE} is of step {said.step}")
        if complaints:
            raise Damaged(complaints[0])
        return said.step

    def offer(self, names: list[str]) -> str:
        """Say which checkpoint is whole, and what to remove to go on from there. Collective.

        :param names: the checkpoints, the newest first, which is damaged
        """
        for number, name in enumerate(names[1:], 1):
            try:
                self.check(self.folder / name, elements=True)
                on_first(Reader(self.folder / name).read_metadata)
            except (ValueError, OSError):
                continue
            too = "".join(f"; {each} is damaged, too" for each in names[1:number])
            return (
                f"{too}; the newest that is whole is {name}; remove "
                f"{' and '.join(names[:number])} to go on from there"
            )
        return "; none of the older ones is whole" if len(names) > 1 else ""


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


NAME = re.compile(r"step-(?:[0-9]{8}|[1-9][0-9]{8,})")


def step_of(folder: Path) -> int:
    """The step in the name of a checkpoint."""
    return int(folder.name.removeprefix("step-"))
