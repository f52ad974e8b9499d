r"""# Gradients that wait for their exchange

> While a part of a gradient waits for its exchange, a program may drop the gradient, but not change it.

Between two [micro-batches](accumulate.py) under `no_sync` the gradient of a parameter
has two parts. One part has been exchanged, and is in `parameter.grad`. The other part
waits in [`grad_full`](flat.py#Flat/the-gradients-of-a-flat). It is whole and not
averaged, and the program does not see it. An unsharded program has the sum of both in
`parameter.grad`, as has one with `DistributedDataParallel`. So a change of the gradient
in between would reach only one of the two parts:

| in between | unsharded | sharded |
|---|---|---|
| `zero_grad()`, `parameter.grad = None` | drops both parts | the same |
| `parameter.grad` is read | shows the sum | shows the exchanged part, or zero |
| it is halved, clipped, or replaced | changes the sum | is refused |

The last case cannot be supported. Each rank has all of its own gradient, but its
program sees only a slice. And a limit to each element of the sum cannot be applied
before the ranks have added theirs. So the gradient is watched while a part of it waits.

The watch must tell a write by `zero_grad` from other writes. PyTorch's count of writes
does not tell them apart, and neither do the values: the gradient of a new LoRA adapter
is exactly zero, and half of it is zero, too. So the watched gradient has a class of its
own. Its `__torch_function__` receives each operation, and records those that write
zeros.

A rank may change a gradient of which the other ranks have no slice, or only one rank
may clip. So each rank sends its finding in [the comparison of used
parameters](unused.py), which the ranks make in any case, and every rank raises the same
error. The host waits for that comparison only after micro-batches in `no_sync`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Any

import torch
from torch import Tensor

from shardbook.foundations.torch_private import (
    as_plain,
    shares_storage,
    tree_leaves,
    unscale_,
    writes_to,
    zero_all_,
)

__all__ = ["CHANGED", "Found", "Watch", "refuse_changed"]

# sidelit: hide
# The number that a rank sends for a parameter whose gradient was changed. It is larger
# than [the others](unused.py), so it is the largest of all ranks' numbers.
CHANGED = 3
# sidelit: show


class Found(Enum):
    """The change that a program has made to a watched gradient."""

    KEPT = "nothing"
    DROPPED = "it was removed or set to zero"
    CHANGED = "anything else"


class Watch:
    """A watch over the gradient of a parameter, from now until [`end`](#Watch.end).

    `zero_grad` skips a parameter without a gradient. So such a parameter gets a zero as
    its gradient, which takes no memory.

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
            # A gradient of any other class keeps it, because its data may need that
            # class, as those of fake tensors do.
            self.sees = type(self.shown) is Tensor
            if self.sees:
                self.shown.__class__ = Waiting
                vars(self.shown)["notes"] = self.notes

    def end(self, parameter: Tensor) -> Found:
        """Stop watching, and return what was found.

        The gradient gets its own class again, and a zero that was put there is removed.
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
    """A record of the operations on a watched gradient.

    :ivar zeroed: the version after the last write of zeros
    :ivar changed: whether there was a change that PyTorch does not count
    """

    zeroed: int | None = None
    changed = False


_ZEROES = ("zero_", zero_all_.__name__)
# PyTorch does not count the writes of its gradient scaler.
_UNCOUNTED = (unscale_.__name__,)
_DATA: Any = Tensor.data


class Waiting(Tensor):
    """A gradient of which a part waits.

    It computes like any other tensor, and the result of a computation is a plain
    tensor.
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
        """Run an operation, and record its writes. PyTorch calls this in place of the operation."""
        kwargs = kwargs or {}
        watched = [e for e in tree_leaves((args, kwargs)) if isinstance(e, Waiting)]
        with as_plain():
            if func in (Tensor.detach, torch.detach, _DATA.__get__):
                return same_memory(*watched)
            result = run(func, watched, args, kwargs)
            for one in watched:
                if func.__name__ in _ZEROES:
                    one.notes.zeroed = writes_to(one)
                elif func.__name__ in _UNCOUNTED or func == _DATA.__set__:
                    one.notes.changed = True
        return result

    # sidelit: depth Copies of a watched gradient, also those that `torch.save` writes.

    def __reduce_ex__(self, protocol: Any) -> Any:
        """A copy, or a tensor that `torch.save` writes, is a plain tensor without a watch."""
        with as_plain():
            return self.as_subclass(Tensor).__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        with as_plain():
            copied: Tensor = memo.setdefault(id(self), self.as_subclass(Tensor).clone())
        return copied


def refuse_changed(names: Iterable[str], numbers: Iterable[int]) -> None:
    """Refuse the gradients that any rank has changed while a part of them waited.

    :param names: the names of the parameters
    :param numbers: the largest of all ranks' numbers, one for each parameter
    :raises RuntimeError: the same on every rank, naming the first of them
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
    """The result of `gradient.data` and of `gradient.detach()`, to which older programs
    write.

    PyTorch does not count a write to `.data` as a write to the gradient. It does count
    one to the result of `detach`, so that result is returned for both.
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
    """Run an operation that may write to a zero without memory.

    PyTorch refuses to write to such a zero, and to a view of it, but only if the slice
    has several elements, so only on some ranks. Therefore the zero first gets memory.
    The write itself is refused later, on all ranks.
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
    """Whether an operation has returned a view of the gradient."""
    others = (e for e in tree_leaves(result) if isinstance(e, Tensor))
    return any(e is not shown and shares_storage(e, shown) for e in others)
