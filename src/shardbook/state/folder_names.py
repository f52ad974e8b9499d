r"""# Model folders and asynchronous checkpoints

> An index says which file holds which tensor, and the names in a folder must be those
> of the model.

A large model is stored in several files. Programs find its tensors by an index:

```json
{
  "metadata": {"total_size": 14483464192},
  "weight_map": {
    "embed.weight": "model-00001-of-00003.safetensors",
    "layers.0.attention.weight": "model-00001-of-00003.safetensors"
  }
}
```

Suppose the folder calls a weight `layers.0.attn.weight`, and the model calls it
`layers.0.attention.weight`. If names without a match were ignored, the weight would
keep its random initial values. The model would run, and its output would be wrong. So a
folder and a model have to agree in all names. The caller lists the names that a folder
may hold in addition, such as tables that an older version of the model saved.

A model folder is usually written once, after the training. A checkpoint is written in
the middle of a run, and training would wait for the disk. So [a
thread](#module/asynchronous-checkpoints) can write the checkpoint while training goes
on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from shardbook.state.file_formats import reading, schema
from shardbook.state.optimizer_entries import MODEL, Stretch
from shardbook.state.tensor_file import Named, Place, places_in

__all__ = [
    "INDEX",
    "Background",
    "Rename",
    "cut_into_files",
    "places_of",
    "refuse_extra_state",
    "refuse_taken",
    "refuse_twice",
    "renamed",
    "some",
    "wanted",
]

# Gives the name in a folder for the name of a parameter or buffer, or `None` if the
# folder does not hold it.
Rename = Callable[[str], "str | None"]

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def cut_into_files(
    tensors: Iterable[Named], shard_bytes: int
) -> dict[str, list[Named]]:
    """Distribute tensors over files, in their order: a file is filled before the next begins.

    :param shard_bytes: how many bytes of elements a file may hold; a larger tensor gets
        a file of its own
    """
    full: list[list[Named]] = []
    last: list[Named] = []
    size = 0
    for each in tensors:
        if each.nbytes > shard_bytes:
            full.append([each])
            continue
        if size + each.nbytes > shard_bytes:
            full.append(last)
            last, size = [], 0
        last.append(each)
        size += each.nbytes
    if last or not full:
        full.append(last)
    if len(full) == 1:
        return {SINGLE: full[0]}
    return {
        f"model-{number:05d}-of-{len(full):05d}.safetensors": held
        for number, held in enumerate(full, 1)
    }


def places_of(folder: Path) -> dict[str, Place]:
    """Find the place of each tensor in a folder, or in one file.

    :raises ValueError: if the folder holds no safetensors, or its index names a tensor
        that the file does not hold
    :raises OSError: if the folder cannot be read
    """
    if folder.is_file():
        return places_in(folder)
    if (folder / INDEX).is_file():
        return places_by_index(folder)
    if (folder / SINGLE).is_file():
        return places_in(folder / SINGLE)
    raise ValueError(
        f"{folder} holds neither {SINGLE} nor {INDEX}; give a folder that "
        "save_safetensors or transformers has written, or one file"
    )


def places_by_index(folder: Path) -> dict[str, Place]:
    """Find the place of each tensor that an index names."""
    index = folder / INDEX
    known = schema()
    with reading(f"{index} is no index of safetensors"):
        files = known.decoded(index.read_bytes(), known.WeightMap).weight_map
    held = {file: places_in(inside(folder, file)) for file in {*files.values()}}
    for name, file in files.items():
        if name not in held[file]:
            raise ValueError(
                f"{index} looks for {name} in {file}, which has no such name"
            )
    return {name: held[file][name] for name, file in files.items()}


class Shaped(Protocol):
    """A tensor, or [the place](tensor_file.py#Place) of a tensor in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> torch.dtype: ...


There = TypeVar("There", bound=Shaped)


def wanted(
    stretches: Iterable[Stretch],
    found: Mapping[str, There],
    folder: Path,
    *,
    cast: bool,
    ignore: Iterable[str],
) -> list[tuple[Stretch, There]]:
    """Find the tensor of each stretch of a model in a folder.

    A folder may hold a tied weight under several names. The last one counts, as with
    `load_state_dict`, which copies one after another.

    :param stretches: the stretches, each with the names that it may have in the folder
    :param found: the tensors in the folder, by name
    :raises ValueError: if the folder holds other names than the model, or a tensor of
        another shape or dtype
    """
    pairs: list[tuple[Stretch, There]] = []
    missing: list[str] = []
    known: set[str] = set()
    for each in stretches:
        known.update(each.names)
        there = [name for name in each.names if name in found]
        if there:
            pairs.append((each, found[there[-1]]))
        else:
            missing.append(each.name)
    patterns = list(ignore)
    more = [
        name
        for name in found
        if name not in known and not any(fnmatchcase(name, p) for p in patterns)
    ]
    refuse_other_names(folder, missing, more)
    for each, place in pairs:
        refuse_misfit(folder, each, place, cast=cast)
    return pairs


def renamed(
    stretches: Iterable[Stretch], rename: Callable[[str], str | tuple[str, ...] | None]
) -> list[Stretch]:
    """Give stretches their names in a folder, and drop those without a name there.

    :param rename: gives the name, or several possible names
    """
    found = []
    for each in stretches:
        given = [rename(name.removeprefix(f"{MODEL}.")) for name in each.names]
        names = [(one,) if isinstance(one, str) else one for one in given if one]
        unique = tuple(dict.fromkeys(name for some in names for name in some))
        if unique:
            found.append(replace(each, names=unique))
    return found


# sidelit: depth Folders that do not fit the model or lead elsewhere, and models that do not fit the format.


def refuse_other_names(folder: Path, missing: list[str], more: list[str]) -> None:
    """Refuse a folder that holds other tensors than the model.

    :raises ValueError: naming some of them
    """
    said = [f"it lacks {some(missing)}"] if missing else []
    said += [f"the model has no {some(more)}"] if more else []
    if said:
        raise ValueError(f"{folder} is not of this model: {', and '.join(said)}")


def some(names: list[str]) -> str:
    """List the first three of many names, and count the others."""
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + rest


def refuse_misfit(folder: Path, each: Stretch, place: Shaped, *, cast: bool) -> None:
    """Refuse a tensor of another shape or dtype.

    :raises ValueError: naming it
    """
    if tuple(place.shape) != each.shape:
        raise ValueError(
            f"{each.name} has shape {tuple(place.shape)} in {folder} and {each.shape} in the model"
        )
    here, there = each.values.dtype, place.dtype
    if here == there:
        return
    both = f"{each.name} is {short(there)} in {folder} and {short(here)} in the model"
    if not (here.is_floating_point and there.is_floating_point):
        raise ValueError(both)
    if not cast:
        raise ValueError(f"{both}; cast=True converts it")


def short(dtype: torch.dtype) -> str:
    """The name of a dtype for a message."""
    return str(dtype).removeprefix("torch.")


def inside(folder: Path, name: str) -> Path:
    """The path of a file in a folder.

    :raises ValueError: if an index names a file outside of the folder
    """
    if Path(name).name != name:
        raise ValueError(f"{folder / INDEX} names {name!r}, which is no file beside it")
    return folder / name


def refuse_taken(folder: Path) -> None:
    """Refuse to write into a folder that is not empty.

    :raises FileExistsError: if the folder holds something, or is a file
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(
            f"{folder} is there already; choose another name, or remove it"
        )


def refuse_extra_state(model: nn.Module, place: str, instead: str) -> None:
    """Refuse a model whose `state_dict` holds more than tensors.

    :param place: the format that stores tensors only, for the message
    :param instead: the advice in the message
    :raises ValueError: naming the module
    """
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ValueError(
                f"{name or 'the model'} has extra state, which {place} has no place "
                f"for; {instead}"
            )


def refuse_twice(names: list[str]) -> None:
    """Refuse two tensors with the same name.

    :raises ValueError: naming the first of them
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"rename gives two tensors the name {name}")
        seen.add(name)


# sidelit: core


# ## Asynchronous checkpoints
#
# > `save` copies this rank's part to the host and returns. A thread writes the copy to
# > disk while training goes on.
#
# A disk that writes 2 GB a second needs five seconds for 10 GB. The parameters must not
# change during these seconds, because the checkpoint would then hold parts of two steps.
# So training waits, or the checkpoint is written from a copy. With
# `Checkpoints(..., background=True)` this rank copies what it writes, and `save` returns.
# A thread writes the copy during the next steps:
#
# | | training thread | writing thread |
# |---|---|---|
# | `save(100, …)` | copies | |
# | steps 101, 102, … | trains | writes, waits for the other ranks, names the checkpoint |
# | `save(200, …)` | waits for the writing thread if it is still busy; copies | |
#
# The ranks exchange a few messages for each checkpoint. The messages of the writing
# threads must not mix with those of the training, so the writing threads have a process
# group of their own.
#
# The copy takes as much memory on the host as this rank writes. If the thread fails, the
# next `save` or `wait` raises its error. Call `wait` before your program ends, because
# the last checkpoint may still be without its name.


class Background:
    """Runs one piece of work at a time in a thread, and keeps its error for the caller."""

    def __init__(self) -> None:
        self.thread: Thread | None = None
        self.error: BaseException | None = None

    @cached_property
    def group(self) -> Any:
        """The process group of the writing threads.

        `new_group` needs all ranks, and would wait for one that saves without a thread.
        So the group is made in the first save, after the ranks have agreed that all of
        them save in this way.
        """
        return dist.new_group(backend="gloo")

    def start(self, work: Callable[[], None]) -> None:
        """Start a thread for this work. The thread of the work before must have ended."""
        assert self.thread is None
        self.thread = Thread(target=self.run, args=(work,), name="checkpoint")
        self.thread.start()

    def run(self, work: Callable[[], None]) -> None:
        """Do the work in the thread, and keep its error for `wait`."""
        try:
            work()
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Wait until the thread has ended, and raise its error if it has one."""
        if self.thread is not None:
            self.thread.join()
            self.thread = None
        error, self.error = self.error, None
        if error is not None:
            raise error
