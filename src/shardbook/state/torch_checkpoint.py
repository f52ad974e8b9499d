r"""# Loading checkpoints of other programs

> `load_torch_checkpoint` reads what `fully_shard` or plain PyTorch has saved into a
> sharded model, without running a pickle.

A model that another program trained comes in one of two forms:

| written by | form | a rank reads |
|---|---|---|
| `torch.distributed.checkpoint.save`, on any number of ranks | a folder | the boxes that overlap its own |
| `torch.save` | a file | the pages of the file that hold its elements |

```python
load_torch_checkpoint(model, "fsdp2/step-1000", optimizer)
load_torch_checkpoint(model, "weights.pt")
```

Both forms contain pickles, and a pickle can run any code. So the index of a folder may
name [a dozen classes](file_formats.py#module/reading-a-checkpoints-index-without) only.
Everything else is read with `weights_only=True`: PyTorch then creates tensors, numbers
and containers, and refuses any other name.

Programs choose the keys of the model and the optimizer, and a file may be the model's
`state_dict` itself. The default keys are `"model"` and `"optim"`, as in PyTorch's
tutorials. With `None` the names have no key before them.

The opposite direction needs no function, because [a checkpoint](checkpoints.py) of this
book has PyTorch's format: `torch.distributed.checkpoint.load` reads it into the state
of a `fully_shard` model.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from shardbook.state.file_formats import reading, schema
from shardbook.state.folder_names import Rename, renamed, some, wanted
from shardbook.state.model_folder import REFUSED, Foreign, group_settings
from shardbook.state.optimizer_entries import (
    MODEL,
    Stretch,
    groups_from,
    numbered,
    refuse_other_settings,
    stretches,
    wanted_state,
)
from shardbook.state.run_state import (
    buffers,
    come_together,
    note_changes,
    refuse_waiting,
    take_apart,
)
from shardbook.state.sharded import read
from shardbook.state.tensor_file import Named
from shardbook.state.together import on_each, on_first
from shardbook.training.optimizer_state import load_optimizer_state_dict

__all__ = ["load_torch_checkpoint"]


@torch.no_grad()
def load_torch_checkpoint(
    model: nn.Module,
    path: Path | str,
    optimizer: Optimizer | None = None,
    *,
    model_key: str | None = "model",
    optimizer_key: str | None = "optim",
    cast: bool = False,
    ignore: Iterable[str] = (),
    rename: Rename | None = None,
) -> None:
    """Load a checkpoint of PyTorch. Collective. Each rank reads its own elements.

    :param model: a sharded model
    :param path: a folder of `torch.distributed.checkpoint`, or a file of `torch.save`;
        on a disk that all ranks see
    :param optimizer: the optimizer of the model's parameters; its saved state is
        assigned by the parameters' names, or in their order if a file has numbers
    :param model_key: the key of the model's `state_dict`; `None` if the folder has no
        such key. In a file a missing key is allowed in any case
    :param optimizer_key: the key of the optimizer's `state_dict`
    :param cast: whether parameters and buffers of another dtype are converted
    :param ignore: patterns of names that the checkpoint may hold and the model lacks
    :param rename: gives for a name in the model the name in the checkpoint, or `None`
        if the checkpoint does not hold the tensor
    :raises ValueError: on every rank, if the checkpoint holds other names, shapes or
        dtypes than the model, is damaged, or holds more than tensors and data
    :raises OSError: on every rank, if one of them cannot read
    :raises Disagreement: if another rank makes another call
    """
    come_together(model, "load")
    refuse_waiting(model)
    path = Path(path)
    copies = list(buffers(model, mine=False))
    held = [*stretches(model), *(copy for _, copy in copies)]
    held = renamed(held, rename or (lambda name: name))
    fit = partial(wanted, held, folder=path, cast=cast, ignore=ignore)
    if on_first(path.is_dir):
        reader = Foreign(path, model_key, optimizer_key)
        from_folder(reader, fit, model, optimizer, cast=cast)
    else:
        from_file(path, fit, model, optimizer, (model_key, optimizer_key))
    note_changes(model)
    for buffer, copy in copies:
        buffer.copy_(copy.whole)


def from_folder(
    reader: Foreign,
    fit: Callable[..., list[tuple[Stretch, Named]]],
    model: nn.Module,
    optimizer: Optimizer | None,
    *,
    cast: bool,
) -> None:
    """Read a folder of `torch.distributed.checkpoint`.

    :param fit: finds the tensors of the model among those in the folder
    """
    index = on_first(reader.read_metadata)
    state = list(wanted_state(index, model, optimizer)) if optimizer else []
    settings = on_first(partial(group_settings, reader)) if optimizer else []
    if optimizer and not settings:
        refuse_no_optimizer(reader.folder)
    held = [
        replace(each, names=(f"{MODEL}.{there.name}",))
        for each, there in fit(found=model_in(index))
    ]
    take_apart(model)
    read(reader, index, [*held, *(each for *_, each in state)], cast=cast)
    if optimizer is not None:
        entries: dict[int, dict[str, Tensor]] = {}
        for number, key, value, stretch in state:
            refuse_part_of_entry(reader.folder, key, stretch)
            entries.setdefault(number, {})[key] = value
        groups = groups_from(settings, model, optimizer)
        with reading(f"{reader.folder} does not fit the {type(optimizer).__name__}"):
            optimizer.load_state_dict({"state": entries, "param_groups": groups})


def model_in(index: Metadata) -> dict[str, Named]:
    """The model's tensors in a folder.

    An entry that is not a tensor, such as the extra state of a module, is listed, too,
    so that it is refused by name.
    """
    found = {}
    for name, there in index.state_dict_metadata.items():
        if name.startswith(f"{MODEL}."):
            short = name.removeprefix(f"{MODEL}.")
            found[short] = Named(short, torch.uint8, ())
            if isinstance(there, TensorStorageMetadata):
                found[short] = Named(short, there.properties.dtype, tuple(there.size))
    return found


def from_file(
    path: Path,
    fit: Callable[..., list[tuple[Stretch, Tensor]]],
    model: nn.Module,
    optimizer: Optimizer | None,
    keys: tuple[str | None, str | None],
) -> None:
    """Read a file of `torch.save`.

    The file is mapped into memory. So the system reads only the pages with this rank's
    elements, one parameter after another.
    """
    whole = opened(path)
    pairs = fit(found=state_dict_in(whole, keys[0], path))
    state = None if optimizer is None else whole.get(str(keys[1]))
    if optimizer is not None:
        if not isinstance(state, Mapping):
            refuse_no_optimizer(path)
        known = schema()
        with reading(f"{path} holds no state of an optimizer under {keys[1]!r}"):
            known.refuse_unlike(state, known.OptimizerState)
            for entries in state["state"].values():
                refuse_no_numbers(entries)
    take_apart(model)
    for each, there in pairs:
        size = each.values.numel()
        each.values.copy_(there.reshape(-1)[each.start : each.start + size])
    if optimizer is not None and state is not None:
        entries = numbered(state["state"], model, optimizer)
        groups = state["param_groups"]
        if any(isinstance(name, str) for group in groups for name in group["params"]):
            groups = groups_from(groups, model, optimizer)
        refuse_other_settings(groups, optimizer)
        whole_state = {"state": entries, "param_groups": groups}
        with reading(f"{path} does not fit the {type(optimizer).__name__}"):
            load_optimizer_state_dict(model, optimizer, whole_state)


def opened(path: Path) -> Mapping[str, Any]:
    """Open a file of `torch.save`, and map it if its format allows that. Collective."""
    found: list[Any] = []

    def load() -> None:
        with reading(f"{path} {REFUSED}"):
            mapped = zipfile.is_zipfile(path)
            found.append(
                torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
            )
        if not isinstance(found[0], Mapping):
            raise ValueError(f"{path} holds a {type(found[0]).__name__}, no state_dict")

    on_each(load)
    whole: Mapping[str, Any] = found[0]
    return whole


# sidelit: depth Files whose model or optimizer is elsewhere, and files of slices.


def state_dict_in(
    whole: Mapping[str, Any], key: str | None, path: Path
) -> dict[str, Any]:
    """Find the model's `state_dict` in a file: under its key, or the whole file.

    :raises ValueError: if the file has no `state_dict`, or holds slices of parameters
    """
    found = whole if key is None else whole.get(key, whole)
    if not isinstance(found, Mapping) or any(
        isinstance(value, Mapping) for value in found.values()
    ):
        raise ValueError(
            f"{path} has no state_dict of a model under {key!r}; it has "
            f"{some([*map(str, whole)])}: say with model_key which it is"
        )
    for name, value in found.items():
        if isinstance(value, DTensor):
            raise ValueError(
                f"{name} in {path} is one rank's part; save with full_state_dict=True, "
                "or with torch.distributed.checkpoint"
            )
    known = schema()
    with reading(f"{path} holds no state_dict"):
        known.refuse_unlike(found, dict[str, Any])
        refuse_no_numbers(found)
    return {
        name: value if isinstance(value, Tensor) else Named(name, torch.uint8, ())
        for name, value in found.items()
    }


def refuse_part_of_entry(folder: Path, key: str, found: Stretch) -> None:
    """Refuse a tensor that belongs to a list in an optimizer's state.

    :raises ValueError: naming it
    """
    if "." in key:
        raise ValueError(
            f"{found.name} in {folder} is a part of a list, and the folder does not say "
            "of which; load the model alone"
        )


def refuse_no_numbers(found: Mapping[str, Any]) -> None:
    """Refuse texts, and tensors whose elements are not in memory one after another.

    :raises ValueError: naming the entry
    """
    for name, value in found.items():
        if isinstance(value, str):
            raise ValueError(f"{name} is a text")
        if isinstance(value, Tensor) and (
            value.is_meta or value.is_nested or value.layout is not torch.strided
        ):
            raise ValueError(f"{name} is no plain tensor")


def refuse_no_optimizer(path: Path) -> NoReturn:
    """Refuse a checkpoint without the state of an optimizer.

    :raises ValueError: always
    """
    raise ValueError(
        f"{path} holds no state of an optimizer under that key; say with optimizer_key "
        "which it is, or load the model alone"
    )
