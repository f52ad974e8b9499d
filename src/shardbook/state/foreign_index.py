r"""# The index of a foreign checkpoint

> Other programs save under keys of their own, so their index is read as if it had this book's keys.

A program that trains with `fully_shard` chooses the names of its checkpoint when it
saves a dictionary, and PyTorch joins the keys by dots:

| saved as | in the index | here |
|---|---|---|
| `{"model": …, "optim": …}` | `model.0.weight` | `model.0.weight` |
| | `optim.state.0.weight.exp_avg` | `optim.state.0.weight.exp_avg` |
| `{"net": …}` | `net.0.weight` | `model.0.weight` |
| `model.state_dict()` | `0.weight` | `model.0.weight` |

Once the index has the names of [what a rank stores](stored.py), all that reads a
checkpoint of this book reads the foreign one.

The settings of an optimizer, such as its learning rate, are no tensors. PyTorch pickles
each of them. Here they are read with `weights_only=True`, which builds numbers, texts
and tuples, and no other object.
"""

# sidelit: hide
from __future__ import annotations

import io
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from shardbook.state.checkpoint_index import Damaged, reason
from shardbook.state.sharded_files import Reader
from shardbook.state.stored import MODEL, OPTIMIZER

__all__ = ["Foreign", "group_settings", "refusal"]
# sidelit: show

GROUPS = OPTIMIZER.replace("state", "param_groups")


class Foreign(Reader):
    """Reads a checkpoint whose keys may be others.

    :param model_key: what the program called its model; `None` if the names stand alone
    :param optimizer_key: what it called the optimizer
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
        """The index, with the names of this book."""
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
        """The name in this book of what a program has saved."""
        for there, own in self.keys:
            if name.startswith(there):
                return own + name.removeprefix(there)
        return f"other.{name}"


def prefix_of(key: str | None, rest: str) -> str:
    """How the names below a key begin."""
    return rest.lstrip(".") if key is None else f"{key}{rest}"


def group_settings(reader: Foreign) -> list[dict[str, Any]]:
    """The settings of each group of an optimizer, with the names of its parameters.

    :raises Damaged: if a setting is more than data, or the settings are not by group
    """
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
    return [found[number] for number in sorted(found)]


def setting(folder: Path, where: Any) -> Any:
    """One setting, from its place in a file."""
    path = folder / Path(where.relative_path).name
    with path.open("rb") as file:
        file.seek(where.offset)
        pickled = io.BytesIO(file.read(where.length))
    try:
        return torch.load(pickled, weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise Damaged(refusal(path, error)) from error


def refusal(path: Path, error: Exception) -> str:
    """Say that a file is not loaded, and why."""
    return (
        f"{path} is not loaded, because it holds more than tensors and data: "
        f"{reason(error)}"
    )
