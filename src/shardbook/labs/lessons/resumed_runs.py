"""The runs that lab 9 compares with a reader's: undisturbed, and resumed with a part of the state."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardbook.labs.lab_ranks import ranks
from shardbook.labs.notebook import expect
from shardbook.labs.words import tell
from shardbook.state.checkpoints import Checkpoints

__all__ = ["LAST", "Losses", "blame", "differs", "reference"]

Losses = Mapping[int, float]
# The last step of a run.
LAST = 12


def reference(parts: Any, take_step: Any, last: int) -> dict[int, float]:
    """A run that nothing interrupts."""
    model, optimizer, batches = parts(3)
    return {
        step: take_step(step, model, optimizer, batches) for step in range(1, last + 1)
    }


def forgetful(
    parts: Any, take_step: Any, folder: Path, begin: int, kept: tuple[str, ...]
) -> dict[int, float]:
    """A run that is interrupted, and goes on with a part of its state."""
    before = parts(3)
    for step in range(1, begin):
        take_step(step, *before)
    Checkpoints(folder).save(begin - 1, before[0], before[1], batches=before[2])
    model, optimizer, batches = parts(3)
    state = {"batches": batches} if "position" in kept else {}
    Checkpoints(folder).load(model, optimizer if "moments" in kept else None, **state)
    return {
        step: take_step(step, model, optimizer, batches)
        for step in range(begin, LAST + 1)
    }


def blame(second: Losses, parts: Any, take_step: Any) -> None:
    """Say which part of the state the reader has left out."""
    looks = {
        ("moments",): tell(
            "The text is read from its beginning again: pass `batches=batches`."
        ),
        ("position",): tell("AdamW begins with empty moments: pass the optimizer."),
        (): tell("The optimizer and `batches` are not restored: pass both."),
    }
    expect(
        False,
        tell("The second run goes on with the right step, but its losses are others."),
        look=next(
            (
                look
                for kept, look in looks.items()
                if not differs(second, again(parts, take_step, min(second), kept))
            ),
            tell("Do `save` and `load` get the same objects?"),
        ),
    )


def again(
    parts: Any, take_step: Any, begin: int, kept: tuple[str, ...]
) -> dict[int, float]:
    """The losses of a run that goes on with a part of its state."""
    with TemporaryDirectory() as name:
        return ranks(2, forgetful, parts, take_step, Path(name), begin, kept)[0]


def differs(one: Losses, other: Losses) -> bool:
    """Whether two runs have different losses in a step that both have taken."""
    return any(one[step] != other[step] for step in one if step in other)
