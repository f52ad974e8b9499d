r"""# Gradients that wait

> While a part of a gradient waits for its exchange, a program may drop the gradient, but not change it.

Between two [micro-batches](accumulate.py) under `no_sync` the gradient of a parameter
is in two places. The part that has been exchanged is in `parameter.grad`. The part that
waits is in [`grad_full`](gradients.py), whole and not averaged, where the program does
not see it. An unsharded program has the sum of both in `parameter.grad`, and so has
`DistributedDataParallel`. What a program does with the gradient in between would
therefore reach only one of the two parts:

| in between | unsharded | sharded |
|---|---|---|
| `zero_grad()`, `parameter.grad = None` | drops both parts | the same |
| `parameter.grad` is read | shows the sum | shows the exchanged part, or zero |
| it is halved, clipped, or replaced | changes the sum | is refused |

The last case cannot be mended. Each rank has all of its own gradient, but the program
on it sees only a slice, and a limit to each element of the sum cannot be applied before
the ranks have added theirs. So the gradient is watched while a part waits.

PyTorch counts the writes to each tensor. The count does not tell whether a write was
that of `zero_grad`, and the values do not tell it either: the gradient of a new LoRA
adapter is exactly zero, and halved it is zero again. So the watched gradient has a
class of its own, whose `__torch_function__` sees each operation, and notes those that
write zeros.

A rank may change a gradient that the other ranks have no slice of, or only one rank may
clip. So what a rank has found travels in [the comparison of used
parameters](unused.py), which the ranks make anyway, and every rank raises the same
error. Only after micro-batches in `no_sync` does the host wait for that comparison.
"""

# sidelit: hide
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from shardbook.foundations.layout import shares_storage
from shardbook.foundations.torch_private import (
    as_plain,
    tree_leaves,
    unscale_,
    zero_all_,
)
from shardbook.foundations.versions import writes_to

__all__ = ["CHANGED", "Found", "Watch", "refuse_changed"]

# The number that says of a parameter that its gradient was changed. It is larger than
# [the others](unused.py), so that the largest of all ranks' numbers is this one.
CHANGED = 3
# sidelit: show


class Found(Enum):
    """What a program has done with a watched gradient."""

    KEPT = "nothing"
    DROPPED = "it was removed or set to zero"
    CHANGED = "anything else"


class Watch:
    """Watch the gradient of a parameter, from now until [`end`](#Watch.end).

    `zero_grad` passes a parameter without a gradient by. So such a parameter shows a
    zero that takes no memory.

    :param parameter: one of the model's own
    """

    def __init__(self, parameter: Tensor) -> None:
        with as_plain():
            self.stands_in = parameter.grad is None
            if self.stands_in:
                parameter.grad = parameter.new_zeros(()).expand_as(parameter)
            assert parameter.grad is not None
            self.shown = parameter.grad
            self.notes = Notes()
            self.version = writes_to(self.shown)
            # A gradient of any other class may need that class, as fake tensors do.
            self.sees = type(self.shown) is Tensor
            if self.sees:
                self.shown.__class__ = Waiting
                vars(self.shown)["notes"] = self.notes

    def end(self, parameter: Tensor) -> Found:
        """Stop watching. The gradient gets its own class again, and a zero that stood in
        for one is removed.
        """
        with as_plain():
            if self.sees:
                self.shown.__class__ = Tensor
                del vars(self.shown)["notes"]
            now, version = parameter.grad, writes_to(self.shown)
            if self.stands_in and now is self.shown:
                parameter.grad = None
        if now is None:
            return Found.DROPPED
        if now is not self.shown or self.notes.changed:
            return Found.CHANGED
        if version == self.version:
            return Found.KEPT
        zeroed = version == self.notes.zeroed or not self.sees
        return Found.DROPPED if zeroed else Found.CHANGED


class Notes:
    """What the operations on a watched gradient have done.

    :ivar zeroed: the version that the last write of zeros has led to
    :ivar changed: whether there was a change that PyTorch does not count
    """

    zeroed, changed = -1, False


_ZEROES = ("zero_", zero_all_.__name__)
# Writes that PyTorch does not count: here that of its gradient scaler.
_UNCOUNTED = (unscale_.__name__,)


class Waiting(Tensor):
    """A gradient of which a part waits. It computes like any other tensor, and what is
    computed from it is a plain one.
    """

    notes: Notes

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """PyTorch calls this in the place of each operation on a watched gradient."""
        kwargs = kwargs or {}
        watched = [e for e in tree_leaves((args, kwargs)) if isinstance(e, Waiting)]
        name, of = func.__name__, getattr(func, "__self__", None)
        with as_plain():
            if name == "detach" or (name == "__get__" and of is Tensor.data):
                return same_memory(args[0])
            result = run(func, watched, args, kwargs)
            for one in watched:
                if name in _ZEROES:
                    one.notes.zeroed = writes_to(one)
                elif name in _UNCOUNTED or (name == "__set__" and of is Tensor.data):
                    one.notes.changed = True
        return result

    # sidelit: depth Copies of a watched gradient, also those that `torch.save` writes.

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy, or what `torch.save` writes, is a plain tensor: nobody watches it."""
        with as_plain():
            return self.as_subclass(Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        with as_plain():
            copied: Tensor = memo.setdefault(id(self), self.as_subclass(Tensor).clone())
        return copied


def refuse_changed(names: Iterable[str], numbers: Iterable[int]) -> None:
    """Refuse the gradients that any rank has changed while a part of them waited.

    :param names: of the parameters
    :param numbers: the largest of all ranks' numbers, one for each parameter
    :raises RuntimeError: on every rank the same, naming the first of them
    """
    for name, number in zip(names, numbers, strict=True):
        if number == CHANGED:
            raise RuntimeError(
                f"the gradient of {name} was changed while a part of it waits in "
                "no_sync(), which the change does not reach; change it after a backward "
                "pass outside of no_sync(), or call zero_grad()"
            )


# sidelit: depth Writes through `.data`, and writes to a zero that takes no memory.


def same_memory(shown: Waiting) -> Waiting:
    """`gradient.data` and `gradient.detach()`, which older programs write to.

    PyTorch does not count a write to `.data` as one to the gradient. It counts one to
    the result of `detach`, so that stands for both.
    """
    other = shown.detach().as_subclass(Waiting)
    other.notes = shown.notes
    return other


def run(
    func: Callable[..., Any],
    watched: Sequence[Waiting],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run an operation. PyTorch refuses to write to a zero that takes no memory, and to
    a view of it, but only where the slice has several elements, and so on some ranks
    only. So before that the zero gets memory: what is written is going to be refused on
    all ranks.
    """
    spread = [one for one in watched if 0 in one.stride()]
    try:
        result = func(*args, **kwargs)
        if not any(shares_any(result, one) for one in spread):
            return result
    except RuntimeError:
        if not spread:
            raise
    for one in spread:
        one.data = one.clone(memory_format=torch.contiguous_format)
    return func(*args, **kwargs)


def shares_any(result: Any, shown: Tensor) -> bool:
    """Whether an operation has returned a view."""
    others = (e for e in tree_leaves(result) if isinstance(e, Tensor))
    return any(e is not shown and shares_storage(e, shown) for e in others)
