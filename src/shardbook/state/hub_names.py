r"""# The names that the transformers library writes

> Some models of that library have other names in their files than in memory.

GPT-NeoX calls its last layer `lm_head` since version 5 of `transformers`, as all models
do. Its files were written before, and call it `embed_out`. The library renames tensors
when it reads them, and again when it writes them:

| in memory | in the files |
|---|---|
| `lm_head.weight` | `embed_out.weight` |
| `gpt_neox.layers.0.attention.dense.weight` | the same |

The library is asked for the names. It gets tensors without elements, and gives them back
under the names of the files. Some models, with many experts, are stored as other tensors
too: what is one tensor in memory is several in a file. Then a tensor comes back that was
not given. Such a model keeps the names that it has in memory, which the library reads as
well.
"""

# sidelit: hide
from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

__all__ = ["names_in_files"]
# sidelit: show


def names_in_files(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """From the names of a `state_dict` to those that the library writes.

    Any other model, and any other version of the library, keeps its names.

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
        # A conversion has met a tensor of another shape than it expects.
        return same
    back = {id(tensor): name for name, tensor in found.items()}
    if {id(tensor) for tensor in given.values()} != back.keys():
        return same
    return {name: back[id(tensor)] for name, tensor in given.items()}


def renaming_of(model: nn.Module) -> Any:
    """The library's own function, if the model is one of its models."""
    library = sys.modules.get("transformers.modeling_utils")
    base = getattr(library, "PreTrainedModel", None)
    if base is None or not isinstance(model, base):
        return None
    return getattr(library, "revert_weight_conversion", None)
