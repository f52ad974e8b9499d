r"""# Gathering on demand

> A unit is gathered when a backward pass reads what its forward pass saved, even if no result announced it.

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

The backward pass of `square` reads the weight. Nothing that `forward` returned leads
there, so no hook of a result has run before. In [stage 3](zero3.py) the unit may be
freed at that moment. Autograd would read memory that belongs to somebody else, and the
gradient would be wrong, in each run another.

So autograd itself has to announce the read. It keeps tensors for the backward pass, and
PyTorch lets a program take part: a *pair of hooks* is called for each of them. `pack`
gets the tensor when it is saved, and autograd keeps what `pack` returns. `unpack` gets
that back when the backward pass needs the tensor. While a unit's forward pass is under
way, such a pair of this library is in force. `pack` keeps the tensor as it is. `unpack`
gathers the unit if it is not whole, and then hands out the tensor.

Only one pair is in force at a time, the one that was set last. Others may be set around
the model: [a checkpoint](saved_tensors.py), or
[checkpoints on the host](residual.py). The pair of this chapter hands each tensor on to
the pair that was in force before, and so changes nothing for it. Inside of the unit a
program may set another pair; what is saved under that pair is announced by the unit's
results alone.

Some gradients need no saved tensor: that of `weight.sum()` is a row of ones. So [a
gradient that arrives](hooks.py#Hooks.arrive) announces its unit, too.
"""

# sidelit: hide
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
    "set_pair",
    "take_away",
    "take_interrupted_away",
]
# sidelit: show

# The number of a node that is younger than all others.
YOUNGEST = 2**64

Hooks = tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]


class Opens(Protocol):
    """Whoever drives a unit: [the layer's hooks](hooks.py#Hooks)."""

    unit: Any
    uses: Nesting[Any]
    in_backward: Any

    def reach(self, use: Any, number: int) -> None:
        """The backward pass of a use has begun."""


class Pair:
    """The pair of hooks in force during one forward pass of a unit.

    The graph refers to the pair, and the module may refer to the graph. So the pair
    refers to the unit's hooks weakly: Python's collector does not see such a circle.

    :param driver: whoever drives the unit
    :param use: the forward pass
    :param below: the pair that was in force before
    """

    def __init__(self, driver: Opens, use: Any, below: Hooks | None) -> None:
        self.driver = weakref.ref(driver)
        self.use = use
        self.below = below

    def pack(self, tensor: Tensor) -> Any:
        """Keep a tensor, and how often it was written to.

        If autograd kept an output together with the node that made it, the two would
        keep each other. `detach` gives the same values without the node.
        """
        kept = tensor.detach() if tensor.requires_grad else tensor
        return kept, writes_to(tensor)

    def unpack(self, saved: Any) -> Tensor:
        """Give the tensor back, with its unit whole.

        Autograd compares the versions itself, but where hooks are set it leaves that to
        them.

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
        """Let the unit be whole, if this is a backward pass.

        While one of its forward passes is under way it is whole anyway. While another
        use of it is in its backward pass, too.
        """
        driver = self.driver()
        if driver is None or driver.in_backward is not None:
            return
        if driver.uses.under_way():
            return
        if in_backward():
            node = current_node()
            number = YOUNGEST if node is None else number_of(node)
            driver.reach(self.use, number)

    # sidelit: depth A view of freed weights, read outside of a backward pass.

    def checked(self, value: Tensor) -> Tensor:
        """The tensor, if it has memory.

        Outside of a backward pass a program may read an attribute of a node, such as
        `grad_fn._saved_self`. Nobody would free a unit that was gathered for that, and
        the other ranks might not gather it.

        :raises RuntimeError: if the tensor is a view of weights that are freed
        """
        driver = self.driver()
        if driver is not None and not in_backward() and is_freed(value):
            raise RuntimeError(
                f"{driver.unit.name}: a view of its weights is read after its forward pass, "
                "when they are freed; keep a clone of it"
            )
        return value


class Here(threading.local):
    """The pairs that this thread has set and not taken away, the last one last."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []


here = Here()


def set_pair(driver: Opens, use: Any) -> Pair | None:
    """Set a pair of hooks for a forward pass.

    A recomputation inside a backward pass may run under the pair that collects its
    tensors. The graph that it records is dropped at once, so nothing can read its
    tensors later, and no pair is set.

    :returns: the pair, to be taken away at the end; `None` if none was set
    """
    # Inside of `torch.func.grad` PyTorch allows no such hooks.
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
        """What the other pair keeps."""
        return self.outer_pack(tensor)

    def unpack(self, saved: Any) -> Tensor:
        """What the other pair gives. It may compute the tensor again from the modules,
        so the unit is whole before it is called.
        """
        self.open()
        return self.checked(self.outer_unpack(saved))


def outermost(hooks: Hooks | None) -> Hooks | None:
    """The pair that tensors are handed on to: the topmost that is not of this chapter.

    What an inner unit saves need not pass through the pair of an outer one.
    """
    owner = None if hooks is None else getattr(hooks[0], "__self__", None)
    if isinstance(owner, Handed):
        return owner.outer_pack, owner.outer_unpack
    return None if isinstance(owner, Pair) else hooks


# sidelit: core


def owner_of_top() -> Any:
    """Whose pair is in force."""
    top = top_saving(True)
    return None if top is None else getattr(top[0], "__self__", None)


# sidelit: depth Interrupted forward passes, after which a block takes the wrong pair away.


def take_interrupted_away() -> None:
    """Take away the pairs of forward passes that were interrupted.

    An exception ends a forward pass like a result does. An interrupt from the keyboard
    runs no hooks.
    """
    if here.pairs:
        repair(interrupted)


def interrupted(pair: Pair) -> bool:
    """Whether the forward pass of a pair is over."""
    driver = pair.driver()
    return driver is None or not driver.uses.under_way(pair.use)


def repair(stale: Callable[[Pair], bool]) -> None:
    """Take some pairs from anywhere in the stack.

    A block such as `with save_on_cpu()` around the model ends with the interrupt. It
    takes the top of the stack away, which is then one of ours, and leaves its own. So
    for each pair that is not there any more the one below the first of them goes.
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
