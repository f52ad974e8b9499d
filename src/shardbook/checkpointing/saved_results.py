r"""# Reusing the results that were kept

> A result that is kept must be handed out once more as if it had just been computed.

[A policy](selective.py) keeps some results of the forward pass for the recomputation.
There are six ways in which that could give wrong gradients without an error, and each
is dealt with:

| what happens | what is done |
|---|---|
| the result is changed in place, later in the function | refused at that operation, or recomputed |
| it is changed in place after the function has returned | refused when it is handed out |
| the operation writes to an argument in place | what it wrote is copied, and written there again |
| the function asks for gradients itself, so it is recomputed in its forward pass | that run is not counted |
| a hook of the library works in one run and not in the other | [its calls](hook_context.py) are not counted |
| the second run makes other calls than the first | refused, if their number or shapes show it |
"""

# sidelit: hide
from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from shardbook.foundations.rng import RNGState
from shardbook.foundations.torch_private import (
    OpOverload,
    schema_of,
    tree_leaves,
    tree_map_only,
)
from shardbook.foundations.versions import Versions

__all__ = ["Kept", "Store"]
# sidelit: show


@dataclass(slots=True)
class Kept:
    """What one call of an operation gave.

    :param shapes: those of its arguments
    :param value: its result, or copies of what it has written
    :param drawn: where it has left the generators, if it has drawn random numbers
    :param required: whether it has to be kept, or may be recomputed
    """

    op: OpOverload
    shapes: list[torch.Size]
    value: Any
    drawn: RNGState
    required: bool
    versions: Versions = field(init=False)

    def __post_init__(self) -> None:
        self.versions = Versions(*tensor_leaves(self.value))

    def hand_out(self, args: Any, kwargs: Any, *, copied: bool = False) -> Any:
        """Give an alias of the result. Autograd attaches the second run's history to
        it, which the kept tensor must not get.

        :param copied: give a copy instead, because the forward pass still runs, and a
            write to an alias would be a write to its tensor
        :raises RuntimeError: if it was changed in place since
        """
        if self.versions.changed(*tensor_leaves(self.value)):
            raise RuntimeError(
                f"the result of {self.op}, which the policy keeps, was changed in place "
                "after the checkpointed function had returned; use an operation that "
                "gives a new tensor"
            )
        written = written_by(self.op, args, kwargs)
        if not written:
            give = Tensor.clone if copied else Tensor.detach
            return tree_map_only(Tensor, give, self.value)
        for tensor, value in zip(written, self.value, strict=True):
            tensor.copy_(value)
        # An operation in place returns what it has written, or nothing.
        returned = written[: len(schema_of(self.op).returns)]
        return returned[0] if len(returned) == 1 else tuple(returned) or None


class Store:
    """What is kept of one call of a checkpointed function.

    A function that asks for gradients itself is recomputed in the middle of its forward
    pass. That recomputation hands out what is kept so far, and its own calls are not
    counted: they are no calls of the forward pass.
    """

    def __init__(self) -> None:
        # Whether the forward pass is over, and how many recomputations run now.
        self.complete = False
        self.replaying = 0
        # For each operation its calls in order. The second run makes the same ones.
        self.calls: defaultdict[Any, list[Kept | None]] = defaultdict(list)
        # For each storage the kept results in it, while the forward pass runs.
        self.owners: defaultdict[torch.UntypedStorage, list[Kept]] = defaultdict(list)

    def add(self, kept: Kept, written: list[Tensor]) -> None:
        """Add a call's result. While the forward pass runs, its storage is watched for
        writes.
        """
        self.calls[kept.op].append(kept)
        if not written:
            for tensor in tensor_leaves(kept.value):
                self.owners[tensor.untyped_storage()].append(kept)

    def overwrite(self, op: OpOverload, written: list[Tensor]) -> None:
        """An operation is about to write to some tensors.

        :raises RuntimeError: if the policy wants to save what is in one of them
        """
        for tensor in written:
            for kept in self.owners.pop(tensor.untyped_storage(), ()):
                if kept.required:
                    raise RuntimeError(
                        f"{op} writes over the result of {kept.op}, which the policy "
                        "saves; let the policy answer Keep.PREFER for it, or use an "
                        "operation that gives a new tensor"
                    )
                calls = self.calls[kept.op]
                calls[:] = [None if entry is kept else entry for entry in calls]

    def seal(self) -> None:
        """The forward pass is over.

        The results have a history by now. It keeps the graph, and the graph keeps this
        store. An alias has no history, and still counts the writes to its memory.
        """
        self.complete = True
        self.owners.clear()
        for kept in self.entries():
            kept.value = tree_map_only(Tensor, Tensor.detach, kept.value)

    def get(self, op: OpOverload, number: int, args: Any, kwargs: Any) -> Kept | None:
        """What is to be handed out for a call, if anything is.

        :raises RuntimeError: if the forward pass has made no such call
        """
        calls = self.calls[op]
        known = number < len(calls)
        if not any(calls) or not (known or self.complete):
            return None
        kept = calls[number] if known else None
        if not known or (kept and kept.shapes != shapes(args, kwargs)):
            raise RuntimeError(
                f"call {number} of {op} in the recomputation has no equal in the forward "
                "pass, so what the policy keeps cannot be handed out; a checkpointed "
                "function has to do the same both times"
            )
        return kept

    def entries(self) -> list[Kept]:
        return [kept for calls in self.calls.values() for kept in calls if kept]

    @property
    def bytes(self) -> int:
        tensors = tensor_leaves([kept.value for kept in self.entries()])
        storages = {tensor.untyped_storage() for tensor in tensors}
        return sum(storage.nbytes() for storage in storages)


def written_by(op: OpOverload, args: Any, kwargs: Any) -> list[Tensor]:
    """The arguments that an operation writes to: itself, or what is named `out`."""
    given = [
        kwargs.get(argument.name) if number >= len(args) else args[number]
        for number, argument in enumerate(schema_of(op).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return tensor_leaves(given)


def shapes(*given: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in tensor_leaves(given)]


def tensor_leaves(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
