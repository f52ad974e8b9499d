r"""# Saving a model as safetensors

> All ranks write one safetensors folder of the plain model together, and each rank
> writes only its own elements.

[A checkpoint](checkpoints.py) is for continuing a run. A trained model goes to other
people, who open it with `from_pretrained` of the `transformers` library, or with
another program that reads safetensors. These programs expect the plain model: its
names, its shapes, and files of at most a few gigabytes.

```python
save_safetensors(model, "tuned", also=model.config.save_pretrained)
...
load_safetensors(model, "tuned")  # or a folder that another program wrote
```

If one rank gathered the model first, this rank would need memory for all of it: 80 GB
for 20 billion parameters in FP32. But [the places of all elements in the
files](tensor_file.py) follow from names, shapes and dtypes alone. So each rank writes
its elements to their places, and no parameter is sent. For example, 2 ranks in stage 3
save a matrix of 4 rows and 5 columns in FP32:

| rank | has the elements | writes the bytes of the matrix |
|---|---|---|
| 0 | 0 to 9 | 0 to 39 |
| 1 | 10 to 19 | 40 to 79 |

In addition to its own elements, a rank needs one megabyte of memory. Each of $N$ ranks
writes or reads $1/N$ of the bytes. All ranks have to see the same disk.

| file in the folder | content |
|---|---|
| `model.safetensors` | the whole model, if one file is enough |
| `model-00001-of-00003.safetensors`, … | otherwise a part of the model, as large as allowed |
| `model.safetensors.index.json` | with several files: which name is in which file |

A tied weight is stored under its first name only, because the format stores each
element once. The head of its file lists its other names.
"""

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
from shardbook.state.together import on_each, on_first, refuse_unshared

__all__ = ["load_safetensors", "save_safetensors"]

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

    The folder gets its name when all files are on the disk.

    :param model: a sharded model
    :param folder: on a disk that all ranks see; missing or empty
    :param shard_bytes: how many bytes a file may hold; a larger tensor gets a file of
        its own
    :param dtype: the dtype of floating-point parameters and buffers in the files;
        `None` keeps each tensor's dtype, and under a [policy](policy.py) that of the
        masters
    :param rename: gives for a name in the model the name in the folder, or `None` to
        leave the tensor out; by default [as `transformers` does](hub_names.py)
    :param also: a function that writes more files, such as a configuration, into the
        folder that it receives; called on rank 0
    :raises FileExistsError: on every rank, if the folder holds something
    :raises OSError: on every rank, if one of them cannot write; no files are left
    :raises ValueError: if the format has no name for a dtype, or a module has extra
        state, which the format cannot store
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
        refuse_unshared(draft)
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
    """Read the elements of this rank, file by file."""
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
    """The tensors for the files, in the order of a `state_dict`, with this rank's elements.

    Rank 0 writes the buffers, so on other ranks they have no elements.
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
    """The names in a `state_dict`, in its order."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name in (*own_parameters(module), *lasting_buffers(module)):
            yield f"{prefix}.{name}" if prefix else name


def written_as(dtype: torch.dtype, chosen: torch.dtype | None) -> torch.dtype:
    """The dtype in the files: the chosen one for floating point, otherwise the tensor's own."""
    return chosen if chosen is not None and dtype.is_floating_point else dtype


def write_index(path: Path, named: list[Named], files: Files) -> None:
    """Write the index: which tensor is in which file."""
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
    """Wait until a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())
