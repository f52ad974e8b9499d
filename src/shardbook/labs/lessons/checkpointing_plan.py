"""The check of a plan in lab 6: is it within the budget, and is no other one cheaper?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from shardbook.checkpointing.budget import Chain, Plan, cheapest, evaluate, take
from shardbook.checkpointing.checkpointing import Span
from shardbook.labs.lessons.returned import whole_number
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell

__all__ = ["plan"]


@check
def plan(given: Sequence[tuple[int, int]], costs: Chain, budget: int) -> str:
    """Within the budget, and as cheap as the cheapest plan."""
    pairs = pairs_of(given, len(costs.layers))
    found = evaluate(costs, [Span(*each, recompute=True) for each in pairs])
    expect(
        found.peak <= budget,
        tell(
            "The peak is {peak:.0f} KiB, so {more:.0f} KiB above the budget.",
            peak=found.peak / 1024,
            more=(found.peak - budget) / 1024,
        ),
        look=where_the_peak_is(costs, found),
    )
    best = cheapest(costs, budget)
    expect(
        found.cost <= best.cost,
        tell(
            "The plan is within the budget and computes {found:.1f} MFLOP again. The cheapest "
            "one computes {best:.1f}.",
            found=found.cost / 1e6,
            best=best.cost / 1e6,
        ),
        look=tell(
            "Your peak is {peak:.0f} KiB. Leave out a layer that costs much and frees little, as "
            "long as the budget allows it.",
            peak=found.peak / 1024,
        ),
    )
    return tell(
        "{found:.1f} MFLOP within {budget:.0f} KiB. No plan is cheaper: you can equal the best "
        "one, and not beat it.",
        found=found.cost / 1e6,
        budget=budget / 1024,
    )


def where_the_peak_is(costs: Chain, found: Plan) -> str:
    """The moment at which most bytes are saved."""
    saved, counted = 0, False
    for segment in found.segments:
        step = take(costs, segment, counted)
        assert step is not None
        if segment.recompute and saved + step.kept + step.recomputed == found.peak:
            return tell(
                "The peak comes when layers {start} to {stop} run again. The segments before "
                "them keep too much, or this one is too long.",
                start=segment.start,
                stop=segment.stop - 1,
            )
        saved, counted = saved + step.kept, step.counted
    return tell(
        "That much is kept after the forward pass. Which large output does no checkpoint free?"
    )


def pairs_of(given: object, layers: int) -> list[tuple[int, int]]:
    """The pairs of a plan in their order, which do not overlap."""
    expect(
        isinstance(given, list | tuple) and all(map(is_pair, given)),
        tell("{found!r} is no list of pairs.", found=given),
        look=tell("A plan looks like `[(1, 3), (4, 7)]`, even with a single pair."),
    )
    assert isinstance(given, list | tuple)
    pairs = sorted((int(start), int(stop)) for start, stop in given)
    for start, stop in pairs:
        expect(
            0 <= start < stop <= layers,
            tell(
                "({start}, {stop}) is no segment of {layers} layers.",
                start=start,
                stop=stop,
                layers=layers,
            ),
            look=tell(
                "As in a slice, the first number belongs to the segment and the second does not."
            ),
        )
    for (start, stop), (later, end) in pairwise(pairs):
        expect(
            stop <= later,
            tell(
                "({start}, {stop}) and ({later}, {end}) overlap.",
                start=start,
                stop=stop,
                later=later,
                end=end,
            ),
            look=tell("Each layer belongs to one segment at most."),
        )
    return pairs


def is_pair(given: object) -> bool:
    """Whether this is two whole numbers."""
    return (
        isinstance(given, list | tuple)
        and len(given) == 2
        and all(whole_number(each) is not None for each in given)
    )
