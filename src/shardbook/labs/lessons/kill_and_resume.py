"""The checks of lab 9: a loop that resumes, losses equal to the bit, and the position."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shardbook.labs.lab_ranks import ranks
from shardbook.labs.lessons.returned import called, whole_number
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell
from shardbook.state.checkpoints import Checkpoints

__all__ = ["first_difference", "next_windows", "train"]

# The first run ends after this step, as if it were killed.
ENDS = 7


@check
def train(given: Any, parts: Any, take_step: Any) -> str:
    """The second run goes on after the checkpoint of the first, with the same losses."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        first = losses_of(ranks(2, given, folder, ENDS)[0])
        expect_steps(first, 1, ENDS)
        saved = [each.name for each in Checkpoints(folder).all()]
        expect(
            "step-00000005" in saved,
            tell(
                "After {ends} steps the folder holds {saved}.", ends=ENDS, saved=saved
            ),
            look=tell("Save after step 5, and after every fifth step."),
        )
        second = losses_of(ranks(2, given, folder, LAST)[0])
    expect(
        1 not in second,
        tell("The second run begins with step 1 again."),
        look=tell(
            "`load` returns the step of the checkpoint. Begin with the next one."
        ),
    )
    expect_steps(second, min(second, default=LAST), LAST)
    expect(
        min(second) in (6, ENDS + 1),
        tell(
            "The checkpoint is that of step 5, and the second run begins with step {first}.",
            first=min(second),
        ),
        look=tell("After step 5 comes step 6. Which step does `load` return?"),
    )
    right = ranks(2, reference, parts, take_step, LAST)[0]
    expect(
        not differs(first, right),
        tell("A new run has other losses than the reference."),
        look=tell("Call `take_step` once for each step, and change nothing else."),
    )
    if differs(second, right):
        blame(second, parts, take_step)
    return tell(
        "The second run goes on with step {first}, bit for bit.", first=min(second)
    )


@check
def first_difference(given: Callable[[Losses, Losses], int | None]) -> str:
    """Equal to the bit, and by the numbers of the steps."""
    run = {step: 3.0 - step / 8 for step in range(1, 9)}
    late = {step: run[step] for step in range(5, 9)}
    expect(
        called("first_difference", given, run, dict(run)) is None,
        tell("Two equal runs should give None."),
        look=tell("Return `None` only after all steps have been compared."),
    )
    expect(
        given(run, late) is None and given(late, run) is None,
        tell("A run that begins with step 5 agrees here, but it counts as different."),
        look=tell(
            "Compare the losses of one step, and leave out steps of one run only."
        ),
    )
    other = {**late, 6: late[6] + 1e-12, 8: 0.0}
    found = given(run, other)
    step = whole_number(found)
    expect(
        step != 8,
        tell("Step 6 differs by 0.000000000001, and that counts."),
        look=tell("Equal to the bit means `==`, and the first difference is wanted."),
    )
    expect(
        step == 6,
        tell(
            "The losses differ in steps 6 and 8, and the function returns {found}.",
            found=found,
        ),
        look=tell("Return the number of the step, which is the key of the dictionary."),
    )
    shuffled = {step: other[step] for step in (8, 7, 6, 5)}
    expect(
        whole_number(called("first_difference", given, shuffled, run)) == 6,
        tell("The steps of a dictionary may stand in any order."),
        look=tell("Go through the steps with `sorted`."),
    )
    return tell("The comparison is exact.")


@check
def next_windows(given: Callable[[int, int, int], list[int]]) -> str:
    """The ranks read side by side."""
    found = given(80, 0, 4)
    expect(
        isinstance(found, list),
        tell(
            "{name} returned {found!r}, which is no list.",
            name="next_windows",
            found=found,
        ),
        look=tell("`list(range(first, stop))` is a list."),
    )
    expect(
        found == [80, 81, 82, 83],
        tell(
            "At position 80 rank 0 reads windows 80 to 83, and not {found}.",
            found=found,
        ),
        look=tell("80 windows were read, with the numbers 0 to 79."),
    )
    found = given(80, 3, 4)
    expect(
        found != [80, 81, 82, 83],
        tell("Rank 3 reads the same windows as rank 0."),
        look=tell(
            "Then all ranks would compute the same gradient. Use the argument `rank`."
        ),
    )
    expect(
        found == [92, 93, 94, 95],
        tell(
            "At position 80 rank 3 reads windows 92 to 95, and not {found}.",
            found=found,
        ),
        look=tell("Three ranks stand before rank 3, and each of them reads 4 windows."),
    )
    expect(
        given(80, 1, 8) == [88, 89, 90, 91, 92, 93, 94, 95],
        tell("With 8 windows on each rank, rank 1 reads windows 88 to 95."),
        look=tell("Does the function use the argument `batch`?"),
    )
    return tell("4 ranks read on exactly where 2 ranks have stopped.")


def losses_of(found: object) -> Losses:
    """Refuse what is no dictionary of losses."""
    expect(
        isinstance(found, Mapping) and len(found) > 0,
        tell(
            "{name} should return a dictionary, and not {found!r}.",
            name="train",
            found=found,
        ),
        look=tell("Enter each loss under the number of its step."),
    )
    assert isinstance(found, Mapping)
    return found


def expect_steps(losses: Losses, first: int, last: int) -> None:
    """Each step once, up to the last one."""
    steps = sorted(losses)
    expect(
        steps == list(range(first, last + 1)),
        tell(
            "Up to step {last} the run has taken steps {begin} to {end}, {count} in all.",
            last=last,
            begin=steps[0],
            end=steps[-1],
            count=len(steps),
        ),
        look=tell(
            "`last` is the number of the last step. The first step has the number 1."
        ),
    )


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
