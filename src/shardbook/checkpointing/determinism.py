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
| `"debug"` | also [a digest](operations.py#digest) of the values | any other value, and where it arose |

Except at `"none"`, a line also holds [the place](operations.py#place_of) in the
program, and the error shows it. Places are compared only if the records differ in their
length alone. A second run that saves too many tensors is found only without [early
stop](recomputation.py#Collector). With early stop the run ends before these tensors,
and no gradient is computed from them.

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

import sys
import weakref
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import checkpoint as torch_checkpoint

from shardbook.checkpointing.operations import (
    Log,
    Place,
    digest,
    listed,
    part,
    place_of,
    shown,
)
from shardbook.foundations.torch_private import base_of
from shardbook.foundations.versions import writes_to

__all__ = [
    "LEVELS",
    "CheckpointError",
    "Record",
    "Saved",
    "compare",
    "is_filled_later",
    "refuse_level",
]

LEVELS = ("default", "none", "debug")


class CheckpointError(torch_checkpoint.CheckpointError):
    """The recomputation cannot stand in for the forward pass.

    Code that catches PyTorch's `CheckpointError` catches this one, too.
    """


class Record:
    """The record of one run: a line for each tensor that autograd saved.

    :param level: one of `LEVELS`
    :param debug: whether a message lists [all operations](operations.py#Log) of both
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
