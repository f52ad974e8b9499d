"""The checks of lab 1: sixteen bytes, the bytes on a rank, and what autograd saves."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from shardbook.labs.lessons.returned import called, number
from shardbook.labs.notebook import check, expect
from shardbook.labs.words import tell

__all__ = ["bytes_of_adamw", "bytes_on_a_rank", "saved_bytes"]


@check
def bytes_of_adamw(given: Callable[[int], float]) -> str:
    """Sixteen bytes for each parameter."""
    found = number("bytes_of_adamw", given(1000))
    expect(
        number("bytes_of_adamw", given(2000)) == 2 * found,
        tell("Twice as many parameters should take twice as many bytes."),
        look=tell(
            "Does the function use its argument, or the variable of the model above?"
        ),
    )
    expect(
        found != 4_000,
        tell("4 bytes for each parameter are those of one kind alone."),
        look=tell(
            "The table above has four rows. Each of them takes 4 bytes for each parameter."
        ),
    )
    expect(
        found != 8_000,
        tell("8 bytes for each parameter are only half of what was measured."),
        look=tell(
            "Parameters and gradients are 8 bytes, and so are the two moving averages of AdamW."
        ),
    )
    expect(
        found != 12_000,
        tell("12 bytes for each parameter: one of the four kinds is missing."),
        look=tell(
            "After the backward pass there are gradients, and AdamW keeps two moving averages."
        ),
    )
    expect(
        found != 20_000,
        tell("20 bytes for each parameter count something twice."),
        look=tell(
            "A second copy of the parameters exists in mixed precision only. Here everything is "
            "FP32."
        ),
    )
    expect(
        found == 16_000,
        tell(
            "1,000 parameters take {found:g} bytes here, so {each:g} for each parameter.",
            found=found,
            each=found / 1000,
        ),
        look=tell("Compare that with the last row that the measurement printed."),
    )
    return tell("16 bytes for each parameter: 7.5 billion parameters take 120 GB.")


@check
def bytes_on_a_rank(given: Callable[[int, int, int], float]) -> str:
    """The table of ZeRO's paper."""
    stages = [number("bytes_on_a_rank", given(1000, 4, stage)) for stage in range(4)]
    expect(
        len(set(stages)) > 1,
        tell("Every stage stores the same number of bytes."),
        look=tell("Each stage splits one kind of tensor more than the stage before."),
    )
    expected = {
        0: (
            16_000,
            tell("Stage 0 splits nothing: 2 + 2 + 12 bytes for each parameter."),
        ),
        1: (
            7_000,
            tell("Stage 1 splits the optimizer's 12 bytes. The other 4 stay whole."),
        ),
        2: (
            5_500,
            tell(
                "Stage 2 splits the gradients and still the optimizer's bytes. The parameters "
                "stay whole."
            ),
        ),
        3: (4_000, tell("Stage 3 splits everything, the parameters, too.")),
    }
    for stage, (right, look) in expected.items():
        expect(
            stages[stage] == right,
            tell(
                "At stage {stage}, 1,000 parameters on 4 ranks do not take {found:g} bytes on "
                "each rank.",
                stage=stage,
                found=stages[stage],
            ),
            look=look,
        )
    found = number("bytes_on_a_rank", given(1000, 8, 3))
    expect(
        found == 2_000,
        tell(
            "With 8 ranks at stage 3 a rank stores an eighth, and not {found:g} bytes.",
            found=found,
        ),
        look=tell("Does the function divide by the number of ranks that it is given?"),
    )
    return tell("Stage 3 on 64 ranks stores 1.9 GB of 120 GB on each rank.")


@check
def saved_bytes(
    given: Callable[[Callable[[], Tensor], Iterable[Tensor]], float],
) -> str:
    """Activations, each storage once."""
    weight = nn.Parameter(torch.ones(10, 100))
    x, offset = torch.ones(1, 100), torch.ones(25, requires_grad=True)

    def plain() -> Tensor:
        return (offset.exp()).sum()

    def twice() -> Tensor:
        h = offset.exp()
        return (h * h).sum()

    def through_a_view() -> Tensor:
        # Each product saves `x`, 400 bytes, and a view of the weight, 4,000 bytes.
        x.requires_grad_()
        return (x @ weight.t() + x @ weight.t()).sum()

    found = number("saved_bytes", given(plain, []))
    expect(
        found != 0,
        tell("Nothing was counted, but `exp` saves its result."),
        look=tell("Is `forward()` called inside the block with the hooks?"),
    )
    expect(
        found != 25 and found != 1,
        tell("`exp` of 25 numbers saves 100 bytes, and not {found:g}.", found=found),
        look=tell(
            "A number in FP32 takes 4 bytes: `nbytes()` of the storage counts bytes."
        ),
    )
    expect(
        found == 100,
        tell("`exp` of 25 numbers saves 100 bytes, and not {found:g}.", found=found),
        look=tell("Only what `pack` gets is saved: its result, once."),
    )
    found = number("saved_bytes", given(twice, []))
    expect(
        found == 100,
        tell(
            "`h = x.exp()` and `h * h` save only `h`: 100 bytes, and not {found:g}.",
            found=found,
        ),
        look=tell(
            "`pack` is called for `h` three times. Use the pointer of its storage as a key, so that "
            "it counts once."
        ),
    )
    found = number(
        "saved_bytes", called("saved_bytes", given, through_a_view, [weight])
    )
    expect(
        found != 4_400,
        tell("The bytes of the parameter were counted as well."),
        look=tell(
            "`weight.t()` is another tensor than `weight`, but its storage has the same pointer."
        ),
    )
    expect(
        found == 400,
        tell(
            "`x @ weight.t()` saves the 400 bytes of `x` besides the parameter, and not {found:g}.",
            found=found,
        ),
        look=tell("Leave out the storages of the parameters, and no others."),
    )
    expect(
        number("saved_bytes", given(through_a_view, iter([weight]))) == 400,
        tell("The parameters may be an iterator, which can be read only once."),
        look=tell("Read the parameters once, before the hooks."),
    )
    return tell("Each storage counts once, and the parameters do not count.")
