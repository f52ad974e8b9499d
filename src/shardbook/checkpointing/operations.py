r"""# Finding the operation where two runs diverge

> Each operation is recorded with its name, the line that called it, and a digest of its results.

[The check](determinism.py) compares two runs of a function by records with places,
digests and a log.

The *place* of an operation is the line of the program that called it. Finding the line
is cheap, because only the stack is searched, and the text of the line is read only for
a message. So places are recorded at every level but `"none"`.

The *digest* of a tensor is a number made from all of its bits. The *log* lists all
operations of a run, with a digest of each result. Both have to read all values, so they
are used only at the level `"debug"`.
"""

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
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from shardbook.foundations.torch_private import tree_leaves

__all__ = [
    "Log",
    "Operation",
    "Place",
    "digest",
    "listed",
    "part",
    "place_of",
    "shown",
]

# sidelit: hide
# The code of a function, and the offset of an instruction in it.
Place = tuple[CodeType, int]
# sidelit: show


class Log(TorchFunctionMode):
    """A block that records each operation that gives a tensor.

    A function of PyTorch that calls other functions counts as one operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        # The operation that is running now. A line of a record names it as the one that
        # saved the tensor.
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
    """One recorded operation: its name, its place, and the shapes and digests of its
    results.
    """

    name: str
    place: Place
    shapes: tuple[torch.Size, ...]
    digests: tuple[int, ...]

    @classmethod
    def of(cls, name: str, place: Place, given: list[Tensor]) -> Operation:
        shapes = tuple(tensor.shape for tensor in given)
        # `empty` returns memory with arbitrary old values, which differ between any two
        # runs.
        fresh = "empty" in name
        return cls(name, place, shapes, () if fresh else tuple(map(digest, given)))

    def same(self, again: Operation) -> bool:
        """Whether two operations have equal names, shapes and digests; their places may
        differ.
        """
        mine, other = ((one.name, one.shapes, one.digests) for one in (self, again))
        return mine == other

    def __str__(self) -> str:
        given = ", ".join(str(tuple(shape)) for shape in self.shapes)
        digests = " ".join(f"{value & 0xFFFFFFFF:08x}" for value in self.digests)
        return f"{self.name} gave {given} {digests} at {shown(self.place)}"


@torch.no_grad()
def digest(tensor: Tensor) -> int:
    """Compute a number from all bits of a tensor and from their positions.

    The digest is computed on the tensor's own device, so only 8 bytes leave it. The
    bytes are read as 64-bit numbers. Each number is [mixed](#mix) with its index, and
    the digest is the sum. The mixing maps different numbers to different results, so a
    change of a single number always changes the digest. Why mix at all? If two values
    of FP64 change their signs, each changes the sum by $2^{63}$, and without the mixing
    the two changes would cancel.

    The bytes are read in pieces of 1 MiB, so that the temporary copies stay small.

    >>> one, other = torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])
    >>> digest(one) == digest(one.clone()), digest(one) == digest(other)
    (True, False)
    """
    data = tensor.detach().to_dense().resolve_conj().resolve_neg().contiguous()
    # A vector of length 1 may have any stride, but only a stride of 1 can be viewed as
    # bytes.
    octets = data.as_strided((data.numel(),), (1,)).view(torch.uint8)
    # The last number is padded with zeros, so the sum begins with the length.
    total = torch.full((), len(octets), dtype=torch.int64, device=octets.device)
    for start in range(0, len(octets), PIECE):
        piece = octets[start : start + PIECE]
        # The padding also moves the bytes to an address that numbers of 64 bits need.
        words = nn.functional.pad(piece, (0, -len(piece) % 8)).view(torch.int64)
        first = start // 8
        index = torch.arange(first, first + len(words), device=words.device)
        total += mix(words + index.mul_(ODD)).sum()
    return int(total)


def mix(words: Tensor) -> Tensor:
    """Mix the bits of each number, in place.

    A product with an odd number carries bits upwards, and a shift carries them down.
    Both steps can be inverted, so different numbers stay different.
    """
    for shift in (32, 29):
        # A shift to the right repeats the sign bit, and the mask removes the copies.
        words = words.mul_(ODD).bitwise_xor_((words >> shift) & (2 ** (64 - shift) - 1))
    return words


PIECE, ODD = 2**20, 0x1E3779B97F4A7C15


def place_of(frame: FrameType) -> Place:
    """Find the line of the user's program behind a call, skipping the frames of PyTorch
    and of checkpoints.

    In a checkpointed `nn.Linear` no line of the program runs between the checkpoint and
    PyTorch. Then the innermost line of PyTorch is the place. The search ends at [the
    line that runs the function](saved_tensors.py#Region.run), since the calls around it
    differ between the two runs.
    """
    outer: FrameType | None = frame
    innermost = None
    while outer is not None:
        name = outer.f_globals.get("__name__")
        author = AUTHORS.get(name) or author_of(name)
        if author == "program":
            return outer.f_code, outer.f_lasti
        if author == "torch":
            innermost = innermost or outer
        elif outer.f_code.co_name == "run":
            break
        outer = outer.f_back
    found = innermost or frame
    return found.f_code, found.f_lasti


# sidelit: depth Frames that belong to PyTorch or to a checkpoint, and the wording of messages.


def author_of(name: str | None) -> str:
    """Whether a module belongs to PyTorch, to a checkpoint or to the program. The
    answer is needed often, so it is kept.
    """
    package, _, module = str(name).partition(".")
    mine = package == "shardbook" and module in MACHINERY
    author = "checkpoint" if mine else "torch" if package == "torch" else "program"
    AUTHORS[name] = author
    return author


AUTHORS: dict[str | None, str] = {}
MACHINERY = {
    "checkpointing.arguments",
    "checkpointing.checkpointing",
    "checkpointing.determinism",
    "checkpointing.operations",
    "checkpointing.recomputation",
    "checkpointing.reentrant",
    "checkpointing.saved_tensors",
    "checkpointing.segment",
    "checkpointing.selective",
    "checkpointing.sequential",
    "checkpointing.traced",
    "foundations.hook_context",
}


def shown(place: Place) -> str:
    """A place as text: file, line number and the source line."""
    code, offset = place
    lines = (line for start, stop, line in code.co_lines() if start <= offset < stop)
    number = next(lines, None) or code.co_firstlineno
    text = linecache.getline(code.co_filename, number).strip()
    return f"{Path(code.co_filename).name}:{number}" + (f" `{text}`" if text else "")


def part(forward: list[Operation], again: list[Operation]) -> Iterator[str]:
    """Show where two logs diverge, with the last two operations that agree.

    The second log may be shorter, because a recomputation may end early.
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


def listed(run: str, operations: list[Operation]) -> list[str]:
    """All operations of a run, one to a line.

    :param run: what a message calls the run
    """
    lines = [f"  {number}: {one}" for number, one in enumerate(operations)]
    return [f"Operations of the {run}: {len(lines)}.", *lines]
