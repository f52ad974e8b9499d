r"""# A segment that can run twice

> Whatever a function is given must be there for its second run as it was for the first.

A segment is a part of a model that is computed in the forward pass and again in the
backward pass. It is any function of tensors: a module, a method, a few lines. This
chapter takes its arguments apart into tensors, which autograd looks after, and the
rest, and puts them together for the second run. It also brings back the state around
the first run: [the random numbers](rng.py), [autocast](ambient.py), and the device on
which tensors are made by default.

Two things would go wrong in silence, and are refused instead. A function that changes
its arguments would be given other ones the second time. And a tensor that leaves the
first run by another way than the return value has no gradient, because [the first run
works without autograd](reentrant.py).
"""

# sidelit: hide
from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from shardbook.ambient import AmbientAutocast, capture_autocast, device_types
from shardbook.machinery import tensors_in
from shardbook.rng import RNGState, capture

__all__ = ["Place", "Segment", "not_compiled", "take_apart"]
# sidelit: show


@dataclass(eq=False, slots=True)
class Segment:
    """A function, and what its second run needs besides the tensors.

    :param leaves: the arguments without their structure, with [a place](#Place) for
        each tensor
    :param spec: the structure of the arguments
    :param returned: the structure of what the first run returned
    """

    function: Callable[..., Any]
    leaves: list[Any]
    spec: TreeSpec
    rng: RNGState
    ambient: AmbientAutocast
    device: torch.device
    returned: TreeSpec | None = None

    @classmethod
    def of(
        cls,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        preserve_rng_state: bool,
    ) -> tuple[Segment, list[Tensor]]:
        """The segment in the present state, and the tensors among its arguments."""
        tensors, leaves, spec = take_apart((args, kwargs))
        rng = capture(function, args, kwargs) if preserve_rng_state else RNGState()
        ambient = capture_autocast(device_types(tensors))
        device = torch.get_default_device()
        return cls(function, leaves, spec, rng, ambient, device), tensors

    def first(
        self, tensors: Sequence[Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> list[Any]:
        """Run the function, and take apart what it returns.

        :raises RuntimeError: if the function changed its arguments
        :raises TypeError: if it returned tensors inside of an object that is no pytree
        """
        versions = [version(tensor) for tensor in tensors]
        output = self.function(*args, **kwargs)
        refuse_changes(tensors, versions)
        refuse_additions(tensors, (args, kwargs))
        values, self.returned = tree_flatten(output)
        refuse_hidden(values)
        return values

    def again(self, tensors: Sequence[Tensor]) -> list[Any]:
        """Run the function in the state of the first run, with autograd.

        The caller's lists and dictionaries are made anew. So what the function does to
        them does not reach the caller twice.

        :raises RuntimeError: if the function returns another structure than before
        """
        leaves = [
            tensors[leaf.index] if isinstance(leaf, Place) else leaf
            for leaf in self.leaves
        ]
        args, kwargs = tree_unflatten(leaves, self.spec)
        with ExitStack() as before:
            before.enter_context(self.rng.restored())
            before.enter_context(self.ambient.restored())
            before.enter_context(torch.enable_grad())
            # The block of a device makes every operation slower.
            if self.device != torch.get_default_device():
                before.enter_context(self.device)
            values, returned = tree_flatten(self.function(*args, **kwargs))
        if returned != self.returned:
            raise RuntimeError(
                "the checkpointed function returned another structure when it was "
                f"computed again: {returned} instead of {self.returned}; make it "
                "depend on its arguments alone"
            )
        return values


@dataclass(frozen=True, slots=True)
class Place:
    """Stands for the tensor with this number."""

    index: int


def take_apart(arguments: Any) -> tuple[list[Tensor], list[Any], TreeSpec]:
    """The different tensors among some arguments, all leaves with places instead of
    tensors, and the structure.

    A tensor that is passed twice must be one tensor in the second run, too. Functions
    ask for it: attention projects `query`, `key` and `value` at once if they are the
    same object, and rounds differently then.
    """
    leaves, spec = tree_flatten(arguments)
    tensors = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Tensor)}
    places = {key: Place(index) for index, key in enumerate(tensors)}
    return list(tensors.values()), [places.get(id(leaf), leaf) for leaf in leaves], spec


def refuse_changes(tensors: Sequence[Tensor], versions: Sequence[int]) -> None:
    """The second run would be given the changed values.

    Autograd does not notice, because it looks only from the end of the first run on.

    :raises RuntimeError: naming the shape of an argument that was changed in place
    """
    for tensor, before in zip(tensors, versions, strict=True):
        if version(tensor) != before:
            raise RuntimeError(
                "the checkpointed function changed an argument of shape "
                f"{tuple(tensor.shape)} in place, and would be given the changed one "
                "when it is computed again; let it change a clone"
            )


def version(tensor: Tensor) -> int:
    """How often a tensor was changed in place. Under `inference_mode` nobody counts, and
    autograd will refuse to save the tensor.
    """
    return 0 if tensor.is_inference() else tensor._version


def refuse_additions(tensors: Sequence[Tensor], arguments: Any) -> None:
    """A tensor that a function leaves in a list has no gradient.

    What it leaves in an attribute has none, either, but cannot be found.

    :raises RuntimeError: naming the shape of a tensor that was not there before
    """
    known = {id(tensor) for tensor in tensors}
    for leaf in tree_leaves(arguments):
        if isinstance(leaf, Tensor) and id(leaf) not in known:
            raise RuntimeError(
                f"the checkpointed function left a tensor of shape {tuple(leaf.shape)} "
                "in its arguments, where no gradient would reach it; return it instead"
            )


def refuse_hidden(values: Sequence[Any]) -> None:
    """A tensor inside of an object that is no pytree would come out without a gradient.

    :raises TypeError: naming the object's type
    """
    for value in values:
        if not isinstance(value, Tensor) and any(
            tensor.is_floating_point() or tensor.is_complex()
            for tensor in tensors_in(value)
        ):
            raise TypeError(
                f"the checkpointed function returned a {type(value).__name__} that "
                "holds tensors, where no gradient would reach them; return the tensors "
                "in a tuple, a list or a dictionary"
            )


def not_compiled(checkpoint: Callable[..., Any]) -> Callable[..., Any]:
    """A function that `torch.compile` runs as it is.

    The compiler would record the first run and not know of the second, and the
    parameters would have wrong gradients. What a checkpoint calls may be compiled.
    """
    quiet: list[Callable[..., Any]] = []

    @wraps(checkpoint)
    def call(*args: Any, **kwargs: Any) -> Any:
        # To load the compiler takes seconds. Nobody compiles before it is loaded.
        if "torch._dynamo" not in sys.modules:
            return checkpoint(*args, **kwargs)
        if not quiet:
            quiet.append(torch.compiler.disable(checkpoint, reason=REASON))
        return quiet[0](*args, **kwargs)

    return call


REASON = (
    "a checkpointed function runs again in the backward pass, where nothing is "
    "compiled; compile the function by itself, as in checkpoint(torch.compile(block), x)"
)
