r"""# Checking that both runs agree

> A recomputation that saves other tensors than the forward pass is refused, and the message says where.

[A checkpoint](saved_tensors.py) takes the tensors of the second run for those of the
first, in order. If the function does something else the second time, the gradient of
one operation may be computed from the tensor of another. Such a gradient is wrong and
has a plausible size.

Nobody can tell from a Python function whether it will do the same again. But the two
runs can be compared. Each writes a record with one line for each tensor that autograd
saves:

| level | a line holds | what is found |
|---|---|---|
| `"none"` | nothing | too few tensors |
| `"default"` | shape, dtype, device, parameter, version | also a tensor that differs in these |
| `"debug"` | also [a digest](operations.py#digest) of the values | any other value, and where it arose |

Except at `"none"`, a line also holds [the place](operations.py#place_of) in the
program. Places are shown in the message. They are compared only if nothing but the
number of tensors differs. Too many tensors are found only without [early
stop](recomputation.py#Collector): with it, the second run ends before them, and no
gradient is computed from them.

The *parameter* of a line is the one that was saved, if it was one. A loop is a common
way to get another one: in `for layer in layers: h = checkpoint(lambda h: layer(h), h)`
every second run would use the last layer.

The *version* of a tensor counts its changes in place, and costs nothing to read. When
an optimizer steps between the forward pass and the backward pass, the weights that
autograd saves have a higher version in the second run. Without this comparison the
function would run again with the new weights, on an input and for an output gradient
that belong to the old ones. The result would be the gradient of no loss at all.

A weight that autograd does not save has no line in the record. If the function is a
module, [the versions of its parameters](arguments.py#Parameters) are compared all the
same. What another function finds by itself, such as a bias, may change without an
error. So may any weight if the optimizer is a fused one, because PyTorch does not count
its writes. Let the optimizer step after the backward pass.

`"default"` does not see another value of the same shape, as from a global variable.
`"debug"` sees it, because it reads every saved tensor. It is for a search and not for
training. It also reports differences that do no harm. From some saved tensors no
gradient is computed: a `BatchNorm` saves running statistics, which the forward pass has
moved, an LSTM on the CPU saves scratch memory, and flash attention without dropout
saves a state of the generator that it never wrote. And a kernel that adds in another
order each time, as some do on a GPU, gives other last bits in each run;
`torch.use_deterministic_algorithms(True)` avoids those.

A function that clips its own weight in place, in each run, is refused at `"default"`:
the second run raises the version once more. At `"debug"` it passes, since the values
are the same.
"""

# sidelit: hide
from __future__ import annotations

import sys
import weakref
from contextlib import AbstractContextManager, nullcontext
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
    "refuse_level",
]
# sidelit: show

LEVELS = ("default", "none", "debug")


class CheckpointError(torch_checkpoint.CheckpointError):
    """A recomputation cannot take the place of the forward pass.

    Code that catches PyTorch's `CheckpointError` catches this one, too.
    """


class Record:
    """What one run of a function has saved.

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
        # In the order in which they were saved; `None` where nothing is compared.
        self.saved: list[Saved | None] = []

    def watching(self) -> AbstractContextManager[Any]:
        """A block whose operations are recorded too, if a message will show them."""
        shows = self.debug or self.level == "debug"
        return self.log if shows else nullcontext()

    def note(self, tensor: Tensor | None) -> None:
        """Add a line. Without a tensor the line is empty, and counts as one saved tensor."""
        if tensor is None or self.level == "none":
            self.saved.append(None)
            return
        # The frames, from here outwards: this method, the hook, and the line whose
        # operation autograd is recording.
        place = place_of(sys._getframe(2))
        read = digest(tensor) if self.level == "debug" else None
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
    """A tensor that autograd has saved, without its data.

    :param parameter: the parameter, if the tensor is one or is a view of one
    :param digest: of its values, at the level `"debug"`
    :param operation: what saved it, if operations are recorded
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
        """In what a tensor of the recomputation differs; empty if it may take the place
        of this one.

        A lower version is allowed. If another hook stored the tensor elsewhere, what it
        brings back is a new tensor, whose count starts at 0. Where the values are
        compared, versions are not.
        """
        if (
            self.shape != again.shape
            or self.dtype != again.dtype
            or self.device != again.device
            or self.digest != again.digest
        ):
            return "differs"
        # A parameter that was an argument may come back as a tensor that is none.
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


def parameter_of(tensor: Tensor) -> weakref.ref[nn.Parameter] | None:
    """The parameter that is saved with a tensor: a linear layer saves `weight.t()`."""
    base = base_of(tensor)
    owner = tensor if base is None else base
    # Most tensors are no leaves, and to ask for the class takes five times as long.
    return (
        weakref.ref(owner)
        if owner.is_leaf and isinstance(owner, nn.Parameter)
        else None
    )


def compare(forward: Record, again: Record, needed: int, exact: bool) -> None:
    """Refuse a recomputation that does not repeat the forward pass.

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


# sidelit: depth What a message says of two runs that differ, and levels that do not exist.


def message(forward: Record, again: Record, wrong: list[int], counted: bool) -> str:
    """What both runs have saved where they differ.

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
    """In what two lines differ."""
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
    """What to do. Every message ends with it."""
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
