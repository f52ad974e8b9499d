r"""# What one run has done

> An operation is remembered by its name, by the line that called it, and by a digest of what it gave.

[Two runs of one function](determinism.py) are compared by what they leave behind. This
chapter makes the three things that are compared and shown.

A *place* is the line of the program that an operation was called from. It costs a look
at the stack for each tensor, and no text is made of it unless it has to be shown. So it
is recorded always.

A *digest* is a number made from all bits of a tensor. To compute it reads the tensor
once more. The *log* holds a digest of what each operation gave. Both are for a search,
after something has been found to be wrong.
"""

# sidelit: hide
from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._pytree import tree_leaves

__all__ = ["Log", "Operation", "Place", "digest", "part", "place_of", "shown"]

Place = tuple[CodeType, int]
# sidelit: show


class Log(TorchFunctionMode):
    """A block that records each operation that gives a tensor.

    A function of PyTorch that calls others is one operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        # What runs now. The tensors that autograd saves meanwhile are saved by it.
        self.current = ""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        self.current = resolve_name(func) or getattr(func, "__name__", repr(func))
        try:
            result = func(*args, **(kwargs or {}))
            given = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            if given:
                place = place_of(sys._getframe(1))
                self.operations.append(Operation.of(self.current, place, given))
        finally:
            self.current = ""
        return result


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, and what it gave."""

    name: str
    place: Place
    shapes: tuple[torch.Size, ...]
    digests: tuple[int, ...]

    @classmethod
    def of(cls, name: str, place: Place, given: list[Tensor]) -> Operation:
        shapes = tuple(tensor.shape for tensor in given)
        # Fresh memory holds whatever was there before, and no two runs agree on it.
        fresh = "empty" in name
        return cls(name, place, shapes, () if fresh else tuple(map(digest, given)))

    def same(self, again: Operation) -> bool:
        """Whether both did the same, wherever they were called from."""
        mine, other = ((one.name, one.shapes, one.digests) for one in (self, again))
        return mine == other

    def __str__(self) -> str:
        given = ", ".join(str(tuple(shape)) for shape in self.shapes)
        digests = " ".join(f"{value & 0xFFFFFFFF:08x}" for value in self.digests)
        return f"{self.name} gave {given} {digests} at {shown(self.place)}"


def part(forward: list[Operation], again: list[Operation]) -> Iterator[str]:
    """Show where two logs part, with the last two operations that they share.

    The second may be shorter, because a recomputation ends as soon as it can.
    """
    for index, (first, second) in enumerate(zip_longest(forward, again)):
        if second is None:
            return
        if first is None or not first.same(second):
            for shared in range(max(0, index - 2), index):
                yield f"  {shared} in both runs: {forward[shared]}"
            yield f"  {index} in the forward pass: {first or 'nothing, it had ended'}"
            yield f"  {index} in the recomputation: {second}"
            return


@torch.no_grad()
def digest(tensor: Tensor) -> int:
    """A number that depends on each bit of the data and on where the bit stands.

    It is computed where the data is, so that 8 bytes travel and not the tensor. The
    products and shifts mix the bits of each byte with its number, and the sum makes one
    number of all.

    >>> one, other = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    >>> digest(one) == digest(one.clone()), digest(one) == digest(other)
    (True, False)
    """
    data = tensor.detach().to_dense().resolve_conj().resolve_neg().contiguous()
    octets = data.flatten().view(torch.uint8).to(torch.int64)
    mixed = octets + 256 * torch.arange(len(octets), device=octets.device)
    for shift in (32, 29):
        mixed = mixed * 0x1E3779B97F4A7C15
        mixed = mixed ^ (mixed >> shift)
    return int(mixed.sum())


def place_of(frame: FrameType) -> Place:
    """The line of the program behind a call: neither PyTorch's nor that of a checkpoint.

    In a checkpointed `nn.Linear` there is none, and the innermost line is taken. The
    search ends at [the line that runs the function](saved_tensors.py#Region.run). What
    lies beyond it is not the same in both runs.
    """
    outer: FrameType | None = frame
    innermost = None
    while outer is not None:
        package, _, module = str(outer.f_globals.get("__name__")).partition(".")
        mine = package == "shardbook" and module in MACHINERY
        if mine and outer.f_code.co_name == "run":
            break
        if package != "torch" and not mine:
            return outer.f_code, outer.f_lineno
        innermost = innermost or (None if mine else outer)
        outer = outer.f_back
    found = innermost or frame
    return found.f_code, found.f_lineno


MACHINERY = {
    "arguments",
    "checkpointing",
    "determinism",
    "operations",
    "recomputation",
    "saved_tensors",
    "selective",
    "sequential",
}


def shown(place: Place) -> str:
    """A place in words, with the text of the line."""
    code, number = place
    text = linecache.getline(code.co_filename, number).strip()
    return f"{Path(code.co_filename).name}:{number}" + (f" `{text}`" if text else "")
