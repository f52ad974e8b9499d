r"""# Checking that both runs agree

> A recomputation that saves other tensors than the forward pass is refused, and the
> error names the first that differs.

[A checkpoint](saved_tensors.py) assigns the tensors of the second run to those of the
first, in order. If the function does something else the second time, one operation may
compute its gradient from the tensor of another. Such a gradient is wrong, yet its size
looks plausible.

The code of a Python function does not show whether it will do the same again. But the
two runs can be compared. Each run writes a record, with one line for each tensor that
autograd saves:

| level | a line holds | what is found |
|---|---|---|
| `"none"` | nothing | too few tensors |
| `"default"` | shape, dtype, device, parameter, version | also a tensor that differs in these |
| `"debug"` | also [a digest](determinism.py#digest) of the values | any other value, and where it arose |

Except at `"none"`, a line also holds [the place](determinism.py#place_of) in the
program, and the error shows it. Places are compared only if the records differ in their
length alone. A second run that saves too many tensors is found only without [early
stop](segment.py#Collector). With early stop the run ends before these tensors,
and no gradient is computed from them.

The first operation that differs may run long before the first saved tensor that
differs. So at the level `"debug"` each run also [logs its
operations](#module/finding-the-operation-where-two), and the error shows where the logs
diverge. PyTorch has [three blocks](#module/the-blocks-of-pytorch-that) that change
every checkpoint inside them. They change the checkpoints of this book in the same way,
and one of them makes each error list all operations.

The *parameter* of a line is set if the saved tensor is a parameter or a view of one. A
loop is a common way to get another parameter in the second run: in `for layer in
layers: h = checkpoint(lambda h: layer(h), h)` each second run would use the last layer.

The *version* of a tensor counts its changes in place, and costs nothing to read. When
an optimizer steps between the forward pass and the backward pass, the weights that
autograd saves have a higher version in the second run. Without this comparison the
function would run again with the new weights, although its input and the gradient of
its output belong to the old ones. The result would be the gradient of no loss.

A weight that autograd does not save has no line in the record. If the function is a
module, [the versions of its parameters](arguments.py#Parameters) are compared as well.
Two changes still go undetected. A function that is no module may use a bias that
changes. And PyTorch does not count the writes of a fused optimizer. So let the
optimizer step after the backward pass.

The level `"default"` does not detect another value of the same shape, for example from
a global variable. The level `"debug"` does, because it reads every saved tensor. Use it
to search for a fault, not for training.

The level `"debug"` also reports differences that do no harm. No gradient is computed
from some saved tensors: a `BatchNorm` saves running statistics, which the forward pass
has moved; an LSTM on the CPU saves scratch memory; flash attention without dropout
saves a generator state that it never wrote. Some kernels on a GPU add in another order
each time, so their last bits differ between the runs.
`torch.use_deterministic_algorithms(True)` avoids such kernels.

A function that clips its own weight in place is refused at `"default"`, because the
second run raises the version once more. At `"debug"` it passes, since the values are
equal.
"""

from __future__ import annotations

import linecache
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils import checkpoint as torch_checkpoint

from shardbook.foundations.torch_private import (
    base_of,
    checkpoint_debug_block,
    early_stop_block,
    tree_leaves,
    writes_to,
)

__all__ = [
    "LEVELS",
    "CheckpointError",
    "Log",
    "Operation",
    "Place",
    "Record",
    "Saved",
    "compare",
    "debug_in_force",
    "digest",
    "early_stop_in_force",
    "is_filled_later",
    "listed",
    "part",
    "place_of",
    "refuse_level",
    "shown",
]

LEVELS = ("default", "none", "debug")


class CheckpointError(torch_checkpoint.CheckpointError):
    """The recomputation cannot stand in for the forward pass.

    Code that catches PyTorch's `CheckpointError` catches this one, too.
    """


class Record:
    """The record of one run: a line for each tensor that autograd saved.

    :param level: one of `LEVELS`
    :param debug: whether a message lists [all operations](determinism.py#Log) of both
        runs; the level `"debug"` records them as well, and shows where they diverge
    :raises ValueError: if there is no such level
    """

    def __init__(self, level: str, debug: bool = False) -> None:
        refuse_level(level)
        self.level = level
        self.debug = debug
        self.log = Log()
        # The lines, in the order in which the tensors were saved; `None` where nothing
        # is compared.
        self.saved: list[Saved | None] = []

    def watching(self) -> AbstractContextManager[Any]:
        """A block that also records operations, if a message will show them."""
        shows = self.debug or self.level == "debug"
        return self.log if shows else nullcontext()

    def note(self, tensor: Tensor | None) -> None:
        """Add a line to the record. Without a tensor the line is empty, but counts as
        one saved tensor.
        """
        if tensor is None or self.level == "none":
            self.saved.append(None)
            return
        # The frames, from here outwards: this method, the hook, and the line whose
        # operation autograd is recording.
        frame = sys._getframe(2)
        place = place_of(frame)
        reads = self.level == "debug" and not is_filled_later(frame)
        read = digest(tensor) if reads else None
        # Empty unless operations are recorded.
        operation = self.log.current
        self.saved.append(
            Saved(
                tensor.shape,
                tensor.dtype,
                tensor.device,
                writes_to(tensor),
                parameter_of(tensor),
                place,
                read,
                operation,
            )
        )


class Saved(NamedTuple):
    """One line of a record: a saved tensor without its data.

    :param parameter: the parameter, if the tensor is one or is a view of one
    :param digest: of its values, at the level `"debug"`
    :param operation: the operation that saved it, if operations are recorded
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    version: int
    parameter: weakref.ref[nn.Parameter] | None
    place: Place
    digest: int | None
    operation: str

    def difference(self, again: Saved) -> str:
        """How a tensor of the recomputation differs from this one; empty if it may
        replace this one.

        A lower version is allowed: if another hook stored the tensor elsewhere, it
        returns a new tensor, whose version starts at 0. Where the values are compared,
        the versions are not.
        """
        if (
            self.shape != again.shape
            or self.dtype != again.dtype
            or self.device != again.device
            or self.digest != again.digest
        ):
            return "differs"
        # A parameter that was passed as an argument may come back as a plain tensor.
        if again.parameter is not None and again.parameter is not self.parameter:
            return "was saved of another parameter"
        if again.version > self.version and self.digest is None:
            return "was changed in place, between the runs or by the function"
        return ""

    def __str__(self) -> str:
        text = f"shape {tuple(self.shape)}, {self.dtype}, {self.device}"
        text += f", version {self.version}"
        if self.digest is not None:
            text += f", digest {self.digest & 0xFFFFFFFF:08x}"
        by = f" by {self.operation}" if self.operation else ""
        return f"{text}, saved{by} at {shown(self.place)}"


def is_filled_later(caller: FrameType) -> bool:
    """Whether an operation may write into a tensor after autograd has saved it.

    `rrelu` saves the memory for its random slopes first, and then draws them. PyTorch
    counts no write there. It has no other such operation.

    :param caller: the function that calls the operation, or a mode that a program has
        set around it
    """
    around = caller.f_back or caller
    names = {*caller.f_code.co_names, *around.f_code.co_names}
    return not _FILL_LATER.isdisjoint(names)


_FILL_LATER = frozenset(("rrelu", "rrelu_", "rrelu_with_noise", "rrelu_with_noise_"))


def parameter_of(tensor: Tensor) -> weakref.ref[nn.Parameter] | None:
    """The parameter that is saved with a tensor: a linear layer saves `weight.t()`."""
    base = base_of(tensor)
    owner = tensor if base is None else base
    # Most tensors are no leaves, and a test of the class takes five times as long.
    return (
        weakref.ref(owner)
        if owner.is_leaf and isinstance(owner, nn.Parameter)
        else None
    )


def compare(forward: Record, again: Record, needed: int, exact: bool) -> None:
    """Refuse a recomputation whose record does not repeat that of the forward pass.

    :param needed: how many tensors the recomputation must have saved
    :param exact: whether it must have saved as many as the forward pass
    :raises CheckpointError: if it does not, naming the first tensor that differs
    """
    pairs = list(zip(forward.saved, again.saved, strict=False))
    wrong = [i for i, (a, b) in enumerate(pairs) if a and b and a.difference(b)]
    lengths = len(forward.saved), len(again.saved)
    counted = lengths[1] < needed or (exact and lengths[0] != lengths[1])
    if wrong or counted:
        raise CheckpointError(message(forward, again, wrong, counted))


# sidelit: depth The error about two runs that differ, and levels that do not exist.


def message(forward: Record, again: Record, wrong: list[int], counted: bool) -> str:
    """The text of the error: what both runs saved at the point where they differ.

    :param wrong: the tensors that differ
    :param counted: whether their number differs
    """
    lines = ["the recomputation does not do what the forward pass did."]
    if counted:
        lengths = len(forward.saved), len(again.saved)
        lines.append("The forward pass saved {} tensors, it saved {}.".format(*lengths))
        # If only the number differs, the runs diverge at the first tensor that was
        # saved elsewhere in the program, or at the end of the shorter run.
        pairs = list(zip(forward.saved, again.saved, strict=False))
        elsewhere = (
            i for i, (a, b) in enumerate(pairs) if a and b and a.place != b.place
        )
        wrong = wrong or [next(elsewhere, len(pairs))]
    first, *others = wrong
    lines.append(
        f"Saved tensor {first} is the first that {how(forward, again, first)}:"
    )
    lines.append(f"  forward pass: {entry(forward, first)}")
    lines.append(f"  recomputation: {entry(again, first)}")
    if others:
        lines.append(f"Others that differ: {', '.join(map(str, others))}.")
    if where := list(part(forward.log.operations, again.log.operations)):
        lines += ["The runs diverge here:", *where]
    if forward.debug:
        lines += listed("forward pass", forward.log.operations)
        lines += listed("recomputation", again.log.operations)
    return "\n".join([*lines, advice(forward.level)])


def how(forward: Record, again: Record, index: int) -> str:
    """How two lines of the records differ."""
    if index < min(len(forward.saved), len(again.saved)):
        first, second = forward.saved[index], again.saved[index]
        return (first and second and first.difference(second)) or "differs"
    return "differs"


def entry(record: Record, index: int) -> str:
    """A line of a record, in words."""
    if index >= len(record.saved):
        return "none, it had saved all of its tensors"
    return str(record.saved[index] or "a tensor of which nothing was recorded")


def advice(level: str) -> str:
    """The advice at the end of each message."""
    text = (
        "Let the function do the same in both runs: give it as an argument whatever "
        "changes in between, such as a global, an attribute or the variable of a loop, "
        "and call backward before weights or the training mode are changed"
    )
    if level == "debug":
        return f"{text}."
    return (
        f'{text}; determinism_check="debug" finds the operation where the runs diverge.'
    )


def refuse_level(level: str) -> None:
    """Refuse a level of comparison that does not exist.

    :raises ValueError: naming those that do
    """
    if level not in LEVELS:
        raise ValueError(
            f"determinism_check={level!r} is not a level; "
            f"choose one of {', '.join(map(repr, LEVELS))}"
        )


# sidelit: core


# ## Finding the operation where two runs diverge
#
# > Each operation is recorded with its name, the line that called it, and a digest of its results.
#
# [The check](determinism.py) compares two runs of a function by records with places,
# digests and a log.
#
# The *place* of an operation is the line of the program that called it. Finding the line
# is cheap, because only the stack is searched, and the text of the line is read only for
# a message. So places are recorded at every level but `"none"`.
#
# The *digest* of a tensor is a number made from all of its bits. The *log* lists all
# operations of a run, with a digest of each result. Both have to read all values, so they
# are used only at the level `"debug"`.


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
    "checkpointing.reentrant",
    "checkpointing.saved_tensors",
    "checkpointing.segment",
    "checkpointing.selective",
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


# sidelit: core


# ## The blocks of PyTorch that change checkpoints
#
# > Three blocks of `torch.utils.checkpoint` change these checkpoints in the same way as PyTorch's own.
#
# PyTorch has three blocks, all in `torch.utils.checkpoint`, that apply to every
# checkpoint inside them. A program may open such a block far away from the call of a
# checkpoint, for example to get more information about an error in one run:
#
# | block | effect | around |
# |---|---|---|
# | `set_checkpoint_early_stop(False)` | second runs go on to their end | the forward pass |
# | `set_checkpoint_debug_enabled(True)` | messages list all operations | the forward pass |
# | `GraphExecGroup()` | backward passes share one recomputation | those backward passes |
#
# The first two blocks override the options `early_stop` and `debug`.
#
# The last block is for a backward pass in parts, as in pipeline parallelism:
# `autograd.grad` first computes the gradients of the inputs, and later those of the
# weights. Without the block each part runs the function again. Inside the block the
# tensors of the first recomputation stay until their nodes unpack them. [A
# reentrant](reentrant.py) checkpoint runs its function to the end and compares nothing,
# so these blocks do not change it.
#
# PyTorch has no public functions that read these settings, so [private
# ones](torch_private.py) do.


def early_stop_in_force(option: bool) -> bool:
    """Whether a second run ends early.

    :param option: what holds outside of all blocks
    """
    block = early_stop_block()
    return option if block is None else block


def debug_in_force(option: bool) -> bool:
    """Whether messages list all operations.

    :param option: what holds outside of all blocks
    """
    block = checkpoint_debug_block()
    return option if block is None else block
