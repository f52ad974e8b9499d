"""The checks of lab 6: a chain in segments, a plan for a budget, and repeated random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointError

from shardbook.checkpointing.budget import (
    Chain,
    Plan,
    SavedBytes,
    cheapest,
    evaluate,
    take,
)
from shardbook.checkpointing.checkpointing import Span
from shardbook.labs.lessons.returned import called, expect_dtype, tensor, whole_number
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell

__all__ = ["in_segments", "plan", "repeatable"]


@check
def in_segments(given: Callable[[nn.Sequential, int, Tensor], Tensor]) -> str:
    """The chain computes the same, and holds k inputs and the last segment."""
    layers = [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(16)]
    chain, x = nn.Sequential(*layers), torch.randn(4, 8)
    found = tensor("in_segments", called("in_segments", given, chain, 4, x))
    expect_dtype("in_segments", found, x.dtype)
    expect(
        torch.equal(found, chain(x)),
        tell("The result differs from that of the chain without checkpoints."),
        look=tell(
            "Does each layer run once, in its order? Does each segment begin with what the one "
            "before it returned?"
        ),
    )
    refuse_wrong_count(given, chain, x)
    expect(
        same_gradients(chain, found, chain(x)),
        tell("The result is right, but the second run computes something else."),
        look=tell(
            "A `lambda` reads its variables when it runs. In the backward pass they have their "
            "last values. Hand a slice of the chain to `checkpoint`."
        ),
    )
    # With two segments as many tensors are saved as with eight.
    found_again = repeated_layers(given, chain, x)
    expect(
        found_again == 8,
        tell(
            "With 2 segments of 16 layers {found} layers run again, and not 8.",
            found=found_again,
        ),
        look=tell(
            "`segments` is the number of segments, and not the number of layers in one."
        ),
    )
    shorter = nn.Sequential(*layers[:10])
    expect(
        torch.equal(given(shorter, 4, x), shorter(x)),
        tell("With 10 layers in 4 segments the result is not that of the chain."),
        look=tell("10 / 4 leaves a rest. Which segment runs the last layers?"),
    )
    return tell("Four segments of sixteen layers hold 8 tensors instead of 17.")


def refuse_wrong_count(
    given: Callable[[nn.Sequential, int, Tensor], Tensor],
    chain: nn.Sequential,
    x: Tensor,
) -> None:
    """The number of saved tensors says which layers are checkpointed."""
    with SavedBytes(chain.parameters()) as saved:
        result = given(chain, 4, x)
        found = saved.bytes // x.nbytes
    del result
    said = tell("16 layers in 4 segments save {found} tensors, and not 8.", found=found)
    reasons = {
        1: tell(
            "One checkpoint goes around the whole chain. Put one around each segment."
        ),
        4: tell("Four inputs alone: the last segment is checkpointed, too."),
        16: tell("There is a checkpoint around each layer, instead of each segment."),
        17: tell("As many as without checkpoints: is `checkpoint` called?"),
    }
    expect(
        found == 8,
        said,
        look=reasons.get(
            found,
            tell("Four inputs, and the four tensors of the last segment, are 8."),
        ),
    )


def repeated_layers(
    given: Callable[[nn.Sequential, int, Tensor], Tensor],
    chain: nn.Sequential,
    x: Tensor,
) -> int:
    """How many layers run again in the backward pass, with two segments."""
    result = given(chain, 2, x)
    runs: list[nn.Module] = []
    hooks = [
        each.register_forward_pre_hook(lambda layer, _: runs.append(layer))
        for each in chain
    ]
    result.sum().backward()
    for hook in hooks:
        hook.remove()
    return len(runs)


def same_gradients(chain: nn.Sequential, found: Tensor, expected: Tensor) -> bool:
    """Whether the gradients of all parameters are equal, bit for bit."""

    def gradients(result: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(result.square().sum(), list(chain.parameters()))

    try:
        pairs = zip(gradients(found), gradients(expected), strict=True)
        return all(torch.equal(one, other) for one, other in pairs)
    # The checkpoint has seen that the two runs differ.
    except CheckpointError:
        return False


@check
def repeatable(given: Callable[[Callable[..., Any]], Callable[..., Any]]) -> str:
    """The second call draws what the first has drawn, and leaves no trace."""
    calls: list[Tensor] = []

    def draw(x: Tensor) -> Tensor:
        calls.append(torch.rand_like(x) + x)
        return calls[-1]

    x = torch.zeros(8)
    function = given(draw)
    expect(
        callable(function),
        tell("repeatable returned {found!r}, which is no function.", found=function),
        look=tell("Does `repeatable` return the inner function?"),
    )
    torch.manual_seed(1)
    expected = torch.rand(8)
    torch.manual_seed(1)
    first = called("repeatable", function, x)
    expect(
        isinstance(first, Tensor),
        tell("The first call returned {found!r}.", found=first),
        look=tell("Return what `function` returns."),
    )
    expect_dtype("repeatable", first, expected.dtype)
    expect(
        torch.equal(first, expected),
        tell("The first call does not draw what `function` itself would draw."),
        look=tell(
            "Leave the generator as it is before the first run. Read its state only."
        ),
    )
    refuse_first_calls_that_draw_nothing(given, draw, first)
    state = torch.get_rng_state()
    second = function(x + 1) - 1
    expect(
        len(calls) == 3,
        tell("`function` did not run again in the second call."),
        look=tell(
            "A stored result would keep all activations. Call `function` with the new arguments."
        ),
    )
    expect(
        torch.allclose(second, first),
        tell("The second call draws other random numbers than the first."),
        look=tell(
            "Read the state *before* the first run, and set it before the second one."
        ),
    )
    expect(
        torch.equal(torch.get_rng_state(), state),
        tell("After the second call the generator continues from another state."),
        look=tell(
            "Read the state before the second run, too, and set it again after the run."
        ),
    )
    return tell("Both runs draw the same numbers, and the second one leaves no trace.")


def refuse_first_calls_that_draw_nothing(
    given: Callable[[Callable[..., Any]], Callable[..., Any]],
    draw: Callable[..., Any],
    before: Tensor,
) -> None:
    """The next function must get random numbers of its own."""
    following = given(draw)(torch.zeros(8))
    expect(
        not torch.equal(before, following),
        tell("Two functions draw the same numbers, one after the other."),
        look=tell(
            "The first call must move the generator on, as `function` alone would. Restore the "
            "state after the second call only."
        ),
    )


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
