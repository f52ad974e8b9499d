r"""# A model in a folder that others open

> All ranks write one safetensors folder of the plain model at once, each rank the elements that it has.

[A checkpoint](checkpoints.py) is for going on with a run. A model that is done is handed
to others, who open it with `from_pretrained` of the `transformers` library, or with any
other program that reads safetensors. They expect the plain model: its names, its shapes,
and files of at most a few gigabytes.

```python
save_safetensors(model, "tuned", also=model.config.save_pretrained)
...
load_safetensors(model, "tuned")  # or a folder that somebody else has made
```

To gather the model first would take its whole size in memory. But [the places of all
elements in the files](tensor_file.py) follow from names, shapes and dtypes. So nothing is
gathered, and no parameter is sent. With 2 ranks in stage 3 and a matrix of 4 rows and 5
columns in FP32:

| rank | has the elements | writes the bytes of the matrix |
|---|---|---|
| 0 | 0 to 9 | 0 to 39 |
| 1 | 10 to 19 | 40 to 79 |

Beside its own elements a rank needs one megabyte, and each of $N$ ranks writes or
reads a part of $1/N$. All of them have to see the same disk.

| in the folder | what |
|---|---|
| `model.safetensors` | all of it, if one file is enough |
| `model-00001-of-00003.safetensors`, … | else each file, as large as is allowed |
| `model.safetensors.index.json` | then also which name is in which file |

A tied weight stands under its first name only, since the format wants each element once.
The head of its file tells the other names.
"""

# sidelit: hide
from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from shardbook.foundations.collectives import world
from shardbook.foundations.torch_private import lasting_buffers, own_parameters
from shardbook.state.file_list import flush_folder
from shardbook.state.folder_names import (
    INDEX,
    Rename,
    cut_into_files,
    places_of,
    refuse_extra_state,
    refuse_taken,
    refuse_twice,
    renamed,
    wanted,
)
from shardbook.state.hub_names import names_in_files
from shardbook.state.rank_state import buffers
from shardbook.state.run_state import come_together, note_changes, take_apart
from shardbook.state.stored import MODEL, Stretch, stretches
from shardbook.state.tensor_file import Named, Place, fill, laid_out, new_room, pour
from shardbook.state.together import on_each, on_first

__all__ = ["load_safetensors", "save_safetensors"]
# sidelit: show

Files = dict[str, tuple[bytes, dict[str, Place], int]]


@torch.no_grad()
def save_safetensors(
    model: nn.Module,
    folder: Path | str,
    *,
    shard_bytes: int = 5 * 10**9,
    dtype: torch.dtype | None = None,
    rename: Rename | None = None,
    also: Callable[[Path], object] | None = None,
) -> None:
    """Write the plain model into a folder. Collective.

    The folder appears when all of it is on the disk.

    :param model: a model that was sharded
    :param folder: on a disk that all ranks see; there is nothing of this name yet
    :param shard_bytes: how large a file may grow; a larger tensor has a file of its own
    :param dtype: for floating-point parameters and buffers; `None` keeps that of each,
        under a [policy](policy.py) that of the masters
    :param rename: gives for a name in the model the name in the folder, or `None` for
        what is left out; by default [as `transformers` does](hub_names.py)
    :param also: writes more files, such as a configuration, into the folder that it is
        given; called on the first rank
    :raises FileExistsError: on every rank, if the folder is there and holds something
    :raises OSError: on every rank, if one of them cannot write; nothing stays behind
    :raises ValueError: if the format has no name for a dtype, or no place for the extra
        state of a module
    :raises Disagreement: if another rank does something else
    """
    if type(shard_bytes) is not int or shard_bytes < 1:
        raise ValueError(
            f"shard_bytes={shard_bytes!r} is no size of a file; choose 1 or more bytes"
        )
    come_together(model, "save")
    refuse_extra_state(model, "safetensors", "save the model with state_dict()")
    final = Path(folder).absolute()
    draft = final.with_name(f".{final.name}.partial")
    held = held_by_name(model, rename)
    named = [
        Named(name, written_as(each.values.dtype, dtype), each.shape)
        for name, each in held.items()
    ]
    about = {"format": "pt"} | {
        other: name for name, each in held.items() for other in each.names[1:]
    }
    files = {
        file: laid_out(draft / file, tensors, about)
        for file, tensors in cut_into_files(named, shard_bytes).items()
    }

    def begin() -> None:
        refuse_taken(final)
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        for file, (head, _, size) in files.items():
            with (draft / file).open("wb") as new:
                new.write(head)
                new.truncate(size)
                flush(new)

    def end() -> None:
        if len(files) > 1:
            write_index(draft / INDEX, named, files)
        if also is not None:
            also(draft)
        flush_folder(draft)
        draft.rename(final)
        flush_folder(final.parent)

    try:
        on_first(begin)
        on_each(partial(write_own, files, held))
        on_first(end)
    except BaseException:
        if world(None)[0] == 0:
            shutil.rmtree(draft, ignore_errors=True)
        raise


def write_own(files: Files, held: dict[str, Stretch]) -> None:
    """Write what lies on this rank into all files, and wait until the disk has it."""
    own = {name: each.own for name, each in held.items()}
    room = new_room()
    for _, places, _ in files.values():
        mine = [name for name in places if own[name].values.numel()]
        if not mine:
            continue
        with places[mine[0]].file.open("r+b") as file:
            for name in mine:
                each = own[name]
                pour(each.values, file, places[name], each.start, room)
            flush(file)


@torch.no_grad()
def load_safetensors(
    model: nn.Module,
    folder: Path | str,
    *,
    cast: bool = False,
    ignore: Iterable[str] = (),
    rename: Rename | None = None,
) -> None:
    """Load a folder into a model. Collective. Each rank reads the elements that it has.

    :param model: a model that was sharded
    :param folder: a folder as `save_safetensors` or `transformers` writes it, or one file
    :param cast: whether values of another dtype are converted
    :param ignore: patterns, such as `"*.inv_freq"`, of names that the folder may hold and
        the model lacks
    :param rename: gives for a name in the model the name in the folder, or `None` for
        what is not there and stays as it is; by default the same name, or the one that
        [`transformers` writes](hub_names.py)
    :raises ValueError: on every rank, if the folder lacks a name or holds one too many,
        or a tensor has another shape or dtype; the model stays as it was
    :raises OSError: on every rank, if one of them cannot read
    :raises Disagreement: if another rank does something else
    """
    come_together(model, "load")
    found = on_first(partial(places_of, Path(folder)))
    copies = list(buffers(model, mine=False))
    held = [*stretches(model), *(copy for _, copy in copies)]
    files = names_in_files(model, keys(model))
    held = renamed(held, rename or (lambda name: (name, files[name])))
    pairs = wanted(held, found, Path(folder), cast=cast, ignore=ignore)
    take_apart(model)
    on_each(partial(read_own, pairs))
    note_changes(model)
    for buffer, copy in copies:
        buffer.copy_(copy.whole)


def read_own(pairs: list[tuple[Stretch, Place]]) -> None:
    """Read the elements that lie on this rank, file by file."""
    by_file: dict[Path, list[tuple[Stretch, Place]]] = {}
    for each, place in pairs:
        if each.values.numel():
            by_file.setdefault(place.file, []).append((each, place))
    room = new_room()
    for path, here in by_file.items():
        with path.open("rb") as file:
            for each, place in sorted(here, key=lambda pair: pair[1].start):
                fill(each.values, file, place, each.start, room)


def held_by_name(model: nn.Module, rename: Rename | None) -> dict[str, Stretch]:
    """What the files are to hold, in the order of a `state_dict`, as far as it lies here.

    The buffers are those of the first rank, so no other rank has elements of them.
    """
    found = list(stretches(model))
    for _, copy in buffers(model, mine=False):
        here = copy.values if world(None)[0] == 0 else copy.values[:0]
        found.append(replace(copy, values=here))
    order = {f"{MODEL}.{name}": number for number, name in enumerate(keys(model))}
    found = [
        replace(each, names=tuple(sorted(each.names, key=order.__getitem__)))
        for each in found
    ]
    found.sort(key=lambda each: order[each.name])
    files = names_in_files(model, keys(model))
    held = renamed(found, rename or files.__getitem__)
    refuse_twice([each.name for each in held])
    return {each.name: each for each in held}


def keys(model: nn.Module) -> Iterator[str]:
    """The names that a `state_dict` has, in its order."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name in (*own_parameters(module), *lasting_buffers(module)):
            yield f"{prefix}.{name}" if prefix else name


def written_as(dtype: torch.dtype, chosen: torch.dtype | None) -> torch.dtype:
    """The dtype that the files have for elements of another one."""
    return chosen if chosen is not None and dtype.is_floating_point else dtype


def write_index(path: Path, named: list[Named], files: Files) -> None:
    """Write down which tensor is in which file."""
    said = {
        "metadata": {"total_size": sum(each.nbytes for each in named)},
        "weight_map": {
            name: file for file, (_, places, _) in files.items() for name in places
        },
    }
    with path.open("w") as file:
        json.dump(said, file, indent=2)
        flush(file)


def flush(file: IO[Any]) -> None:
    """Wait until the disk has a file."""
    file.flush()
    os.fsync(file.fileno())
