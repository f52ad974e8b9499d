r"""# Gathering on demand

> A hook on each saved tensor gathers a unit when a backward pass reads it without any other announcement.

[A unit's backward pass](hooks.py) is announced by the tensors that its module returns.
A program may keep other tensors. This block leaves a penalty on its weights in an
attribute, and the loss adds it up:

```python
class Block(nn.Module):
    def forward(self, x):
        y = self.linear(x)
        self.penalty = self.linear.weight.square().sum()
        return y
```

The backward pass of `square` reads the weight. It does not pass through any tensor that
`forward` returned, so no hook of a result has run before. In [stage 3](unit.py#module/stage-3) the
unit may be freed at that moment. Then autograd would read memory that the allocator has
given to other tensors. The gradient would be wrong, and it would be another one in each
run.

So autograd itself has to announce the read. It saves tensors for the backward pass, and
PyTorch lets a program take part through a *pair of hooks*. `pack` is called with each
tensor that is saved, and autograd keeps what `pack` returns. `unpack` is called with
that result when the backward pass needs the tensor. During a unit's forward pass this
library sets such a pair. Its `pack` keeps the tensor as it is. Its `unpack` gathers the
unit if it is not whole, and then returns the tensor.

Autograd uses one pair at a time, the one that was set last. Another pair may be set
around the model: that of [a checkpoint](saved_tensors.py), or of [checkpoints on the
host](residual.py). The pair of this chapter hands each tensor on to that outer pair,
and so changes nothing for it. A program may also set a pair inside the unit. Tensors
that are saved under such an inner pair are announced by the unit's results alone.

Some gradients need no saved tensor. The gradient of `weight.sum()`, for example, is a
row of ones. So [a gradient that is stored](hooks.py#Hooks.gradient_stored) announces its unit,
too.

A module may also keep a view of its weights, and a later computation may begin with it.
No hook announces this read, so [such views are
refused](#module/views-that-outlive-a-unit).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from torch import Tensor, nn

from shardbook.foundations.hook_context import (
    in_backward,
    is_freed,
    tensors_in,
)
from shardbook.foundations.torch_private import (
    REGISTRY_KEY,
    count_of_writes,
    current_node,
    graph_task,
    modules_inside,
    number_of,
    own_buffers,
    own_parameters,
    own_tables,
    pop_saving,
    push_saving,
    saving_forbidden,
    top_saving,
)
from shardbook.zero.unit import Unit

if TYPE_CHECKING:
    from shardbook.zero.hooks import Hooks, Use

__all__ = [
    "YOUNGEST",
    "Pair",
    "number_now",
    "refuse_views",
    "set_pair",
    "take_away",
    "take_interrupted_away",
]

# A number above that of every node, for a moment that belongs to no node.
YOUNGEST = 2**64

SavedTensorHooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


@dataclass(eq=False)
class Pair:
    """The pair of hooks that autograd uses during one forward pass of a unit.

    The graph refers to the pair, and the module may refer to the graph. So the pair
    refers to the unit's hooks only weakly, because Python's garbage collector cannot
    free such a circle.

    :param hooks: a weak reference to the hooks of the unit, or a function that returns
        `None`, for tensors that need no gather
    :param use: the forward pass
    :param below: the pair that was in use before
    """

    hooks: Callable[[], Hooks | None]
    use: Use
    below: SavedTensorHooks | None

    def pack(self, tensor: Tensor) -> Any:
        """Keep a tensor, and the number of writes to it.

        An output must not be kept together with the node that made it, because the two
        would then keep each other in memory. `detach` gives the same values without the
        node.

        :returns: the tensor without its node, and its version
        """
        kept = tensor.detach() if tensor.requires_grad else tensor
        return kept, 0 if tensor.is_inference() else count_of_writes(tensor)

    def unpack(self, saved: Any) -> Tensor:
        """Return the tensor, after its unit has been gathered.

        Autograd itself raises an error if a saved tensor was changed in place. Where
        hooks are set it leaves this check to the hooks.

        :raises RuntimeError: if the tensor was changed in place since it was saved
        """
        hooks = self.hooks()
        if hooks is not None and hooks.backward_use is None:
            self.open(hooks)
        kept, before = saved
        now = 0 if kept.is_inference() else count_of_writes(kept)
        if now != before:
            raise RuntimeError(
                f"a tensor of shape {tuple(kept.shape)} that the backward pass needs was "
                f"modified by an inplace operation: it was saved at version {before} "
                f"and is at version {now}; change a clone of it instead"
            )
        return kept if graph_task() != -1 else self.checked(kept)

    def open(self, hooks: Hooks) -> None:
        """Make the unit whole, if this is a backward pass that reads it.

        There is nothing to do while one of the unit's forward passes is under way, or
        while another use is in its backward pass, because the unit is whole then.
        """
        if hooks.backward_use is None and in_backward() and not hooks.uses.under_way():
            hooks.before_backward(self.use, number_now())

    # sidelit: depth A view of freed weights, read outside of a backward pass.

    def checked(self, value: Tensor) -> Tensor:
        """The tensor, if its memory still exists.

        Outside of a backward pass a program may read an attribute of a node, such as
        `grad_fn._saved_self`. A unit that was gathered for that would never be freed,
        and the other ranks might not gather it.

        :raises RuntimeError: if the tensor is a view of weights that are freed
        """
        hooks = self.hooks()
        if hooks is not None and not in_backward() and is_freed(value):
            raise RuntimeError(
                f"{hooks.unit.name}: a view of its weights is read after its forward pass, "
                "when they are freed; keep a clone of it"
            )
        return value


def number_now() -> int:
    """The number of the node that a backward pass is running."""
    node = current_node()
    return YOUNGEST if node is None else number_of(node)


class Here(threading.local):
    """The pairs that this thread has set and not yet taken away, the last one at the end."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []


here = Here()


def set_pair(hooks: Hooks, use: Use) -> Pair | None:
    """Set a pair of hooks for a forward pass.

    A recomputation inside a backward pass may run under the pair of a checkpoint
    that collects its tensors. The graph of this recomputation is dropped at once, so
    nothing can read its tensors later, and no pair is set.

    :returns: the pair, to be taken away at the end; `None` if none was set
    """
    # PyTorch allows no such hooks inside `torch.func.grad`.
    if saving_forbidden() is not None:
        return None
    below = top_saving(True)
    outer = None if below is None else outermost(below)
    if outer is None:
        pair = Pair(weakref.ref(hooks), use, below)
    elif in_backward():
        return None
    else:
        pair = Handed(weakref.ref(hooks), use, below, outer)
    push_saving(pair.pack, pair.unpack)
    here.pairs.append(pair)
    return pair


def take_away(pair: Pair) -> None:
    """Take a pair of hooks away."""
    pack, _ = top_saving(True) or (None, None)
    on_top = getattr(pack, "__self__", None) is pair
    if here.pairs and here.pairs[-1] is pair and on_top:
        here.pairs.pop()
        pop_saving()
        pair.below = None
    elif pair in here.pairs:
        repair(lambda one: one is pair)


# sidelit: depth Pairs that a program or a checkpoint has set around the model.


@dataclass(eq=False)
class Handed(Pair):
    """A pair that hands each tensor on to the pair that was in force before."""

    outer: SavedTensorHooks

    def pack(self, tensor: Tensor) -> Any:
        """Let the outer pair keep the tensor."""
        return self.outer[0](tensor)

    def unpack(self, saved: Any) -> Tensor:
        """Let the outer pair return the tensor, after the unit has been gathered.

        The outer pair may recompute the tensor from the modules, so the unit must be
        whole before it is called.
        """
        hooks = self.hooks()
        if hooks is not None:
            self.open(hooks)
        return self.checked(self.outer[1](saved))


def outermost(hooks: SavedTensorHooks | None) -> SavedTensorHooks | None:
    """The outer pair: the last one that was set and does not belong to this chapter.

    Tensors that an inner unit saves skip the pairs of the units around it.

    :returns: the outer pair, or `None` if there is none
    """
    owner = None if hooks is None else getattr(hooks[0], "__self__", None)
    if isinstance(owner, Handed):
        return owner.outer
    return None if isinstance(owner, Pair) else hooks


# sidelit: core


# sidelit: depth Interrupted forward passes, after which a block takes the wrong pair away.


def take_interrupted_away() -> None:
    """Take away the pairs of forward passes that were interrupted.

    After an exception in a forward pass PyTorch still calls the hook at its end. After
    an interrupt from the keyboard it calls none.
    """
    if here.pairs:
        repair(interrupted)


def interrupted(pair: Pair) -> bool:
    """Whether the forward pass of a pair is over."""
    hooks = pair.hooks()
    return hooks is None or not hooks.uses.under_way(pair.use)


def repair(stale: Callable[[Pair], bool]) -> None:
    """Take pairs out of the stack, wherever they are.

    Suppose the program has a block such as `with save_on_cpu()` around the model, and
    an interrupt ends both. The block takes the top of the stack away, which is a pair
    of this chapter, and leaves its own pair behind. So for each pair of this chapter
    that is missing, the pair below the first of them is removed instead.

    :param stale: whether a pair is to be taken away
    """
    gone = [pair for pair in here.pairs if stale(pair)]
    here.pairs = [pair for pair in here.pairs if pair not in gone]
    if not gone:
        return
    stack: list[SavedTensorHooks] = []
    while (top := top_saving(True)) is not None:
        stack.insert(0, top)
        pop_saving()
    owners = [getattr(pack, "__self__", None) for pack, _ in stack]
    missing = [pair for pair in gone if pair not in owners]
    kept = [
        hooks for hooks, owner in zip(stack, owners, strict=True) if owner not in gone
    ]
    if missing:
        below = gone[0].below
        place = max((i for i, one in enumerate(kept) if one == below), default=-1)
        del kept[max(0, place + 1 - len(missing)) : place + 1]
    for hooks in kept:
        push_saving(*hooks)


# sidelit: core


# ## Views that outlive a unit
#
# > A module that keeps a view of its weights is refused, because the memory under the view is freed.
#
# `self.weight.t()` has no memory of its own. It is a *view*: another shape over the
# memory of the weight. In [stage 3](unit.py#module/stage-3) that memory is freed when the forward pass
# of the unit ends. Tensors that autograd has saved are safe, because [every read of them
# gathers the unit](demand.py), and so is [the weight itself](whole_parameter.py#Freed). A
# computation that begins later with a view is not safe:
#
# ```python
# class Output(nn.Module):
#     def forward(self, x):
#         self.turned = self.weight.t()   # read by the loss, after the unit is freed
#         return x @ self.turned
# ```
#
# PyTorch keeps the view alive, but does not know that its memory is gone. Some operations
# on the view then raise an error that names no cause, and others end the process. So when
# a unit is freed, [a check](#refuse_views) looks for such views in the attributes of
# the unit's modules, in the arguments, and in the result. [A view that is part of the
# result](hooks.py#Hooks.result), even inside a container or a dataclass, leaves the
# module as a copy and needs no search.
#
# A view is not found if only a closure, a global list or another object holds it.


def refuse_views(
    unit: Unit, module: nn.Module, units: Set[nn.Module], exchanged: object
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
    if not unit.splits.parameters:
        return []
    if not all(flat.full.untyped_storage().resizable() for flat in unit.flats):
        refuse_arrays(unit)
    if not any(is_freed(flat.full) for flat in unit.flats):
        return []
    whole = {id(parameter) for flat in unit.flats for parameter in flat.whole}
    values: list[Any] = [exchanged]
    registered: list[Any] = []
    inside = modules_inside(module, without=units)
    for part, (parameters, buffers) in zip(inside, own_tables(inside), strict=True):
        own = vars(part)
        values += [own[name] for name in own.keys() - _USUAL]
        values += buffers.values()
        registered += parameters.values()
    kept = tensors_in(values)
    if any(map(is_freed, kept)) or not whole.isdisjoint(map(id, registered)):
        raise RuntimeError(
            f"{unit.name} keeps a view of its weights {place(module, units, whole)}, but "
            "their memory is given back after its forward pass; keep a clone of it"
        )
    return kept


def refuse_arrays(unit: Unit) -> NoReturn:
    """Refuse an array of another library over the memory of a unit.

    PyTorch does not give memory back that it has lent, as `weight.numpy()` does.

    :raises RuntimeError: naming the unit and what to do
    """
    raise RuntimeError(
        f"{unit.name} has lent the memory of its weights to another library, as "
        "weight.numpy() does, but that memory is given back after the forward pass; "
        "convert a clone of the weight"
    )


# The attributes that every module has, and those that this library adds.
_USUAL = {*vars(nn.Module()), "__reduce_ex__", "_shardbook_scheduler", REGISTRY_KEY}

# sidelit: depth The place of a view, as the message names it.


def place(module: nn.Module, units: Set[nn.Module], whole: Set[int]) -> str:
    """The place where a view is kept, as words of a message."""
    for part in modules_inside(module, without=units):
        everything = {**vars(part), **own_buffers(part), **own_parameters(part)}
        for name in sorted(everything.keys() - _USUAL):
            value = everything[name]
            if id(value) in whole or any(map(is_freed, tensors_in(value))):
                return f"in the attribute {name!r} of a {type(part).__name__}"
    return "in its arguments or in an object that it returns"
