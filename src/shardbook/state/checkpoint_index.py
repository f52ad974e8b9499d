r"""# The index of a checkpoint

> PyTorch writes it as a pickle, and a pickle can run any program. Here it is read without running one.

The file `.metadata` says which box of which tensor lies in which file. A pickle is a
small program: it names classes and functions, and what to call them with. So to open a
stranger's checkpoint could be to run a stranger's code. An index needs a dozen names,
all of them PyTorch's own descriptions of tensors. Any other is refused before anything
is called. The files with the numbers are read with `weights_only=True`, for the same
reason.
"""

# sidelit: hide
from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata

from shardbook.foundations.torch_private import INDEX_NAMES

__all__ = ["Changed", "Damaged", "index_of", "reason"]
# sidelit: show


class Damaged(ValueError):
    """A folder that is no whole checkpoint. The message is for the user."""


class Changed(Damaged):
    """A file that is not what was written."""


def index_of(folder: Path) -> Metadata:
    """The index of a checkpoint that PyTorch or this book has written.

    :raises Damaged: if there is none, or it is no index
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
    # Where this version of Python has that class.
    (type(Path()).__module__, "PosixPath"),
    *INDEX_NAMES,
}


class Names(pickle.Unpickler):
    """Knows the names that an index needs, and the dtypes, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        """What a name stands for.

        :raises pickle.UnpicklingError: if an index has no use for it
        """
        if (module, name) in ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(
            found := getattr(torch, name, None), torch.dtype
        ):
            return found
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def reason(error: Exception) -> str:
    """Why PyTorch has refused to unpickle, in one line.

    Its message goes on for many lines, about how to load the file all the same.
    """
    named = re.search(r"(?:GLOBAL|global:?) ([\w.]+)", str(error))
    return f"it names {named[1]}" if named else str(error).partition("\n")[0]
