r"""# The recomputation

> The second run fills the placeholders of the first run in order, and ends as soon as all are full.

[A checkpoint](saved_tensors.py) keeps no saved tensors, but a list of placeholders in
their order. In the second run, the $i$-th tensor that autograd is about to save goes to
the $i$-th placeholder. This works as long as the function [does the
same](determinism.py) in both runs.

As soon as the last placeholder is full, the rest of the run is of no use, so the run
ends. This *early stop* saves whole matrix products. PyTorch saves the inputs of an
operation before it computes the result. So if the last layer is a matrix product, its
input is saved, the run ends, and the product is not repeated.

If a program drops one of two results before the backward pass, autograd frees the
placeholders that only this result needs. Operations after the last remaining
placeholder do not run again either. All operations before it do, whether they are
needed or not. A result that the program still holds keeps all of its placeholders, even
if the loss does not use it.

:notation $i$: `number`, the number of a saved tensor
"""

from __future__ import annotations

import sys
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
from shardbook.checkpointing.determinism import (
    CheckpointError,
    Record,
    is_filled_later,
)
from shardbook.foundations.rng import RNGState, capture
from shardbook.foundations.versions import writes_to

__all__ = ["Collector", "Enough", "Placeholder", "Settings"]


class Placeholder:
    """The object that autograd keeps in place of a saved tensor. It is empty until the
    recomputation.
    """

    __slots__ = ("__weakref__", "value", "version")

    def __init__(self) -> None:
        self.value: Tensor | None = None
        # The version of the tensor at the moment when it was saved.
        self.version = 0

    def fill(self, tensor: Tensor) -> None:
        """Hold a tensor of the recomputation, without its history, because the history
        would keep the whole graph of that run.
        """
        self.value = tensor.detach() if tensor.requires_grad else tensor
        self.version = writes_to(tensor)

    def take(self) -> Tensor:
        """Hand over the tensor and forget it, so that its memory is free as soon as its
        node has run.

        A second backward pass through the same graph recomputes the tensor.

        :raises CheckpointError: if an operation has changed the tensor in place after
            autograd saved it. Autograd checks this itself, but not for tensors that a
            hook has packed, and the gradient would be that of the changed values.
        """
        value, self.value = self.value, None
        assert value is not None
        if writes_to(value) != self.version:
            refuse_altered(value.shape)
        return value


class Enough(BaseException):
    """Raised to end a recomputation early.

    It is deliberately not an `Exception`. A function with `try` and `except Exception`
    would catch it, and take its other branch.
    """


class Collector:
    """The hooks of a recomputation.

    :param placeholders: the placeholders to fill, in order; a dead reference belongs to
        a tensor that no gradient needs any more
    :param record: an empty record, which will be [compared](determinism.py) with that
        of the forward pass
    :param early_stop: whether to end the run when all needed placeholders are full
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
        """A block in which each tensor that autograd saves goes to its placeholder."""
        keep = saved_tensors_hooks(self.pack, lambda tensor: tensor)
        with keep, self.record.watching():
            yield

    def pack(self, tensor: Tensor) -> Tensor:
        """Fill the next placeholder with a tensor that autograd is about to save.

        Autograd itself gets the plain tensor, because the function may run a backward
        pass of its own.
        """
        number = len(self.record.saved)
        known = number < len(self.placeholders)
        placeholder = self.placeholders[number]() if known else None
        self.record.note(None if placeholder is None else tensor)
        if placeholder is not None:
            placeholder.fill(tensor)
        enough = self.early_stop and number + 1 >= self.needed
        if enough and not is_filled_later(sys._getframe(1)):
            self.stopped = True
            raise Enough
        return tensor.detach() if tensor.requires_grad else tensor

    def filled(self) -> list[Tensor]:
        """The tensors that the placeholders hold now."""
        held = [ref() for ref in self.placeholders]
        return [one.value for one in held if one and one.value is not None]

    def until_enough(self, run: Callable[[], Any]) -> None:
        """Run the function to its end, or until all needed placeholders are full.

        A function that catches even `BaseException` goes on, and the next saved tensor
        ends it. If it fails before that, the placeholders are full all the same.
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
    """The settings around a function that its second run needs: random numbers,
    autocast and the default device.

    In the backward pass they may differ, since its random numbers are later ones and
    the block of autocast has ended. Nor does a backward pass record a graph unless it
    is asked to.

    :param device: the default device of new tensors
    """

    random: RNGState
    autocast: AmbientAutocast
    device: torch.device

    @classmethod
    def now(cls, function: Any, args: Any, kwargs: Any, draw_again: bool) -> Settings:
        """Capture the current settings, for the generators and devices that are found
        among the arguments.

        :param draw_again: whether the state of the generators is captured, too
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
