r"""# Views that outlive a unit

> A module that keeps a view of its weights is refused, because the memory under the view is freed.

`self.weight.t()` has no memory of its own. It is a *view*: another shape over the
memory of the weight. In [stage 3](zero3.py) that memory is freed when the forward pass
of the unit ends. Tensors that autograd has saved are safe, because [every read of them
gathers the unit](demand.py), and so is [the weight itself](whole_form.py). A
computation that begins later with a view is not safe:

```python
class Output(nn.Module):
    def forward(self, x):
        self.turned = self.weight.t()   # read by the loss, after the unit is freed
        return x @ self.turned
```

PyTorch keeps the view alive, but does not know that its memory is gone. Some operations
on the view then raise an error that names no cause, and others end the process. So when
a unit is freed, this chapter looks for such views in the attributes of the unit's
modules, in the arguments, and in the result. [A view that is part of the
result](hooks.py#Hooks.result), even inside a container or a dataclass, leaves the
module as a copy and needs no search.

A view is not found if only a closure, a global list or another object holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

from torch import Tensor, nn

from shardbook.foundations.hook_context import is_freed, tensors_in
from shardbook.foundations.torch_private import (
    own_buffers,
    own_children,
    own_parameters,
)
from shardbook.parameters.flat import is_resizable
from shardbook.zero.unit import Unit

__all__ = ["refuse_views"]


def refuse_views(
    unit: Unit, module: nn.Module, units: Set[nn.Module], exchanged: Any
) -> list[Tensor]:
    """Refuse views of a unit's weights in its modules, its arguments and its result.

    The values of all attributes are searched in one go, so that an object is searched
    once even if many modules refer to it.

    :param unit: the unit, which has been freed
    :param module: its module
    :param units: the modules of all units; their attributes are searched with their own
        unit
    :param exchanged: the arguments and the result
    :returns: the tensors that the modules keep in their attributes, and those among the
        arguments and the result; none if the unit keeps its memory
    :raises RuntimeError: naming the unit and the attribute
    """
    refuse_arrays(unit)
    if not any(is_freed(flat.full) for flat in unit.flats):
        return []
    whole = {id(parameter) for flat in unit.flats for parameter in flat.whole}
    values: list[Any] = [exchanged]
    registered: list[Any] = []
    for part in parts(module, units):
        own = vars(part)
        values += [own[name] for name in own.keys() - _USUAL]
        values += own_buffers(part).values()
        registered += own_parameters(part).values()
    kept = list(tensors_in(values))
    if any(map(is_freed, kept)) or not whole.isdisjoint(map(id, registered)):
        raise RuntimeError(
            f"{unit.name} keeps a view of its weights {place(module, units, whole)}, but "
            "their memory is given back after its forward pass; keep a clone of it"
        )
    return kept


def refuse_arrays(unit: Unit) -> None:
    """Refuse an array of another library over the memory of a unit.

    PyTorch does not give memory back that it has lent, as `weight.numpy()` does.

    :raises RuntimeError: naming the unit and what to do
    """
    if unit.stage == 3 and not all(is_resizable(flat.full) for flat in unit.flats):
        raise RuntimeError(
            f"{unit.name} has lent the memory of its weights to another library, as "
            "weight.numpy() does, but that memory is given back after the forward pass; "
            "convert a clone of the weight"
        )


def parts(
    module: nn.Module, units: Set[nn.Module], first: bool = True
) -> Iterator[nn.Module]:
    """A unit's module and the modules in it, without those of other units."""
    if first or module not in units:
        yield module
        for child in own_children(module).values():
            if child is not None:
                yield from parts(child, units, first=False)


# The attributes that every module has, and those that this library adds.
_USUAL = {*vars(nn.Module()), "__reduce_ex__", "_shardbook_conductor"}

# sidelit: depth The place of a view, as the message names it.


def place(module: nn.Module, units: Set[nn.Module], whole: Set[int]) -> str:
    """The place where a view is kept, as words of a message."""
    for part in parts(module, units):
        everything = {**vars(part), **own_buffers(part), **own_parameters(part)}
        for name in sorted(everything.keys() - _USUAL):
            value = everything[name]
            if id(value) in whole or any(map(is_freed, tensors_in(value))):
                return f"in the attribute {name!r} of a {type(part).__name__}"
    return "in its arguments or in an object that it returns"
