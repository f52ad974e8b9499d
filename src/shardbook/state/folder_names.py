r"""# Which tensor is in which file

> A model is cut into files of a given size, and a folder has to hold exactly what the model does.

Programs find the tensors of a large model by an index:

```json
{
  "metadata": {"total_size": 14483464192},
  "weight_map": {
    "embed.weight": "model-00001-of-00003.safetensors",
    "layers.0.attention.weight": "model-00001-of-00003.safetensors"
  }
}
```

A name that is spelt otherwise would leave a parameter with its random first values, and
the model would still run. So a folder and a model have to agree in all names. What a
folder holds beside them, such as tables that an older version of a model has saved, is
listed by the caller.
"""

# sidelit: hide
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import nn

from shardbook.state.stored import MODEL, Stretch
from shardbook.state.tensor_file import Named, Place, places_in

__all__ = [
    "INDEX",
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
# sidelit: show

# From the name of a parameter or buffer to its name in a folder, `None` if it is not there.
Rename = Callable[[str], "str | None"]

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def cut_into_files(
    tensors: Iterable[Named], shard_bytes: int
) -> dict[str, list[Named]]:
    """The tensors of each file, in their order: a file is full before the next begins.

    :param shard_bytes: of the elements in one file; a larger tensor has its own file
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
    """The place of each tensor in a folder, or in one file.

    :raises ValueError: if it is no folder of safetensors, or its index names a tensor
        that its file does not hold
    :raises OSError: if it cannot be read
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
    """The place of each tensor that an index names."""
    index = folder / INDEX
    try:
        files: dict[str, str] = dict(json.loads(index.read_text("utf-8"))["weight_map"])
        held = {file: places_in(inside(folder, file)) for file in {*files.values()}}
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{index} is no index of safetensors: {error!r}") from error
    for name, file in files.items():
        if name not in held[file]:
            raise ValueError(
                f"{index} looks for {name} in {file}, which has no such name"
            )
    return {name: held[file][name] for name, file in files.items()}


class Shaped(Protocol):
    """What has a shape and a dtype: a tensor, or the place of one."""

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
    """Where each stretch of a model is in a folder.

    Of a tied weight a folder may hold several names. The last one counts, as for
    `load_state_dict`, which takes one after another.

    :param stretches: with the names that each may have in the folder
    :raises ValueError: if the folder holds other names than the model, or a tensor in
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
    """Stretches with the names that they have in a folder, without those that have none there.

    :param rename: gives the name, or several that are possible
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
    """The first of many names, and how many more there are."""
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
    """The name of a dtype, as a message says it."""
    return str(dtype).removeprefix("torch.")


def inside(folder: Path, name: str) -> Path:
    """A file of a folder.

    :raises ValueError: if an index names a file elsewhere
    """
    if Path(name).name != name:
        raise ValueError(f"{folder / INDEX} names {name!r}, which is no file beside it")
    return folder / name


def refuse_taken(folder: Path) -> None:
    """Refuse to write where something is.

    :raises FileExistsError: if the folder is there and holds something
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise FileExistsError(
            f"{folder} is there already; choose another name, or remove it"
        )


def refuse_extra_state(model: nn.Module, place: str, instead: str) -> None:
    """Refuse a model whose `state_dict` holds more than tensors.

    :param place: where only tensors have a place
    :param instead: what to do
    :raises ValueError: naming the module
    """
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            raise ValueError(
                f"{name or 'the model'} has extra state, which {place} has no place "
                f"for; {instead}"
            )


def refuse_twice(names: list[str]) -> None:
    """Refuse two tensors of one name.

    :raises ValueError: naming the first of them
    """
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"rename gives two tensors the name {name}")
        seen.add(name)
