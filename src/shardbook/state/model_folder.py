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

Names also differ between programs. Some models of `transformers` have [other names in
their files](#module/names-in-the-files-of) than in memory. [A checkpoint of another
program](torch_checkpoint.py) has names of its own, and they are [translated when its
index is read](#module/the-index-of-another-programs).
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn
from torch.distributed.checkpoint.metadata import Metadata

from shardbook.foundations.collectives import world
from shardbook.foundations.torch_private import lasting_buffers, own_parameters
from shardbook.state.file_formats import Damaged, reading, schema
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
from shardbook.state.optimizer_entries import MODEL, OPTIMIZER, Stretch, stretches
from shardbook.state.run_state import buffers, come_together, note_changes, take_apart
from shardbook.state.sharded import Reader
from shardbook.state.tensor_file import Named, Place, fill, laid_out, new_room, pour
from shardbook.state.together import flush_folder, on_each, on_first, refuse_unshared

__all__ = [
    "REFUSED",
    "Foreign",
    "group_settings",
    "load_safetensors",
    "names_in_files",
    "save_safetensors",
]

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
        leave the tensor out; by default [as `transformers`
        does](model_folder.py#module/names-in-the-files-of)
    :param also: a function that writes more files, such as a configuration, into the
        folder that it receives; called on rank 0
    :raises FileExistsError: on every rank, if the folder holds something
    :raises OSError: on every rank, if one of them cannot write; no files are left
    :raises ValueError: if the format has no name for a dtype, or a module has extra
        state, which the format cannot store
    :raises Disagreement: if another rank makes another call
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
        [`transformers` writes](model_folder.py#module/names-in-the-files-of)
    :raises ValueError: on every rank, if the folder lacks a name or holds one too many,
        or a tensor has another shape or dtype; the model stays as it was
    :raises OSError: on every rank, if one of them cannot read
    :raises Disagreement: if another rank makes another call
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


# ## Names in the files of the transformers library
#
# > Some models of `transformers` use other names in their files than in memory.
#
# Since version 5 of `transformers`, GPT-NeoX calls its last layer `lm_head`, as all models
# of the library do. The published files are older, and call the layer `embed_out`. So the
# library renames tensors when it reads them, and renames them back when it writes them:
#
# | in memory | in the files |
# |---|---|
# | `lm_head.weight` | `embed_out.weight` |
# | `gpt_neox.layers.0.attention.dense.weight` | the same |
#
# The library's own function gives the names: it receives tensors without elements, and
# returns them under the names of the files. Some models with many experts are also stored
# in other tensors, because one tensor in memory is split into several in the file. For
# such a model, the function returns tensors that were not passed in. Then the names in
# memory are kept, and the library can read those as well.


def names_in_files(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Map the names in a `state_dict` to the names that the library writes.

    A model of another library keeps its names, and so does any model with a version of
    `transformers` that cannot rename.

    >>> names_in_files(nn.Linear(2, 3), ["weight", "bias"])
    {'weight': 'weight', 'bias': 'bias'}
    """
    same = {name: name for name in names}
    renamed = renaming_of(model)
    if renamed is None:
        return same
    given = {name: torch.empty(0, device="meta") for name in same}
    try:
        found = renamed(model, dict(given))
    except Exception:
        # A conversion needs the shape of its tensor, and these tensors are empty.
        return same
    back = {id(tensor): name for name, tensor in found.items()}
    if {id(tensor) for tensor in given.values()} != back.keys():
        return same
    return {name: back[id(tensor)] for name, tensor in given.items()}


def renaming_of(model: nn.Module) -> Any:
    """The library's renaming function, if the model is one of the library's models."""
    library = sys.modules.get("transformers.modeling_utils")
    base = getattr(library, "PreTrainedModel", None)
    if base is None or not isinstance(model, base):
        return None
    return getattr(library, "revert_weight_conversion", None)


# ## The index of another program's checkpoint
#
# > Each program chooses the keys of its checkpoints, so its names are translated into
# > those of this book.
#
# A program that trains with `fully_shard` saves a dictionary, and chooses its keys.
# PyTorch joins the keys by dots into the names of the index:
#
# | the program saves | name in its index | name in this book |
# |---|---|---|
# | `{"model": …, "optim": …}` | `model.0.weight` | `model.0.weight` |
# | | `optim.state.0.weight.exp_avg` | `optim.state.0.weight.exp_avg` |
# | `{"net": …}` | `net.0.weight` | `model.0.weight` |
# | `model.state_dict()` | `0.weight` | `model.0.weight` |
#
# After the translation, the index has the names of [what a rank
# stores](optimizer_entries.py#module/what-a-rank-stores-in). So the functions that read
# this book's checkpoints can read that checkpoint, too.
#
# The settings of an optimizer, such as its learning rate, are not tensors, and PyTorch
# pickles each of them. They are read with `weights_only=True`, which creates numbers,
# strings and tuples, and no other objects.


GROUPS = OPTIMIZER.replace("state", "param_groups")


class Foreign(Reader):
    """Reads a checkpoint with the keys of another program.

    :param model_key: the key of the model; `None` if the names have no key before them
    :param optimizer_key: the key of the optimizer, or `None`
    """

    def __init__(
        self, folder: Path, model_key: str | None, optimizer_key: str | None
    ) -> None:
        super().__init__(folder)
        self.keys = [
            (prefix_of(optimizer_key, ".state."), f"{OPTIMIZER}."),
            (prefix_of(optimizer_key, ".param_groups."), f"{GROUPS}."),
            (prefix_of(model_key, "."), f"{MODEL}."),
        ]

    def read_metadata(self, *how: Any, **more: Any) -> Metadata:
        """Read the index, and translate its names."""
        index = super().read_metadata(*how, **more)
        return replace(
            index,
            state_dict_metadata={
                self.here(name): said
                for name, said in index.state_dict_metadata.items()
            },
            storage_data={
                replace(place, fqn=self.here(place.fqn)): where
                for place, where in index.storage_data.items()
            },
        )

    def here(self, name: str) -> str:
        """Translate a name of the other program into the name of this book."""
        for there, own in self.keys:
            if name.startswith(there):
                return own + name.removeprefix(there)
        return f"other.{name}"


def prefix_of(key: str | None, rest: str) -> str:
    """The beginning of all names below a key."""
    return rest.lstrip(".") if key is None else f"{key}{rest}"


def group_settings(reader: Foreign) -> list[dict[str, Any]]:
    """Read the settings of each parameter group of an optimizer, with its parameters' names.

    :raises Damaged: if a setting is more than data, or the program saved the settings
        by parameter instead of by group
    """
    known = schema()
    found: dict[int, dict[str, Any]] = {}
    for place, where in reader.read_metadata().storage_data.items():
        if not place.fqn.startswith(f"{GROUPS}."):
            continue
        named = re.fullmatch(r"(\d+)\.(\w+)", place.fqn.removeprefix(f"{GROUPS}."))
        if named is None:
            raise Damaged(
                f"{reader.folder} has settings of the optimizer by parameter "
                f"({place.fqn}); save it without flatten_optimizer_state_dict"
            )
        value = setting(reader.folder, where)
        found.setdefault(int(named[1]), {})[named[2]] = value
    groups = [found[number] for number in sorted(found)]
    with reading(f"{reader.folder} has no groups of an optimizer"):
        known.refuse_unlike(groups, known.Groups)
    return groups


def setting(folder: Path, where: Any) -> Any:
    """Read one setting from its place in a file."""
    path = folder / Path(where.relative_path).name
    with path.open("rb") as file:
        file.seek(where.offset)
        pickled = io.BytesIO(file.read(where.length))
    with reading(f"{path} {REFUSED}"):
        return torch.load(pickled, weights_only=True)


REFUSED = "is not loaded, because it holds more than tensors and data"
