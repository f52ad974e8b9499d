r"""# The recomputation

> The second run fills the placeholders of the first in order, and ends with the last one.

[A checkpoint](saved_tensors.py) has saved no tensors, only how many there were and in
which order. So its function runs again, as the forward pass ran, and the tensor that
autograd wants to save as the $i$-th goes to the $i$-th placeholder. This works as long
as the function [does the same](determinism.py) in both runs.

As soon as the last placeholder is full, the rest of the run is of no use, so it is cut
off. This *early stop* saves whole products. PyTorch saves what an operation reads
before it computes. So if the last layer is a matrix product, its input is saved, the
run ends, and the product is not repeated. If a program drops one of two results before
the backward pass, autograd frees the placeholders that only this result needs. What
comes after the last placeholder that is left does not run again either. What comes
before it does, needed or not. A result that the program still holds keeps all of its
placeholders, even if the loss does not use it.

:notation $i$: `number`, the number of a saved tensor
"""

# sidelit: hide
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from shardbook.checkpointing.autocast_state import (
    AmbientAutocast,
    capture_autocast,
    device_types,
)
from shardbook.checkpointing.determinism import CheckpointError, Record
from shardbook.foundations.rng import RNGState, capture
from shardbook.foundations.versions import writes_to

__all__ = ["Collector", "Enough", "Placeholder", "Settings"]
# sidelit: show


class Placeholder:
    """What autograd keeps in place of a tensor: nothing, until the tensor is needed."""

    __slots__ = ("__weakref__", "value", "version")

    def __init__(self) -> None:
        self.value: Tensor | None = None
        # Of the tensor, when it was saved.
        self.version = 0

    def fill(self, tensor: Tensor) -> None:
        """Hold a tensor of the recomputation, without its history.

        The history would keep the whole graph of that run.
        """
        self.value = tensor.detach() if tensor.requires_grad else tensor
        self.version = writes_to(tensor)

    def take(self) -> Tensor:
        """Give the tensor away, so that its memory is free as soon as its node has run.

        A second backward pass through the same graph computes it again.

        :raises CheckpointError: if an operation has changed it in place since it was
            saved. Autograd looks after this itself, but not where it has hooks, and
            then the gradient would be that of the changed values.
        """
        value, self.value = self.value, None
        assert value is not None
        if writes_to(value) != self.version:
            refuse_altered(value.shape)
        return value


class Enough(BaseException):
    """Ends a recomputation.

    It is no `Exception`. A function that tries one way and takes another on
    `except Exception` would catch it, and go on with the other way.
    """


class Collector:
    """The hooks of a recomputation.

    :param placeholders: to be filled, in order; a reference that is dead belongs to a
        tensor that no gradient needs any more
    :param record: an empty one, to be [compared](determinism.py) with the forward
        pass's
    :param early_stop: whether to end the run when there is enough
    """

    def __init__(
        self,
        placeholders: list[weakref.ref[Placeholder]],
        record: Record,
        early_stop: bool,
    ) -> None:
        self.placeholders = placeholders
        self.early_stop = early_stop
        self.record = record
        alive = (i for i, ref in enumerate(placeholders) if ref() is not None)
        self.needed = 1 + max(alive, default=-1)
        self.stopped = False

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """A block in which autograd gives each tensor that it saves to a placeholder."""
        keep = saved_tensors_hooks(self.pack, lambda tensor: tensor)
        with keep, self.record.watching():
            yield

    def pack(self, tensor: Tensor) -> Tensor:
        """Autograd wants to save a tensor of the recomputation.

        It is given the tensor and no placeholder, because the function may run a
        backward pass of its own.
        """
        number = len(self.record.saved)
        known = number < len(self.placeholders)
        placeholder = self.placeholders[number]() if known else None
        self.record.note(None if placeholder is None else tensor)
        if placeholder is not None:
            placeholder.fill(tensor)
        if self.early_stop and number + 1 >= self.needed:
            self.stopped = True
            raise Enough
        return tensor.detach() if tensor.requires_grad else tensor

    def filled(self) -> list[Tensor]:
        """The tensors that the placeholders hold."""
        held = [ref() for ref in self.placeholders]
        return [one.value for one in held if one and one.value is not None]

    def until_enough(self, run: Callable[[], Any]) -> None:
        """Run until the end, or until there is enough.

        A function that catches even `BaseException` goes on, and the next tensor ends
        it. If it fails before that, there is still enough.
        """
        try:
            run()
        except Enough:
            pass
        except Exception:
            if not self.stopped:
                raise


@dataclass(frozen=True, slots=True)
class Settings:
    """What a function finds around it, other than its arguments.

    The backward pass need not have it: it runs with other random numbers, after the
    block that turned autocast on, and without a graph being recorded.

    :param device: where new tensors are made unless something else is said
    """

    random: RNGState
    autocast: AmbientAutocast
    device: torch.device

    @classmethod
    def now(cls, function: Any, args: Any, kwargs: Any, draw_again: bool) -> Settings:
        """The settings of this moment, for the generators and devices that are found
        among the arguments.

        :param draw_again: whether the random numbers belong to them
        """
        return cls(
            capture(function, *args, *kwargs.values()) if draw_again else RNGState(),
            capture_autocast(device_types(*args, *kwargs.values())),
            torch.get_default_device(),
        )

    @contextmanager
    def restored(self) -> Iterator[None]:
        """A block with these settings."""
        with torch.enable_grad(), self.random.restored(), self.autocast.restored():
            if self.device == torch.get_default_device():
                yield
            else:
                with self.device:
                    yield


# sidelit: depth A tensor that the function changes after autograd has saved it.


def refuse_altered(shape: torch.Size) -> NoReturn:
    """Refuse a tensor whose values are no longer those that autograd has saved.

    :raises CheckpointError: naming the shape
    """
    raise CheckpointError(
        f"a tensor of shape {tuple(shape)} was changed in place inside "
        "the checkpointed function after autograd had saved it; use an "
        "operation that gives a new tensor"
    )
