r"""# Reading a checkpoint's index without running a pickle

> The index is a pickle, and a pickle can call any function. This reader allows a dozen
> names and refuses all others.

The file `.metadata` is the index of a checkpoint: it says which box of which tensor is
in which file. PyTorch writes it as a pickle. A pickle is a small program that names
functions and their arguments. One that names `os.system` and `rm -rf ~` deletes your
files when you open it. An index needs only a dozen names, all of them PyTorch's
descriptions of tensors. Any other name is refused before anything is called. The files
with the elements are read with `weights_only=True`, for the same reason.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from shardbook.foundations.torch_private import INDEX_NAMES

__all__ = ["Damaged", "index_of", "reading", "reason", "schema"]


class Damaged(ValueError):
    """A folder is not a complete checkpoint. The message is written for the user."""


def index_of(folder: Path) -> Metadata:
    """Read the index of a checkpoint that PyTorch or this book has written.

    :raises Damaged: if the file is missing or is not an index
    """
    path = folder / ".metadata"
    known = schema()
    if not path.is_file():
        raise Damaged(f"{folder} is no checkpoint: it has no file .metadata")
    with reading(f"{path} is no index of a checkpoint"), path.open("rb") as file:
        index = Names(file).load()
        if not isinstance(index, Metadata):
            raise ValueError(f"it holds a {type(index).__name__}")
        known.refuse_unlike(index, known.Index)
        known.refuse_unlike(list(index.storage_data), known.Keys)
        tensors = [
            said
            for said in index.state_dict_metadata.values()
            if isinstance(said, TensorStorageMetadata)
        ]
        known.refuse_unlike(tensors, known.Tensors)
    return index


DESCRIPTIONS = "torch.distributed.checkpoint.metadata"
ALLOWED = {
    (DESCRIPTIONS, "BytesStorageMetadata"),
    (DESCRIPTIONS, "ChunkStorageMetadata"),
    (DESCRIPTIONS, "Metadata"),
    (DESCRIPTIONS, "MetadataIndex"),
    (DESCRIPTIONS, "StorageMeta"),
    (DESCRIPTIONS, "TensorProperties"),
    (DESCRIPTIONS, "TensorStorageMetadata"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    # The module in which this version of Python keeps that class.
    (type(Path()).__module__, "PosixPath"),
    *INDEX_NAMES,
}


class Names(pickle.Unpickler):
    """Reads pickles that name nothing but dtypes and the classes of an index."""

    def find_class(self, module: str, name: str) -> Any:
        """Look up a name.

        :raises pickle.UnpicklingError: if the name does not belong into an index
        """
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(
            found := getattr(torch, name, None), torch.dtype
        ):
            return found
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def schema() -> Any:
    """Import [the schemas](schema.py). A program that only trains does without their library.

    :raises ValueError: if the library is not installed
    """
    try:
        return import_module("shardbook.state.schema")
    except ModuleNotFoundError as error:
        raise ValueError(
            "to read a checkpoint, the library msgspec is needed: pip install msgspec"
        ) from error


@contextmanager
def reading(what: str) -> Iterator[None]:
    """A block that reads bytes of a stranger, in which any error becomes `Damaged`.

    Wrong bytes can cause almost any error in a parser, also a `RecursionError` or a
    `MemoryError`. Errors of the disk stay what they are.

    :param what: the beginning of the message, before the reason
    """
    try:
        yield
    except (OSError, Damaged):
        raise
    except Exception as error:
        raise Damaged(f"{what}: {reason(error)}") from error


def reason(error: Exception) -> str:
    """Shorten an error to one line.

    PyTorch's refusal of a pickle has many lines, on how to load the file anyway.
    """
    said = str(error)
    if named := re.search(r"(?:GLOBAL|global:?) ([\w.]+)", said):
        return f"it names {named[1]}"
    plain = isinstance(error, ValueError | RuntimeError | pickle.UnpicklingError)
    name = "" if plain and said else f"{type(error).__name__} "
    return f"{name}{said}".partition("\n")[0].strip()
