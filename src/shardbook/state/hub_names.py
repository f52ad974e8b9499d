r"""# Names in the files of the transformers library

> Some models of `transformers` use other names in their files than in memory.

Since version 5 of `transformers`, GPT-NeoX calls its last layer `lm_head`, as all models
of the library do. The published files are older, and call the layer `embed_out`. So the
library renames tensors when it reads them, and renames them back when it writes them:

| in memory | in the files |
|---|---|
| `lm_head.weight` | `embed_out.weight` |
| `gpt_neox.layers.0.attention.dense.weight` | the same |

The library's own function gives the names: it receives tensors without elements, and
returns them under the names of the files. Some models with many experts are also stored
in other tensors, because one tensor in memory is split into several in the file. For
such a model, the function returns tensors that were not passed in. Then the names in
memory are kept, and the library can read those as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["names_in_files"]


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
