r"""# Reusing kept results in the recomputation

> The second run gets a kept result instead of computing it, and six ways to a wrong gradient are closed.

[A policy](selective.py) keeps some results of the forward pass for the recomputation.
Without checks, six situations would give wrong gradients without an error:

| what happens | what is done |
|---|---|
| the result is changed in place, later in the function | refused at that operation, or recomputed |
| the result is changed in place after the function has returned | refused when the second run needs it |
| the operation writes to an argument in place | the written values are copied, and written again |
| the function asks for gradients itself, so it is recomputed in its forward pass | that run is not counted |
| a hook of the library runs in one of the two runs only | [its calls](hook_context.py) are not counted |
| the second run makes other calls than the first | refused, if their number or shapes show it |
"""

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


@dataclass(slots=True)
class Kept:
    """The kept result of one call of an operation.

    :param shapes: the shapes of the call's arguments
    :param value: the result, or copies of the written values for an operation in place
    :param drawn: the state of the generators after the call, if it drew random numbers
    :param required: whether the result must be kept, or may be recomputed instead
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
        """Return an alias of the result. Autograd attaches the history of the second
        run to the alias, and the kept tensor must not get that history.

        :param copied: return a copy instead, because the forward pass still runs, and a
            write to an alias would change its tensor
        :raises RuntimeError: if the result was changed in place after it was kept
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
        # An operation in place returns the tensors it wrote to, or nothing.
        returned = written[: len(schema_of(self.op).returns)]
        return returned[0] if len(returned) == 1 else tuple(returned) or None


class Store:
    """All kept results of one call of a checkpointed function.

    A function that computes gradients itself is recomputed in the middle of its forward
    pass. That recomputation uses the results kept so far, and its own calls are not
    counted as calls of the forward pass.
    """

    def __init__(self) -> None:
        # Whether the forward pass is over, and how many recomputations run now.
        self.complete = False
        self.replaying = 0
        # For each operation its calls in order. The second run makes the same calls.
        self.calls: defaultdict[Any, list[Kept | None]] = defaultdict(list)
        # For each storage the kept results that lie in it, while the forward pass runs.
        self.owners: defaultdict[torch.UntypedStorage, list[Kept]] = defaultdict(list)

    def add(self, kept: Kept, written: list[Tensor]) -> None:
        """Add the result of a call. Until the forward pass ends, writes to its storage
        are detected.
        """
        self.calls[kept.op].append(kept)
        if not written:
            for tensor in tensor_leaves(kept.value):
                self.owners[tensor.untyped_storage()].append(kept)

    def overwrite(self, op: OpOverload, written: list[Tensor]) -> None:
        """Drop kept results, or refuse, before an operation writes to their memory.

        :raises RuntimeError: if the policy requires one of these results to be saved
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
        """Replace all kept results by aliases when the forward pass has ended.

        By then a result has a history, which would keep the graph, and the graph keeps
        this store: a circle. An alias has no history, and its version still counts the
        writes to its memory.
        """
        self.complete = True
        self.owners.clear()
        for kept in self.entries():
            kept.value = tree_map_only(Tensor, Tensor.detach, kept.value)

    def get(self, op: OpOverload, number: int, args: Any, kwargs: Any) -> Kept | None:
        """The kept result for a call of the second run, or `None` if the call is to be
        computed.

        :raises RuntimeError: if the forward pass made no such call
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
    """The arguments that an operation writes to, such as `self` of an operation in
    place, or `out`.
    """
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
