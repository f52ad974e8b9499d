r"""# Transforms and methods that a sharded model refuses

> Functions that need all parameters at once, as plain tensors, are refused, and the error names them.

Some functions take a model apart:

- `torch.vmap` and the other transforms of `torch.func` replace tensors by wrappers, and
  a wrapper has no memory into which a unit could be gathered.
- `torch.export` and `make_fx` record the operations of one forward pass, and would
  record this rank's exchanges, too.
- Threads that each run some blocks of one model start its exchanges in an order that
  differs from rank to rank.
- `resize_token_embeddings` builds a larger table from the old one, of which a rank has
  only a slice.

Without the checks of this chapter, each of them would end in an error from deep inside
PyTorch, or in a wrong result. The checks run when a unit's forward pass begins, and
cost a microsecond.
"""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import Any, NoReturn

import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from shardbook.foundations.torch_private import in_transform

__all__ = ["METHODS", "refuse_methods", "refuse_threads", "refuse_transforms"]

# Methods of models of other libraries that change the shapes or the values of whole
# parameters, with the advice for each.
METHODS = {
    "resize_token_embeddings": "call it before shard(model)",
    "merge_adapter": "merge in a plain model that has loaded model.state_dict()",
    "unmerge_adapter": "merge in a plain model that has loaded model.state_dict()",
    "merge_and_unload": "merge in a plain model that has loaded model.state_dict()",
}


def refuse_methods(model: nn.Module) -> None:
    """Make these methods of a model and its submodules raise an error."""
    for module in model.modules():
        for name, instead in METHODS.items():
            if hasattr(type(module), name):
                vars(module)[name] = partial(refuse, name, instead)


def refuse(name: str, instead: str, *_: Any, **__: Any) -> NoReturn:
    """Refuse a method, and say what to do instead.

    :raises RuntimeError: always
    """
    raise RuntimeError(
        f"{name} needs whole parameters that can be replaced, and those of this model "
        f"are sharded; {instead}"
    )


def refuse_transforms(unit: str) -> None:
    """Refuse a forward pass that is transformed or recorded.

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


def refuse_threads(conductor: Any, unit: str) -> None:
    """Refuse a forward pass in one thread while another thread is in one of the same model.

    :param conductor: [the conductor](conductor.py#Conductor) of the model's units
    :raises RuntimeError: naming the unit and what to do
    """
    here = get_ident()
    if conductor.thread == here:
        return
    calls = [driver.uses for driver in conductor.drivers.values()]
    if any(each.under_way_elsewhere() for each in (conductor.calls, *calls)):
        raise RuntimeError(
            f"{unit} was called while another thread is in a forward pass of the same "
            "model, and the ranks have to run its units in one order; call the units of "
            "a model from one thread"
        )
    conductor.thread = here
