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
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from shardbook.foundations.torch_private import INDEX_NAMES

__all__ = ["Changed", "Damaged", "index_of", "reason"]


class Damaged(ValueError):
    """A folder is not a complete checkpoint. The message is written for the user."""


class Changed(Damaged):
    """A file differs from what was written."""


def index_of(folder: Path) -> Metadata:
    """Read the index of a checkpoint that PyTorch or this book has written.

    :raises Damaged: if the file is missing or is not an index
    """
    path = folder / ".metadata"
    try:
        with path.open("rb") as file:
            index = Names(file).load()
    except FileNotFoundError:
        raise Damaged(f"{folder} is no checkpoint: it has no file .metadata") from None
    except (
        pickle.UnpicklingError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        ImportError,
    ) as error:
        raise Damaged(f"{path} is no index of a checkpoint: {error}") from error
    if not isinstance(index, Metadata):
        raise Damaged(
            f"{path} is no index of a checkpoint: it holds a {type(index).__name__}"
        )
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


def reason(error: Exception) -> str:
    """Shorten PyTorch's refusal of a pickle to one line.

    PyTorch's message has many lines, on how to load the file anyway.
    """
    named = re.search(r"(?:GLOBAL|global:?) ([\w.]+)", str(error))
    return f"it names {named[1]}" if named else str(error).partition("\n")[0]
