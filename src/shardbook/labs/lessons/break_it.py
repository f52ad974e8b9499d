"""The checks of lab 5: a missing mean, a vector that is not freed, and the order of two kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from shardbook.check.race_replay import Launch, Record, Trace, Wait
from shardbook.labs.lessons.returned import called, look_at_return, plain
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell

__all__ = ["leaks", "mend", "ordered"]


@check
def mend(given: Callable[[list[nn.Parameter], int], None]) -> str:
    """Gradients are divided in place, and nothing else changes."""
    for ranks in (2, 4):
        used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
        used.grad = torch.tensor([4.0, 8.0])
        parameters = [unused, used, unused]
        given(parameters, ranks)
        expect(
            list(map(id, parameters)) == [id(unused), id(used), id(unused)],
            tell("{name} has changed an argument of its caller.", name="mend"),
            look=tell("The gradient of a parameter is `parameter.grad`."),
        )
        expect(
            used.tolist() == [1, 1] and unused.tolist() == [1, 1],
            tell("The parameters have changed, and not only their gradients."),
            look=tell("The gradient of a parameter is `parameter.grad`."),
        )
        expect(
            unused.grad is None,
            tell("A parameter without a gradient has one now."),
            look=tell("Leave out a parameter whose `grad` is `None`."),
        )
        found = None if used.grad is None else used.grad.tolist()
        expect(
            found != [4, 8],
            tell("The gradient has not changed."),
            look=tell("Does the function change `parameter.grad`, or a copy of it?"),
        )
        right = [4.0 / ranks, 8.0 / ranks]
        expect(
            found == right,
            tell(
                "On {ranks} ranks the sum [4, 8] becomes {found}, and should be {right}.",
                ranks=ranks,
                found=found,
                right=right,
            ),
            look=tell("A mean is the sum divided by the number of ranks."),
        )
    return tell("The gradients are means again.")


@check
def leaks(given: Callable[[dict[str, Tensor]], list[str]]) -> str:
    """The storages that have memory."""
    vectors = {name: torch.ones(8) for name in ("first", "second", "third", "fourth")}
    # The values say nothing about the memory.
    vectors["third"].zero_()
    for name in ("first", "fourth"):
        vectors[name].untyped_storage().resize_(0)
    before = [(name, id(each)) for name, each in vectors.items()]
    found = given(vectors)
    expect(
        before == [(name, id(each)) for name, each in vectors.items()]
        and stored_bytes(vectors) == [0, 32, 32, 0],
        tell("{name} has changed an argument of its caller.", name="leaks"),
        look=tell("The vectors are looked at here, and neither filled nor freed."),
    )
    expect(
        isinstance(found, list),
        tell("leaks must return a list of names."),
        look=look_at_return("leaks", found),
    )
    expect(
        found != [*vectors],
        tell("All vectors were found, but two of the four have no memory."),
        look=tell("The shape of a vector stays. Ask its storage, `untyped_storage()`."),
    )
    expect(
        found != ["first", "fourth"],
        tell("These are the vectors without memory."),
        look=tell("A leak is a vector that still has memory."),
    )
    expect(
        found == ["second", "third"],
        tell("Found were {found}, and should be second and third.", found=found),
        look=tell("All vectors whose storage has more than 0 bytes, in their order."),
    )
    return tell("The leak is where the memory is, and not where the shape is.")


def stored_bytes(vectors: dict[str, Tensor]) -> list[int]:
    return [each.untyped_storage().nbytes() for each in vectors.values()]


def kernel(stream: int) -> Launch:
    return Launch(stream, frozenset({7}), frozenset({7}), "kernel")


A, B = kernel(0), kernel(1)


@check
def ordered(given: Callable[[Trace, int, int], Any]) -> str:
    """Streams, marks and waits, in all the ways in which they may miss each other."""
    hint_stream = tell("A stream runs its kernels in their order.")
    hint_places = tell("Only events between the two places count, and in their order.")
    cases: list[tuple[str, Trace, bool, str]] = [
        (tell("Two kernels of one stream have an order."), [A, A], True, hint_stream),
        (
            tell("Two kernels of two streams without a wait have no order."),
            [A, B],
            False,
            tell("The order of the calls is not the order of the kernels."),
        ),
        (
            tell("A stream that waits for a mark after the first kernel comes later."),
            [A, Record(1, 0), Wait(1, 1, ()), B],
            True,
            tell("A mark of the first kernel's stream, and a wait of the second's."),
        ),
        (
            tell("The mark was set before the first kernel, so it does not cover it."),
            [Record(1, 0), A, Wait(1, 1, ()), B],
            False,
            hint_places,
        ),
        (
            tell("The stream waits only after its kernel was launched."),
            [A, Record(1, 0), B, Wait(1, 1, ())],
            False,
            hint_places,
        ),
        (
            tell("The mark is that of another stream."),
            [A, Record(1, 2), Wait(1, 1, ()), B],
            False,
            tell("Look at the `stream` of a `Record`."),
        ),
        (
            tell("It is another stream that waits."),
            [A, Record(1, 0), Wait(1, 2, ()), B],
            False,
            tell("Look at the `stream` of a `Wait`."),
        ),
        (
            tell("The stream waits for another mark."),
            [A, Record(1, 0), Record(2, 2), Wait(2, 1, ()), B],
            False,
            tell("A `Record` and its `Wait` have the same `event`."),
        ),
        (
            tell("The order may lead through a third stream."),
            [A, Record(1, 0), Wait(1, 2, ()), Record(2, 2), Wait(2, 1, ()), B],
            True,
            tell(
                "A stream that has waited comes after the kernel, and so do its marks."
            ),
        ),
    ]
    for told, trace, right, look in cases:
        kernels = [at for at, event in enumerate(trace) if isinstance(event, Launch)]
        found = plain(called("ordered", given, trace, kernels[0], kernels[1]))
        expect(
            isinstance(found, bool),
            tell("ordered returned {found!r}, and not True or False.", found=found),
            look=look_at_return("ordered", found),
        )
        expect(found is right, told, look)
    # A third kernel behind the second must not matter.
    expect(
        plain(given([A, B, Record(1, 0), Wait(1, 1, ()), B], 0, 1)) is False,
        tell("The stream waits only after its kernel was launched."),
        look=hint_places,
    )
    return tell("Without an order two accesses are a race, if one of them writes.")
