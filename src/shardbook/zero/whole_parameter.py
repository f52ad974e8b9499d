r"""# The whole parameters of a unit

> A whole parameter has the attributes and the class of the model's own, and is not read while it is freed.

While a unit computes, its modules hold [whole parameters](flat.py) in place of the
model's own. A program must not notice the difference:

```python
layer.weight.scale = 0.5              # before sharding

def forward(self, x):                 # of the layer
    self.weight.data.mul_(0.99)       # a write that PyTorch does not count
    return x @ self.weight * self.weight.scale
```

So both objects have one dictionary of attributes. If the model's own parameter has a
class of its own, such as that of 8-bit weights, the whole one has it, too. Otherwise it
has one of the two classes of this chapter, or in a compiled unit the plain class:

| the memory of the unit is | class | what it adds |
|---|---|---|
| there | `Whole` | [writes through `.data`](whole_parameter.py#WritesInUse) are found |
| given back | `Freed` | an operation on the parameter gathers the unit, or is refused |

A program can keep the object itself: on the context of an `autograd.Function`, in a
closure, or in a list. In [stage 3](unit.py#module/stage-3) its memory is given back after the forward
pass. PyTorch would read memory that belongs to other tensors by then. `Freed` is told
of each operation on the parameter before it runs. In a backward pass it [gathers the
unit](hooks.py#Hooks.reach_again), and the operation reads the same values as in a plain
program. At another moment no rank could rely on the others to gather, so the operation
is refused.

The class changes when the unit is gathered or freed, and while a unit computes no
operation passes through Python.

A program may also change the model's own parameters. The whole ones [take over
`requires_grad`](#module/freezing-and-unfreezing) before each use of the unit. Changes
[that a flat vector cannot follow](#module/what-a-flat-vector-refuses), such as
`model.half()`, raise an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
from torch import Tensor, nn

from shardbook.foundations.torch_private import (
    Versions,
    as_plain,
    gradient_hooks,
    shares_storage,
    storage_ids,
    tree_leaves,
    writes_to,
)

if TYPE_CHECKING:
    from shardbook.zero.flat import Flat
    from shardbook.zero.unit import Unit

__all__ = [
    "OWNER",
    "VIEWS",
    "Freed",
    "Whole",
    "WritesInUse",
    "carry_over",
    "changed_since_sharding",
    "has_gradient_hook",
    "has_live_node",
    "match",
    "refuse_gradient",
    "refuse_replaced",
    "refuse_writes",
    "set_class",
    "trainable",
]

# A parameter refers to its vector through this attribute. The reference is weak. A
# circle of strong references would keep an unused model in memory until the garbage
# collector runs.
OWNER = "_shardbook_flat"

VIEWS = frozenset(("T", "mT", "H", "mH", "real", "imag"))


class Whole(nn.Parameter):
    """A whole parameter whose memory is there."""

    # By this name [`is_freed`](hook_context.py#is_freed) knows the class.
    may_be_freed = True

    @property
    def data(self) -> Tensor:
        """The values without a history. PyTorch counts no write to them."""
        with as_plain():
            values: Tensor = _DATA.__get__(self)
        flat = getattr(self, OWNER, lambda: None)()
        if flat is not None:
            flat.writes.lend(values)
        return values

    @data.setter
    def data(self, values: Tensor) -> None:
        with as_plain():
            _DATA.__set__(self, values)

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """A plain parameter with the same values, which belongs to no unit."""
        return nn.Parameter(self.detach().clone(), self.requires_grad)


_DATA: Any = Tensor.data


class Freed(Whole):
    """A whole parameter whose memory is given back."""

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Gather the unit before the operation. PyTorch calls this in place of the operation.

        :raises RuntimeError: outside of a backward pass
        """
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        if name == "__get__":
            name = func.__self__.__name__  # type: ignore[attr-defined]
            reads = name in VIEWS
        else:
            reads = name not in _READS_NO_VALUES
        if reads:
            for value in tree_leaves((args, kwargs)):
                if type(value) is Freed:
                    demand(value, name)
        with as_plain():
            return func(*args, **kwargs)

    @property
    def data(self) -> Tensor:
        """The values, after the unit has been gathered."""
        demand(self, "data")
        return self.data

    @data.setter
    def data(self, values: Tensor) -> None:
        with as_plain():
            _DATA.__set__(self, values)

    def __repr__(self) -> str:  # type: ignore[override]
        """The parameter without its values, which are not there."""
        return f"Parameter of shape {tuple(self.shape)}, freed"


# Operations that do not read the values.
_READS_NO_VALUES = frozenset(
    (
        *("__set__", "__delete__", "__hash__", "__len__", "size", "dim"),
        *("ndimension", "numel", "nelement", "stride", "storage_offset"),
        *("element_size", "is_floating_point", "is_complex", "is_contiguous"),
        *("get_device", "untyped_storage", "requires_grad_", "register_hook"),
        *("register_post_accumulate_grad_hook", "zeros_like", "ones_like"),
        *("empty_like", "full_like", "new_empty", "new_zeros", "new_ones", "new_full"),
    )
)


def demand(parameter: Freed, operation: str) -> None:
    """Make the unit of a freed parameter whole.

    :raises RuntimeError: naming the parameter, if this is no backward pass
    """
    flat: Flat | None = getattr(parameter, OWNER)()
    hooks = None if flat is None else flat.hooks()
    if flat is None or hooks is None:
        raise RuntimeError("a parameter was read after its model was dropped")
    if hooks.reach_again():
        return
    index = next(i for i, one in enumerate(flat.whole) if one is parameter)
    raise RuntimeError(
        f"{flat.layout.slots[index].names[0]} of unit {hooks.unit.name} was kept in "
        f"its forward pass and read after it, when its memory is freed ({operation}); "
        "keep a clone of it"
    )


def match(whole: Sequence[nn.Parameter], parameters: Sequence[nn.Parameter]) -> None:
    """Give whole parameters the attributes and the classes of the model's own."""
    for one, parameter in zip(whole, parameters, strict=True):
        # Fake tensors, which have no values, are of another class, and keep what they
        # are.
        if type(one) is nn.Parameter:
            one.__dict__ = parameter.__dict__
            # A slice of a plain parameter has [a class of its own](access.py#Slice).
            kind = getattr(type(parameter), "of_class", type(parameter))
            one.__class__ = Whole if kind is nn.Parameter else kind


def set_class(
    parameters: Iterable[nn.Parameter], kind: type[nn.Parameter] = Whole
) -> None:
    """Change the class of whole parameters when their memory is given back, or is there again.

    A parameter with a class of the program keeps it.

    :param kind: `Freed`, `Whole`, or `nn.Parameter` where the unit is compiled, because
        the compiler reads no property of a derived class
    """
    for parameter in parameters:
        if type(parameter) in (Freed, Whole, nn.Parameter):
            parameter.__class__ = kind


# ## What a flat vector refuses
#
# > Changes to a model that a flat vector cannot follow raise an error instead of training something else.
#
# [A flat vector](flat.py) holds the parameters of a model, but the program around the
# model has no code for it. That program may move the model, write to a weight in
# `forward`, or set a hook on a gradient, as in an unsharded model. Each of these would
# train something else without an error:
#
# | a program | without these checks | the error comes |
# |---|---|---|
# | calls `model.half()` or `model.cuda()` | the optimizer trains data no rank gathers | before a gather |
# | writes to a parameter in `forward` | the write is lost after the forward pass | when that pass ends |
# | sets a hook on a parameter's gradient | the hook is never called | before a gather |
# | calls `model.forward(x)` | the gradient is never averaged | when the gradient arrives |
#
# The checks compare addresses and counts, and never values, so they do not make the host
# wait for a device.


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
    with as_plain():
        number = len(flat.parameters)
        shard, full, *forms = storage_ids(
            (flat.shard, flat.full, *flat.parameters, *flat.whole)
        )
        kept, whole = forms[:number], forms[number:]
        in_place = {*kept} == {shard} and {*whole} == {full}
        trained = flat.learns or not any(each.requires_grad for each in flat.parameters)
        hooks = gradient_hooks(*flat.parameters)
        own = all(getattr(hook, "func", None) is refuse_gradient for hook in hooks)
        if in_place and trained and own:
            return
        for slot, parameter, *here in zip(
            flat.layout.slots, flat.parameters, kept, whole, strict=True
        ):
            if here != [shard, full]:
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
            self.found = self.before != Versions(*parameters) or any(
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


# ## Freezing and unfreezing
#
# > A program may change `requires_grad` while it trains, if it does so on all ranks alike.
#
# Programs change `requires_grad` for many reasons. One unfreezes another layer in each
# epoch, another freezes the discriminator of a GAN while the generator trains, and a
# library of adapters turns some of them off and others on. In an unsharded program the
# next forward pass follows such a change.
#
# In a sharded model the forward pass computes with [the whole
# parameters](flat.py#Flat.take), which are other objects than the model's own. So before
# each use every whole parameter takes over the `requires_grad` of the model's own one.
# After the use, [changes that were made meanwhile are copied back](#carry_over). A frozen
# parameter gets no gradient, and a flat vector whose parameters are all frozen is not
# exchanged.
#
# The vectors themselves are [laid out when the model is sharded](layout.py#plan), with
# trainable and frozen parameters in separate vectors. That does not change later:
#
# | a vector of parameters that were | stage | costs, if they change |
# |---|---|---|
# | trainable, and some are frozen later | all | the exchange carries zeros in their places |
# | trainable, and all are frozen later | all | nothing is exchanged |
# | frozen, and trained later | 3 | nothing more: it is split already |
# | frozen, and trained later | 0 | nothing more |
# | frozen, and trained later | 1, 2 | every rank keeps the optimizer's state of the whole vector |
#
# In the last case the gradients also cost the $2\,P_u\,(N_d-1)/N_d$ elements of stage 0.
# So if a parameter is going to be trained for most of the time, make it trainable before
# you shard the model. As without sharding, an optimizer trains only the parameters that
# it was given: pass it `model.parameters()`, or add a group when a layer is unfrozen.
#
# All ranks must change `requires_grad` alike, because a frozen vector takes no part in an
# exchange. [The order](exchange_order.py) compares this at the start of each backward
# pass.


def carry_over(
    parameters: Sequence[Tensor], whole: Sequence[Tensor], *, to_whole: bool
) -> None:
    """Copy `requires_grad` from the model's own parameters to the whole ones, or back.

    A module may freeze a parameter while it is whole: in its own `forward`, in a block
    of [`whole(model)`](whole.py), or after [an interrupted forward
    pass](optimizer_guard.py#module/interrupted-forward-and-backward-passes). That
    change has to last. But the model's own parameters may have changed meanwhile, too.
    So only differences from the beginning of the use are copied back.

    :param parameters: the model's own parameters
    :param whole: the whole parameters, in the same order
    :param to_whole: whether the use of the whole parameters begins or ends
    """
    for own, one in zip(parameters, whole, strict=True):
        if to_whole:
            vars(one)[_BEGAN] = own.requires_grad
            if one.requires_grad is not own.requires_grad:
                one.requires_grad_(own.requires_grad)
        elif one.requires_grad is not vars(one).get(_BEGAN, one.requires_grad):
            own.requires_grad_(one.requires_grad)


_BEGAN = "_shardbook_requires_grad"


@contextmanager
def trainable(parameter: Tensor) -> Iterator[None]:
    """Make a parameter require gradients in the block.

    PyTorch accepts a hook on a gradient only if the tensor requires one. Once the hook
    is set it stays, whatever `requires_grad` becomes.

    >>> import torch
    >>> frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    >>> with trainable(frozen):
    ...     handle = frozen.register_hook(print)
    >>> frozen.requires_grad
    False
    """
    before = parameter.requires_grad
    parameter.requires_grad_()
    try:
        yield
    finally:
        parameter.requires_grad_(before)


# sidelit: depth Ranks that have frozen or unfrozen different parameters.


def changed_since_sharding(units: Iterable[Unit]) -> str:
    """The parameters that were frozen or unfrozen since the model was sharded, as text.

    The text becomes part of the name of a backward pass. Ranks whose names differ [do
    not continue](exchange_order.py#Order.before), and the error of each rank names a
    parameter that it has changed. A program that alternates between two states has
    backward passes of two names, and the ranks agree on each name once.

    :param units: all units of the model
    :returns: the first parameter by name, the number of the others, and a checksum of
        all their names; an empty text if there are none
    """
    with as_plain():
        names = [
            slot.names[0]
            for unit in units
            for flat in unit.trainable
            for slot, parameter in zip(flat.layout.slots, flat.parameters, strict=True)
            if parameter.requires_grad is not flat.layout.trainable
        ]
    if not names:
        return ""
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    checksum = crc32("\n".join(names).encode())
    return f"(requires_grad of {names[0]}{others} changed, {checksum:08x}) "
