r"""# What rounding does to training

> A term smaller than half the distance to the next number of the format is lost: sums
> stop, weights stand still, gradients become zero.

A processor adds, subtracts, multiplies and divides floating-point numbers as if it knew
the exact result and then took [the nearest number](formats.py#Format.encode) of the
format. A square root is rounded in the same way; an exponential or a sine can have a
slightly larger error. A single rounding is harmless: even in BF16 it changes a normal
number by at most 0.4%. But three effects of many roundings harm training.

**A long sum stops.** If the sum has grown so large that a term is less than half the
distance to the next number of the format, the term is lost, and so are all later terms
of that size. A sum of ones stops at 2048 in FP16 and at 256 in BF16. So sums are kept
in FP32 where it matters: in the units that multiply matrices, in a normalization layer,
in a mean over [the ranks](collectives.py#reduce_scatter_mean). (By default PyTorch lets
a GPU add some partial sums of a 16-bit matrix product in 16 bits;
`torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction` and its FP16 twin
switch that off.)

**A weight stands still.** An optimizer's step changes a weight by a small part of its
size. A BF16 weight of 1 that is to lose 0.001 at each step stays 1 forever. So the
optimizer keeps its own copy of the weights in FP32, the *master weights*, and the model
computes with copies in 16 bits.

**A gradient becomes zero.** Gradients are small numbers, and FP16 has no number between
0 and $2^{-24}$. The table is a snapshot of one run: the gradients of [the small
GPT](gpt.py) after 20 steps, for the parameters and for the outputs of the layers:

| gradients | format | loss times | become zero | subnormal | overflow |
|---|---|---|---|---|---|
| parameters | fp16 | 1 | 0.8% | 33.2% | 0.0% |
| parameters | fp16 | 65536 | 0.1% | 0.1% | 0.0% |
| parameters | bf16 | 1 | 0.0% | 0.0% | 0.0% |
| outputs | fp16 | 1 | 11.2% | 74.1% | 0.0% |
| outputs | fp16 | 65536 | 0.1% | 1.4% | 0.0% |
| outputs | bf16 | 1 | 0.0% | 0.0% | 0.0% |

A subnormal gradient is not lost, but has lost digits. The gradient of each position's
output carries a factor of $1/n$, because the loss is a mean over $n$ positions. Here
$n$ is 512; with a larger batch these gradients are smaller still. If the loss is
multiplied by a large number, all gradients are multiplied by the same number. This is
*loss scaling*, and the rows with 65536 show its effect. The 0.1% that are lost even
then lie below $2^{-41}$. BF16 has the range of FP32 and needs no loss scaling.

This command prints the table. Weights and text follow from seed 0:

```sh
python -m shardbook.precision.rounding
```

:figure: gradient_exponents
:notation $n$: the number of positions in a batch
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor, nn

from shardbook.command import Mistake, Parser, complain, whole
from shardbook.models import corpus, gpt
from shardbook.precision.formats import BF16, FP16, Format

__all__ = ["Census", "census", "running_sum"]


def running_sum(values: Iterable[float], form: Format) -> float:
    """Add numbers as a processor with only this format does: with a rounding after each
    addition.

    >>> from shardbook.precision.formats import FP32
    >>> [running_sum([1.0] * 5000, form) for form in (BF16, FP16, FP32)]
    [256.0, 2048.0, 5000.0]

    At 256 the step of BF16 is 2. The exact sum 257 lies in the middle between 256 and
    258, and the tie goes to the even mantissa, that of 256.

    >>> weight, step = 1.0, -0.001
    >>> [running_sum([weight, *[step] * 500], form) for form in (BF16, FP32)]
    [1.0, 0.5000064373016357]

    Below 1 the step of BF16 is 0.0039. The weight moves only if a single step of the
    optimizer is larger than half of that. FP32 rounds 500 times as well, but the final
    error is 0.0013%.

    :returns: a number of the format; zero for an empty sum
    """
    total = 0.0
    for value in values:
        total = form.decode(form.encode(Fraction(total) + Fraction(value)))
    return total


@dataclass(frozen=True, slots=True)
class Census:
    """Counts of the numbers that a format would damage.

    :param count: the numbers that are not zero
    :param vanished: the numbers that the format rounds to zero
    :param subnormal: the other numbers below the format's smallest normal number
    :param overflowed: the numbers that are too large for the format, or were not finite
        before
    """

    count: int
    vanished: int
    subnormal: int
    overflowed: int


@torch.no_grad()
def census(tensors: Iterable[Tensor], form: Format, scale: float = 1.0) -> Census:
    """Count how a cast to `form` would damage the elements, each multiplied by `scale`
    first.

    The counts show for one moment of a training run whether its gradients fit into a
    format, and which factor makes them fit. Later gradients are often smaller. Zeros
    are left out, because no format changes them: most rows of an embedding have no
    gradient in a batch.

    :param tensors: floating-point tensors of any shapes and dtypes, on any device
    """
    # The overflow limit of FP64 is itself too large for FP64.
    limit = float(form.overflow) if form.bits < 64 else math.inf
    counts = torch.zeros(4, dtype=torch.int64)
    for tensor in tensors:
        # Compute in FP64, so that neither the factor nor the limits are rounded to the
        # tensor's own format.
        size = tensor.double().abs() * scale
        vanished = (tensor != 0) & (size <= float(form.underflow))
        found = (
            tensor != 0,
            vanished,
            (tensor != 0) & ~vanished & (size < form.smallest_normal),
            # This form of the comparison counts NaN as well.
            ~(size < limit),
        )
        counts += torch.stack([mask.sum() for mask in found]).cpu()
    return Census(*counts.tolist())


def gradients(steps: int, batch: int) -> dict[str, list[Tensor]]:
    """Train a small GPT in FP32 for `steps` steps, and return the next gradients of its
    parameters and outputs.
    """
    torch.manual_seed(0)
    model = gpt.GPT(gpt.Config(layers=4, width=64, heads=4, context=64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    reader = corpus.Reader(corpus.read(), context=64, batch=batch)
    for step in range(steps):
        error(model, reader[step]).backward()
        optimizer.step()
        optimizer.zero_grad()
    # One tensor can be the output of several modules; it is counted once.
    outputs: dict[int, Tensor] = {}

    def keep(module: nn.Module, inputs: object, output: Tensor) -> None:
        # Autograd keeps only the gradients of leaves, unless a tensor asks for its own.
        output.retain_grad()
        outputs[id(output)] = output

    for module in model.modules():
        module.register_forward_hook(keep)
    error(model, reader[steps]).backward()
    found = {"parameters": model.parameters(), "outputs": outputs.values()}
    return {
        kind: [tensor.grad for tensor in tensors if tensor.grad is not None]
        for kind, tensors in found.items()
    }


def error(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of a batch."""
    return gpt.loss(model(batch[0]), batch[1])


# sidelit: depth The command that prints the table, and options out of range.


def main(arguments: Sequence[str] | None = None) -> int:
    """Train a small GPT and print what FP16 and BF16 would do to its gradients.

    :param arguments: the options, `sys.argv` if left out
    :returns: [the exit code](command.py)
    """
    parser = Parser(
        prog="shardbook.precision.rounding",
        description="Train a small GPT and count the gradients that 16 bits would lose.",
    )
    parser.add_argument(
        "--steps",
        type=whole(1, 10**6),
        default=20,
        help="before it (default: 20)",
    )
    parser.add_argument(
        "--batch",
        type=whole(1, 1000),
        default=8,
        help="windows of text (default: 8)",
    )
    try:
        options = parser.parse_args(arguments)
    except Mistake as mistake:
        return complain("shardbook.precision.rounding", mistake)
    print("| gradients | format | loss times | become zero | subnormal | overflow |")
    print("|---|---|---|---|---|---|")
    for kind, tensors in gradients(options.steps, options.batch).items():
        for form, scale in ((FP16, 1), (FP16, 2**16), (BF16, 1)):
            found = census(tensors, form, scale)
            parts = (found.vanished, found.subnormal, found.overflowed)
            shares = " | ".join(f"{part / found.count:.1%}" for part in parts)
            print(f"| {kind} | {form.name} | {scale} | {shares} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
