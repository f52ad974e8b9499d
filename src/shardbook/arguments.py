r"""# Keeping the arguments

> What a checkpoint keeps is kept by autograd, as if one more operation had saved it.

[A recomputation](saved_tensors.py) needs the arguments of its function until the
backward pass. A list of them would do, and would lose three things that autograd does
for the tensors it saves:

| | a list | saved by autograd |
|---|---|---|
| an argument is changed in place before backward | the gradient is wrong | an error |
| there is [a checkpoint around this one](saved_tensors.py) | the tensors stay | they go |
| saved tensors are moved, as by `save_on_cpu` | the tensors stay | they are moved |

So an operation is recorded that does nothing and saves the tensors. Its node is not
part of any path of the graph. It is held by the checkpoint, and goes with it.
"""

# sidelit: hide
from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import (
    keystr,
    tree_flatten,
    tree_flatten_with_path,
    tree_unflatten,
)

from shardbook.determinism import CheckpointError

__all__ = ["Arguments"]
# sidelit: show


class Arguments:
    """The arguments of a function, with each tensor among them saved by autograd.

    Tensors are found in tuples, lists, dictionaries and other pytrees. An object of
    another class is kept as it is, with what it holds.

    :param args: the positional arguments
    :param kwargs: the keyword arguments
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.leaves, self.structure = tree_flatten((args, kwargs))
        self.indices = [
            i for i, leaf in enumerate(self.leaves) if isinstance(leaf, Tensor)
        ]
        tensors = [self.leaves[i] for i in self.indices]
        self.versions = [(weakref.ref(tensor), tensor._version) for tensor in tensors]
        for i in self.indices:
            self.leaves[i] = None
        saved: Tensor = _Save.apply(_ANCHOR, *tensors)  # type: ignore[no-untyped-call]
        self.node: Any = saved.grad_fn

    def get(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments again, in containers of their own.

        :raises CheckpointError: if a tensor was changed in place since
        """
        leaves = list(self.leaves)
        for i, tensor in zip(self.indices, self.tensors(), strict=True):
            leaves[i] = tensor
        args, kwargs = tree_unflatten(leaves, self.structure)
        return args, kwargs

    def tensors(self) -> tuple[Tensor, ...]:
        try:
            saved: tuple[Tensor, ...] = self.node.saved_tensors
            return saved
        except RuntimeError as error:
            changed = self.changed()
            # Inside of another checkpoint this line runs that one's function. What goes
            # wrong there is another error.
            if isinstance(error, CheckpointError) or not changed:
                raise
            raise CheckpointError(
                f"{', '.join(changed)} of a checkpointed function changed in place before "
                "the backward pass, so the function cannot be run again on what it was "
                "given; change a clone instead, also inside of the function"
            ) from error

    def changed(self) -> list[str]:
        """The names of the tensors that were changed in place, as far as they still exist."""
        numbered = tree_unflatten(list(range(len(self.leaves))), self.structure)
        paths = {leaf: path for path, leaf in tree_flatten_with_path(numbered)[0]}
        found = []
        for i, (reference, version) in zip(self.indices, self.versions, strict=True):
            tensor = reference()
            if tensor is not None and tensor._version != version:
                _, *inner = paths[i]
                found.append(f"argument {keystr(tuple(inner))}")
        return found


class _Save(torch.autograd.Function):
    """The operation that does nothing, and saves what it is given."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *tensors: Tensor) -> Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty(0)


# Autograd records an operation only if something that it is given requires a gradient.
# The arguments need not, because the parameters inside of the function may.
_ANCHOR = torch.empty(0, requires_grad=True)
