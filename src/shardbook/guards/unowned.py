r"""# Parameters that belong to no unit

> Each rank would train a parameter alone that was added after `shard`. Such a parameter is refused.

`shard` puts the model's parameters into units, and the units average their gradients.
Suppose a program then adds a layer, which is in no unit. Each rank computes the layer's
gradient from its own data, and the optimizer steps with it. So the layer drifts apart
between the ranks, while no error is raised and the loss still falls. The same happens

- if only a part of the model was sharded, such as its blocks,
- if a layer was replaced, for example the head before fine-tuning,
- if an adapter was put around a layer.

Such parameters are detected at two places. An optimizer that is about to step must not
mix them with sharded ones, and a sharded model that is about to run must not hold them.
An optimizer without any sharded parameter is not checked, because a program may train a
second model in another way.

A third change is more hidden. If a program assigns another parameter to an attribute of
a module, [the unit](unit.py#Unit.show) would put its own parameter back and train that
one. [The site](parameter_sites.py#Site.check) compares the two first.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from shardbook.foundations.torch_private import is_initialised, own_parameters
from shardbook.parameters.flat import flat_of, is_sharded
from shardbook.parameters.flat_checks import refuse_replaced

__all__ = ["refuse_replaced_in", "refuse_unowned_in", "refuse_unowned_of"]


def refuse_unowned_of(optimizer: Optimizer) -> None:
    """Refuse an optimizer that trains sharded parameters together with others.

    A parameter without a gradient is not trained, so it passes.

    :raises RuntimeError: naming the first of the others
    """
    refuse(
        parameter
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None and not is_sharded(parameter)
    )


def refuse_unowned_in(model: nn.Module) -> None:
    """Refuse a sharded model that has another trainable parameter.

    The check reads the dictionaries of the modules directly. It runs before each
    forward pass, and `model.parameters()` would take three times as long.

    :raises RuntimeError: naming the parameter
    """
    refuse(
        parameter
        for module in model.modules()
        for parameter in own_parameters(module).values()
        if parameter is not None and flat_of(parameter) is None
    )


def refuse_replaced_in(unit: Any) -> None:
    """Refuse to gather [a unit](unit.py) whose parameters were replaced or converted.

    :raises RuntimeError: naming the parameter
    """
    for site in unit.sites:
        site.check(unit.name)
    for flat in unit.flats:
        refuse_replaced(flat, unit.name)


def refuse(unowned: Iterable[Tensor]) -> None:
    """Refuse the first parameter that would be trained without being averaged."""
    for parameter in unowned:
        if parameter.requires_grad and not is_averaged(parameter):
            shape = tuple(parameter.shape)
            name = name_of(parameter) or f"a parameter of shape {shape}"
            raise RuntimeError(
                f"{name} belongs to no unit, so each rank would train it alone; call "
                "shard() on the whole model, after the last change of its layers"
            )


# sidelit: depth Parameters that `DistributedDataParallel` averages, and the name in the message.


def is_averaged(parameter: Tensor) -> bool:
    """Whether `DistributedDataParallel` averages the gradient of a parameter.

    That wrapper leaves no trace on a parameter, so all objects of the program are
    searched for it. The search takes as long as a small training step. So its result is
    kept on the parameter.
    """
    if not hasattr(parameter, _AVERAGED):
        for module in modules_of(DistributedDataParallel):
            for each in module.parameters():
                setattr(each, _AVERAGED, True)
    return hasattr(parameter, _AVERAGED)


_AVERAGED = "_shardbook_averaged"


def name_of(parameter: Tensor) -> str | None:
    """The name of a parameter in the outermost module of the program that holds it."""
    names = (
        name
        for module in modules_of(nn.Module)
        for name, other in module.named_parameters()
        if other is parameter
    )
    return max(names, key=len, default=None)


def modules_of(kind: type[nn.Module]) -> Iterator[nn.Module]:
    """All modules of a class, or of a class derived from it, in the program.

    `isinstance` is not used, because it would run the code of objects that pretend to
    be of another class.
    """
    for found in gc.get_objects():
        if issubclass(type(found), kind) and is_initialised(found):
            yield found
