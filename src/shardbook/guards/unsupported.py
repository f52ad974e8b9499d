r"""# What a sharded model cannot do

> Transforms and methods that need all parameters at once, as plain tensors, are refused by name.

A program may hand a model to something that takes it apart. `torch.vmap` and the other
transforms of `torch.func` replace the tensors by wrappers, and a wrapper has no memory
that could be gathered into. `torch.export` and `make_fx` write down the operations of
one forward pass, and would write down this rank's exchanges with them.
`resize_token_embeddings` builds a larger table from the old one, and of that a rank has
only a slice. Each of these ended in an error from deep inside of PyTorch, or in a
result that was wrong.

This chapter holds the checks. They run when a unit's forward pass begins, and they cost
a microsecond.
"""

# sidelit: hide
from __future__ import annotations

from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from shardbook.foundations.torch_private import in_transform

__all__ = ["METHODS", "refuse_methods", "refuse_transforms"]
# sidelit: show

# Methods of models of other libraries that change the shapes or the values of whole
# parameters, and what to do instead.
METHODS = {
    "resize_token_embeddings": "call it before shard(model)",
    "merge_adapter": "merge in a plain model that has loaded model.state_dict()",
    "unmerge_adapter": "merge in a plain model that has loaded model.state_dict()",
    "merge_and_unload": "merge in a plain model that has loaded model.state_dict()",
}


def refuse_methods(model: nn.Module) -> None:
    """Let such methods of a model and of its parts end in one sentence."""
    for module in model.modules():
        for name, instead in METHODS.items():
            if hasattr(type(module), name):
                vars(module)[name] = partial(refuse, name, instead)


def refuse(name: str, instead: str, *_: Any, **__: Any) -> NoReturn:
    """Say what to do instead.

    :raises RuntimeError: always
    """
    raise RuntimeError(
        f"{name} needs whole parameters that can be replaced, and those of this model "
        f"are sharded; {instead}"
    )


def refuse_transforms(unit: str) -> None:
    """Stop a forward pass that is transformed or recorded.

    :raises RuntimeError: naming the unit and what to do
    """
    # The stack of the transforms of `torch.func` that are under way, such as `vmap`.
    if in_transform():
        raise RuntimeError(
            f"{unit} is sharded, and torch.func transforms such as vmap, grad and jvp "
            "cannot pass its exchanges; transform a plain model that has loaded "
            "model.state_dict()"
        )
    # `torch.export` and `make_fx` record each operation through this mode.
    if get_proxy_mode() is not None or torch.jit.is_tracing():  # type: ignore[attr-defined]
        raise RuntimeError(
            f"{unit} is sharded, and an exported or traced program would contain this "
            "rank's exchanges; export a plain model that has loaded model.state_dict()"
        )
