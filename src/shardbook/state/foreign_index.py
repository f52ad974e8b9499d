r"""# The index of another program's checkpoint

> Each program chooses the keys of its checkpoints, so its names are translated into
> those of this book.

A program that trains with `fully_shard` saves a dictionary, and chooses its keys.
PyTorch joins the keys by dots into the names of the index:

| the program saves | name in its index | name in this book |
|---|---|---|
| `{"model": …, "optim": …}` | `model.0.weight` | `model.0.weight` |
| | `optim.state.0.weight.exp_avg` | `optim.state.0.weight.exp_avg` |
| `{"net": …}` | `net.0.weight` | `model.0.weight` |
| `model.state_dict()` | `0.weight` | `model.0.weight` |

After the translation, the index has the names of [what a rank stores](stored.py). So
the functions that read this book's checkpoints can read that checkpoint, too.

The settings of an optimizer, such as its learning rate, are not tensors, and PyTorch
pickles each of them. They are read with `weights_only=True`, which creates numbers,
strings and tuples, and no other objects.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from shardbook.state.checkpoint_index import Damaged, reading, schema
from shardbook.state.sharded_files import Reader
from shardbook.state.stored import MODEL, OPTIMIZER

__all__ = ["REFUSED", "Foreign", "group_settings"]

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
