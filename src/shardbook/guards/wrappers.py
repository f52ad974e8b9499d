r"""# No second wrapper

> A sharded model inside another wrapper is refused before either of the two exchanges anything.

`DistributedDataParallel` averages the gradients of a model over the ranks, and so does
`shard`. Both around one model cannot work. The wrapper compares the shapes of its
parameters over the ranks, but slices have other shapes on every rank. So some ranks
raise an error of the wrapper while the others wait for them. In the same way
`fully_shard` would cut the slices a second time. A program may do this without a line
of its own: `accelerator.prepare(model)` and the `Trainer` of the `transformers` library
wrap each model that they get.

Each wrapper is detected at a point that every rank passes:

| wrapper | detected when |
|---|---|
| DDP, `DataParallel`, FSDP1, DeepSpeed's engine | it stores the model: PyTorch calls a hook |
| `fully_shard` and `replicate`, around the model or a submodule | it looks up the functions applied before |
| a wrapper from before `shard` | `shard` checks the modules and parameters |
| a wrapper around a module whose submodule is sharded later | it calls the submodule: it is on the stack |

No exchange has begun at that moment, and each rank raises the same error.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_module_registration_hook

from shardbook.foundations.nesting import modules_called
from shardbook.foundations.torch_private import REGISTRY_KEY
from shardbook.parameters.flat import is_sharded

__all__ = ["refuse_call_by_wrapper", "refuse_wrappers", "wrapped"]


def refuse_wrappers(model: nn.Module) -> None:
    """Make every attempt to wrap a sharded model, or a submodule of it, raise an error.

    :param model: a model that has just been sharded
    """
    watch_registrations()
    for path, module in model.named_modules():
        held = [f"{path}.{name}".lstrip(".") for name, _ in module.named_parameters()]
        if held:
            vars(module).setdefault(REGISTRY_KEY, Applied(held[0]))


@cache
def watch_registrations() -> None:
    """Check each module that is stored in another. One hook serves the process."""
    register_module_module_registration_hook(refuse_storing)


def refuse_storing(wrapper: nn.Module, name: str, module: nn.Module | None) -> None:
    """Refuse to store a sharded model in a wrapper.

    Only the parameters of wrappers are checked. A program that builds other modules
    pays for one comparison of names for each of them.

    :raises RuntimeError: naming the wrapper and a parameter
    """
    if module is not None and is_wrapper(wrapper):
        for parameter, value in module.named_parameters():
            if is_sharded(value):
                raise RuntimeError(refusal(kind_of(wrapper), parameter))


class Applied(dict[str, Any]):
    """The record of PyTorch's composable functions on a module, which they look up
    before they begin.

    `fully_shard` and `replicate` look up their names in this dictionary of the module.
    The lookup raises an error with the reason why they cannot be applied.

    :param parameter: the name of a parameter in a sharded model
    """

    def __init__(self, parameter: str) -> None:
        super().__init__()
        self.parameter = parameter

    def __contains__(self, name: object) -> bool:
        """:raises RuntimeError: if the function exchanges gradients or parameters"""
        if name in ("fully_shard", "replicate"):
            # `FullyShardedDataParallel` looks up the other two as well.
            raise RuntimeError(refusal(COMPOSABLE, self.parameter))
        return super().__contains__(name)


def wrapped(model: nn.Module) -> str | None:
    """The reason why a model cannot be sharded because of a wrapper inside or around it;
    `None` if there is no such wrapper.
    """
    for name, module in model.named_modules():
        if is_wrapper(module):
            return (
                f"{name or 'the model'} is a {kind_of(module)}; "
                "shard the plain model instead, with no other wrapper around it"
            )
        if isinstance(module, torch.jit.ScriptModule) and [*module.parameters()]:
            return (
                f"{name or 'the model'} was compiled by torch.jit, and its code cannot be "
                "given other parameters; shard the plain module, and compile a plain one "
                "with the trained state_dict()"
            )
    for name, parameter in model.named_parameters():
        if is_distributed(parameter):
            return (
                f"{name} is a DTensor, so something else has distributed it already; "
                "shard the plain model instead, without fully_shard or a parallel plan"
            )
    return None


def refuse_call_by_wrapper(model: nn.Module) -> None:
    """Refuse the forward pass of a sharded model if a wrapper has called it.

    Only this check finds a model whose surroundings were wrapped before it was sharded.

    :raises RuntimeError: naming the wrapper and a parameter
    """
    for caller in modules_called():
        if is_wrapper(caller):
            parameter = next((name for name, _ in model.named_parameters()), "it")
            raise RuntimeError(refusal(kind_of(caller), parameter))


def is_wrapper(module: nn.Module) -> bool:
    """Whether a module is a wrapper that exchanges the parameters inside it.

    The names of its classes decide. So no library must be imported, and derived classes
    of other libraries are found, too.
    """
    return any(base.__name__ in WRAPPERS for base in type(module).__mro__)


WRAPPERS = frozenset(
    (
        "DataParallel",
        "DeepSpeedEngine",
        "DistributedDataParallel",
        "FSDPModule",
        "FullyShardedDataParallel",
        "ShardedDataParallel",
    )
)


def is_distributed(parameter: Tensor) -> bool:
    """Whether a parameter is a `DTensor`, of which each rank holds a part."""
    return any(base.__name__ == "DTensor" for base in type(parameter).__mro__)


# sidelit: depth The wording of the error, and the name of the wrapper in it.


def refusal(wrapper: str, parameter: str) -> str:
    """The text of the error.

    >>> refusal("DataParallel", "head.weight").partition(";")[0]
    'head.weight is sharded, so DataParallel cannot exchange it once more'
    """
    return (
        f"{parameter} is sharded, so {wrapper} cannot exchange it once more; use the "
        "model that shard returned without a wrapper, with stage=0 for what "
        "DistributedDataParallel does"
    )


def kind_of(wrapper: nn.Module) -> str:
    """The name of the class by which a wrapper was found."""
    names = (base.__name__ for base in type(wrapper).__mro__)
    return next(name for name in names if name in WRAPPERS)


COMPOSABLE = "fully_shard, replicate or FullyShardedDataParallel"
