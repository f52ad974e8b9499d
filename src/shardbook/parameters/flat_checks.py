r"""# What a flat vector refuses

> Changes to a model that a flat vector cannot follow raise an error instead of training something else.

[A flat vector](flat.py) holds the parameters of a model, but the program around the
model has no code for it. That program may move the model, write to a weight in
`forward`, or set a hook on a gradient, as in an unsharded model. Each of these would
train something else without an error:

| a program | without this chapter | the error comes |
|---|---|---|
| calls `model.half()` or `model.cuda()` | the optimizer trains what no rank gathers | before a gather |
| writes to a parameter in `forward` | the write is lost after the forward pass | when that pass ends |
| sets a hook on a parameter's gradient | the hook is never called | before a gather |
| calls `model.forward(x)` | the gradient is never averaged | when the gradient arrives |

The checks compare addresses and counts, and never values, so they do not make the host
wait for a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from shardbook.foundations.layout import shares_storage
from shardbook.foundations.torch_private import as_plain, gradient_hooks
from shardbook.foundations.versions import Versions, writes_to

if TYPE_CHECKING:
    from shardbook.parameters.flat import Flat

__all__ = [
    "WritesInUse",
    "has_gradient_hook",
    "has_live_node",
    "refuse_gradient",
    "refuse_replaced",
    "refuse_writes",
]


def refuse_replaced(flat: Flat, unit: str) -> None:
    """Refuse to gather after a change of the parameters that the unit cannot follow.

    `model.half()` or `model.to(device)` replaces the data of every parameter. The
    optimizer would then train the replacement, while the other ranks would still
    receive the old values. If it happens while the parameters are [whole](whole.py),
    the modules would compute with the replacement from then on. A complex parameter
    that is trained later has no mean here. And a hook on a gradient would never be
    called.

    :raises RuntimeError: naming the parameter and what to do
    """
    forms = zip(flat.layout.slots, flat.parameters, flat.whole, strict=True)
    with as_plain():
        for slot, parameter, whole in forms:
            kept = shares_storage(parameter, flat.shard)
            if not kept or not shares_storage(whole, flat.full):
                raise RuntimeError(
                    f"{slot.names[0]} in unit {unit} has left its shard; write its "
                    "values in place, and convert or move the model before sharding"
                )
            if parameter.requires_grad and not flat.learns:
                raise RuntimeError(
                    f"{slot.names[0]} in unit {unit} is complex and cannot be trained; "
                    "store its real and imaginary parts instead"
                )
            if has_gradient_hook(parameter):
                raise RuntimeError(
                    f"the gradient hook on {slot.names[0]} in unit {unit} would never "
                    "be called; remove it"
                )


class WritesInUse:
    """A record of whether the whole parameters were written to while modules computed with them.

    `parameter.data` is an alias with a count of its own. So each such alias that a
    program takes is recorded, too.
    """

    def __init__(self) -> None:
        self.before = Versions()
        self.lent: list[Tensor] = []
        self.found = self.in_use = False

    def lend(self, alias: Tensor) -> None:
        """Record an alias of a whole parameter, if modules compute with the parameter now."""
        if self.in_use:
            self.lent.append(alias)

    def note(self, parameters: Sequence[Tensor], *, begins: bool) -> None:
        """Record the versions when modules begin to compute, and compare them when they end."""
        self.in_use = begins
        if begins:
            self.before = Versions(*parameters)
            self.found = False
        else:
            self.found = bool(self.before.changed(*parameters)) or any(
                map(writes_to, self.lent)
            )
            self.lent.clear()


def refuse_writes(flat: Flat, unit: str) -> None:
    """Refuse a forward pass that wrote to its own parameters, as an embedding with
    `max_norm` does.

    Such a write lasts only if the modules compute with the stored parameters
    themselves. Parameters that are gathered or cast for one use are dropped after it.

    :raises RuntimeError: naming the unit and what to do
    """
    lasts = not flat.sliced and shares_storage(flat.full, flat.shard)
    if flat.writes.found and not lasts:
        raise RuntimeError(
            f"the forward pass of {unit} has written to its own parameters, and "
            "such a write does not last; change parameters between steps"
        )


def has_gradient_hook(parameter: Tensor) -> bool:
    """Whether a program has set a hook on this parameter's gradient.

    Autograd never sees a slice, whose gradient is stored after the exchange. So a hook
    on it would never be called, and no error would be raised.
    """
    hooks = gradient_hooks(parameter)
    return any(getattr(hook, "func", None) is not refuse_gradient for hook in hooks)


def has_live_node(parameter: Tensor) -> bool:
    """Whether the node that accumulates this parameter's gradient exists already.

    PyTorch makes the node when it is needed, and drops it when neither a graph nor the
    program refers to it. A hook on the node would never be called, because gradients
    arrive at another tensor. Whether a node has hooks, PyTorch does not tell.
    """
    if not parameter.requires_grad or not parameter.is_leaf:
        return False
    accumulator(parameter).metadata[_SEEN] = True
    return bool(accumulator(parameter).metadata.pop(_SEEN, False))


_SEEN = "shardbook"


def accumulator(parameter: Tensor) -> Any:
    """The node that accumulates a parameter's gradient."""
    # The types of PyTorch take the dictionary `metadata` of a node for a method.
    with torch.enable_grad():
        node: Any = parameter.view_as(parameter).grad_fn
    return node.next_functions[0][0]


def refuse_gradient(name: str, gradient: Tensor) -> None:
    """Refuse a gradient that autograd brings to the model's own parameter.

    A call of `model.forward(x)` instead of `model(x)` runs no hooks. In stage 0 the
    model would still compute, but the gradient would never be averaged.

    :raises RuntimeError: always
    """
    raise RuntimeError(
        f"{name} was used outside of its unit's forward pass, so its gradient is not "
        "averaged; call model(x) and not model.forward(x), and read parameters "
        'elsewhere, as in a penalty on the weights, inside of "with whole(model):"'
    )
