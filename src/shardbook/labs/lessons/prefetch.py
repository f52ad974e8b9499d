"""The checks of lab 4: the exposed part of a gather, the smallest depth, and the bytes of a depth."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shardbook.labs.lessons.returned import called, number, whole_number
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell

__all__ = ["exposed", "most_bytes", "smallest_depth"]

Span = tuple[float, float]


@check
def exposed(given: Callable[[Span, list[Span]], float]) -> str:
    """The gather's length without what it shares with computations."""
    found = number("exposed", called("exposed", given, (2, 6), []))
    expect(
        found == 4,
        tell(
            "Nothing is computed, so a gather from 2 to 6 is exposed for 4 seconds, and not {found:g}.",
            found=found,
        ),
        look=tell("Begin with the length of the gather."),
    )
    found = number("exposed", called("exposed", given, (2, 6), [(0, 1), (8, 9)]))
    expect(
        found == 4,
        tell(
            "A gather from 2 to 6 shares nothing with computations from 0 to 1 and from 8 to 9. "
            "It is exposed for 4 seconds, and not {found:g}.",
            found=found,
        ),
        look=tell(
            "Spans that do not meet share a negative time. Take `max(0, ...)` of each one."
        ),
    )
    found = number("exposed", called("exposed", given, (2, 6), [(0, 3)]))
    expect(
        found == 3,
        tell(
            "Beside a computation from 0 to 3, a gather from 2 to 6 is exposed for 3 seconds, "
            "and not {found:g}.",
            found=found,
        ),
        look=tell(
            "They share the time from 2 to 3: it begins at the later of both begins."
        ),
    )
    found = number("exposed", called("exposed", given, (2, 6), [(5, 9)]))
    expect(
        found == 3,
        tell(
            "Beside a computation from 5 to 9, a gather from 2 to 6 is exposed for 3 seconds, "
            "and not {found:g}.",
            found=found,
        ),
        look=tell("The shared time ends at the earlier of both ends."),
    )
    found = number("exposed", called("exposed", given, (2, 6), [(0, 9)]))
    expect(
        found == 0,
        tell(
            "A computation from 0 to 9 hides all of a gather from 2 to 6, but the function "
            "returns {found:g}.",
            found=found,
        ),
        look=tell("A computation cannot hide more than there is of the gather."),
    )
    found = number(
        "exposed", called("exposed", given, (2, 6), [(0, 3), (4, 5), (8, 9)])
    )
    expect(
        found == 2,
        tell(
            "Beside computations from 0 to 3, 4 to 5 and 8 to 9, a gather from 2 to 6 is exposed "
            "for 2 seconds, and not {found:g}.",
            found=found,
        ),
        look=tell("Subtract what it shares with each computation, not with one alone."),
    )
    return tell("Only the time beside which nothing is computed counts.")


@check
def smallest_depth(
    given: Callable[[Sequence[float], Sequence[float]], int | None],
) -> str:
    """The first depth at which all waits but one are zero."""
    cases: list[tuple[list[float], list[float], int | None, str]] = [
        (
            [1, 1, 1, 1],
            [2, 2, 2, 2],
            1,
            tell(
                "The first unit is always waited for, because nothing is computed before it. Look "
                "at the waits after it."
            ),
        ),
        (
            [1, 1, 3, 1],
            [2, 2, 2, 2],
            2,
            tell(
                "A gather that takes longer than the unit before it computes may still hide behind "
                "two units. Look at the waits of each depth, not at the times."
            ),
        ),
        (
            [1, 1, 1, 3],
            [4, 1, 1, 1],
            3,
            tell("Four units have depths from 0 to 3. Is the last of them tried?"),
        ),
        (
            [3, 3, 3, 3],
            [2, 2, 2, 2],
            None,
            tell(
                "The wire is slower than the computation, so every depth leaves waits. Then the "
                "function returns `None`."
            ),
        ),
        (
            [2],
            [1],
            0,
            tell("A model of one unit needs nothing ahead. Begin with depth 0."),
        ),
    ]
    for gathers, computes, wanted, look in cases:
        found = called("smallest_depth", given, gathers, computes)
        depth = whole_number(found)
        expect(
            found is None or depth is not None,
            tell(
                "smallest_depth returned {found!r}, which is neither a depth nor None.",
                found=found,
            ),
            look=tell("Return the number of the depth, not what is waited for."),
        )
        expect(
            depth == wanted,
            tell(
                "For gathers of {gathers} and computations of {computes} the result should be "
                "{wanted}, and not {found}.",
                gathers=gathers,
                computes=computes,
                wanted=wanted,
                found=found,
            ),
            look=look,
        )
    return tell(
        "Depth 1 is enough for equal units, if a gather takes no longer than a computation."
    )


@check
def most_bytes(given: Callable[[list[int], int], float]) -> str:
    """The largest sum of depth + 1 units in a row."""
    found = number("most_bytes", called("most_bytes", given, [5, 5, 5, 5], 0))
    expect(
        found == 5,
        tell(
            "At depth 0 only the unit in use is whole: 5 bytes of [5, 5, 5, 5], and not {found:g}.",
            found=found,
        ),
        look=tell("A slice from `i` to `i + depth` leaves its end out."),
    )
    found = number("most_bytes", called("most_bytes", given, [5, 5, 5, 5], 1))
    expect(
        found == 10,
        tell(
            "At depth 1 two units of 5 bytes are whole at most, and not {found:g} bytes.",
            found=found,
        ),
        look=tell("The unit in use counts, and so does each that was gathered ahead."),
    )
    found = number("most_bytes", called("most_bytes", given, [1, 9, 2, 8], 1))
    expect(
        found != 17,
        tell(
            "The two largest units of [1, 9, 2, 8] are never whole together at depth 1."
        ),
        look=tell("Only units that follow each other are whole at the same time."),
    )
    expect(
        found == 11,
        tell(
            "Of units of 1, 9, 2 and 8 bytes at depth 1, 11 bytes are whole at most, and not {found:g}.",
            found=found,
        ),
        look=tell(
            "Add up the sizes of the units that follow each other. Each unit may be the one in "
            "use: take the largest of all these sums."
        ),
    )
    found = number("most_bytes", called("most_bytes", given, [1, 2, 9], 5))
    expect(
        found == 12,
        tell(
            "At depth 5, three units of 1, 2 and 9 bytes are 12 bytes together, and not {found:g}.",
            found=found,
        ),
        look=tell("There are no more units than the list has. It ends where they end."),
    )
    return tell("Each depth costs the memory of one more unit.")
