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
`forward` returned, so no hook of a result has run before. In [stage 3](zero3.py) the
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
row of ones. So [a gradient that is stored](hooks.py#Hooks.arrive) announces its unit,
too.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from torch import Tensor

from shardbook.foundations.hook_context import in_backward, is_freed
from shardbook.foundations.nesting import Nesting
from shardbook.foundations.torch_private import (
    current_node,
    number_of,
    pop_saving,
    push_saving,
    saving_forbidden,
    top_saving,
)
from shardbook.foundations.versions import writes_to

__all__ = [
    "YOUNGEST",
    "Opens",
    "Pair",
    "number_now",
    "set_pair",
    "take_away",
    "take_interrupted_away",
]

# A number above that of every node, for a moment that belongs to no node.
YOUNGEST = 2**64

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


class Opens(Protocol):
    """The interface of [the hooks of a unit](hooks.py#Hooks) that this chapter uses."""

    unit: Any
    uses: Nesting[Any]
    in_backward: Any

    def reach(self, use: Any, number: int) -> None:
        """Begin the backward pass of a use."""


class Pair:
    """The pair of hooks that autograd uses during one forward pass of a unit.

    The graph refers to the pair, and the module may refer to the graph. So the pair
    refers to the unit's hooks only weakly, because Python's garbage collector cannot
    free such a circle.

    :param driver: the hooks of the unit
    :param use: the forward pass
    :param below: the pair that was in use before
    """

    def __init__(self, driver: Opens, use: Any, below: Hooks | None) -> None:
        self.driver = weakref.ref(driver)
        self.use = use
        self.below = below

    def pack(self, tensor: Tensor) -> Any:
        """Keep a tensor, and the number of writes to it.

        An output must not be kept together with the node that made it, because the two
        would then keep each other in memory. `detach` gives the same values without the
        node.

        :returns: the tensor without its node, and its version
        """
        kept = tensor.detach() if tensor.requires_grad else tensor
        return kept, writes_to(tensor)

    def unpack(self, saved: Any) -> Tensor:
        """Return the tensor, after its unit has been gathered.

        Autograd itself raises an error if a saved tensor was changed in place. Where
        hooks are set it leaves this check to the hooks.

        :raises RuntimeError: if the tensor was changed in place since it was saved
        """
        self.open()
        kept, before = saved
        if (now := writes_to(kept)) != before:
            raise RuntimeError(
                f"a tensor of shape {tuple(kept.shape)} that the backward pass needs was "
                f"modified by an inplace operation: it was saved at version {before} "
                f"and is at version {now}; change a clone of it instead"
            )
        return self.checked(kept)

    def open(self) -> None:
        """Make the unit whole, if this is a backward pass that reads it.

        There is nothing to do while one of the unit's forward passes is under way, or
        while another use is in its backward pass, because the unit is whole then.
        """
        driver = self.driver()
        if driver is None or driver.in_backward is not None:
            return
        if driver.uses.under_way():
            return
        if in_backward():
            driver.reach(self.use, number_now())

    # sidelit: depth A view of freed weights, read outside of a backward pass.

    def checked(self, value: Tensor) -> Tensor:
        """The tensor, if its memory still exists.

        Outside of a backward pass a program may read an attribute of a node, such as
        `grad_fn._saved_self`. A unit that was gathered for that would never be freed,
        and the other ranks might not gather it.

        :raises RuntimeError: if the tensor is a view of weights that are freed
        """
        driver = self.driver()
        if driver is not None and not in_backward() and is_freed(value):
            raise RuntimeError(
                f"{driver.unit.name}: a view of its weights is read after its forward pass, "
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


def set_pair(driver: Opens, use: Any) -> Pair | None:
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
    outer = outermost(below)
    if outer is None:
        pair = Pair(driver, use, below)
    elif in_backward():
        return None
    else:
        pair = Handed(driver, use, below, outer)
    push_saving(pair.pack, pair.unpack)
    here.pairs.append(pair)
    return pair


def take_away(pair: Pair | None) -> None:
    """Take a pair of hooks away."""
    if pair is None:
        return
    if here.pairs and here.pairs[-1] is pair and owner_of_top() is pair:
        here.pairs.pop()
        pop_saving()
        pair.below = None
    elif pair in here.pairs:
        repair(lambda one: one is pair)


# sidelit: depth Pairs that a program or a checkpoint has set around the model.


class Handed(Pair):
    """A pair that hands each tensor on to the pair that was in force before."""

    def __init__(
        self, driver: Opens, use: Any, below: Hooks | None, outer: Hooks
    ) -> None:
        super().__init__(driver, use, below)
        self.outer_pack, self.outer_unpack = outer

    def pack(self, tensor: Tensor) -> Any:
        """Let the outer pair keep the tensor."""
        return self.outer_pack(tensor)

    def unpack(self, saved: Any) -> Tensor:
        """Let the outer pair return the tensor, after the unit has been gathered.

        The outer pair may recompute the tensor from the modules, so the unit must be
        whole before it is called.
        """
        self.open()
        return self.checked(self.outer_unpack(saved))


def outermost(hooks: Hooks | None) -> Hooks | None:
    """The outer pair: the last one that was set and does not belong to this chapter.

    Tensors that an inner unit saves skip the pairs of the units around it.

    :returns: the outer pair, or `None` if there is none
    """
    owner = None if hooks is None else getattr(hooks[0], "__self__", None)
    if isinstance(owner, Handed):
        return owner.outer_pack, owner.outer_unpack
    return None if isinstance(owner, Pair) else hooks


# sidelit: core


def owner_of_top() -> Any:
    """The object to which the current pair belongs, if it belongs to one."""
    top = top_saving(True)
    return None if top is None else getattr(top[0], "__self__", None)


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
    driver = pair.driver()
    return driver is None or not driver.uses.under_way(pair.use)


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
    stack: list[Hooks] = []
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
