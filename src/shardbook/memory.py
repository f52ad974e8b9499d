r"""# Where the bytes go

> Training takes eight times the bytes of the model itself, and ZeRO splits them over the ranks.

Take a model of 7.5 billion parameters in 16-bit numbers. Its file is 15 GB, where 1 GB
is $10^9$ bytes. To train it with Adam in mixed precision takes 120 GB, before a single
activation is stored:

| stored | bytes for each parameter | 7.5 billion parameters |
|---|---|---|
| the parameters, in 16 bits | 2 | 15 GB |
| their gradients, in 16 bits | 2 | 15 GB |
| the optimizer's own copy of the parameters, in FP32 | 4 | 30 GB |
| Adam's moving average of the gradients, in FP32 | 4 | 30 GB |
| Adam's moving average of their squares, in FP32 | 4 | 30 GB |
| together | 16 | 120 GB |

The optimizer keeps a copy in FP32 because one step changes a weight very little. In 16
bits most of these changes would be rounded away. The last three rows are the *optimizer
state*, $K$ bytes for each parameter: here 12. Parameters, gradients and optimizer state
together are the *model states*.

**Plain data parallel training.** Each rank stores all of this, and reads its own part
of the data. After every step the ranks have the same parameters again. So 64 ranks
store the same 120 GB 64 times. More ranks make the training faster, but they never make
room for a larger model.

**ZeRO** splits these tensors: each of the $N_d$ ranks stores an equal part of them
([ZeRO](bib:rajbhandari2020zero)). The paper has three stages, each of which splits one
kind of tensor more than the stage before. DeepSpeed calls plain data parallel training
stage 0, and so does this book:

| stage | split | bytes on each rank | 64 ranks |
|---|---|---|---|
| 0 | nothing | $(2 + 2 + K)\,\Psi$ | 120 GB |
| 1 | optimizer state | $(2 + 2)\,\Psi + K\,\Psi / N_d$ | 31.4 GB |
| 2 | gradients, too | $2\,\Psi + (2 + K)\,\Psi / N_d$ | 16.6 GB |
| 3 | parameters, too | $(2 + 2 + K)\,\Psi / N_d$ | 1.9 GB |

The paper states the gains as 4 times, 8 times and $N_d$ times. With $K = 12$ the first
two are limits for many ranks: stage 1 always stores more than a quarter of stage 0, and
stage 2 more than an eighth. With 64 ranks the gains are 3.8 and 7.2 times, and with 8
ranks 2.9 and 4.3 times. Only stage 3 has no such limit, and stores $1/N_d$ of stage 0,
as long as [one unit](unit.py) fits on each rank.

**Why stage 1 may split the optimizer state.** Adam treats each element independently.
To update one part of the parameters a rank needs the state of that part and no other.
So each rank updates its own part, and then the ranks gather the results.

**Why stage 2 may split the gradients.** Each rank updates only its part, so it reads
only that part of the gradients. The other parts are added up for the other ranks, and
are then freed.

**Why stage 3 may split the parameters.** A layer needs its parameters only while it
computes, and a model computes one layer after the other. So the ranks gather a layer's
parameters before each use and free them afterwards.

**Costs.** In stage 0 the ranks add up their gradients with an all-reduce. That is [a
reduce-scatter and then an all-gather](collectives.py), and together they move $2\,\Psi$
elements. Stages 1 and 2 move the same number: after the reduce-scatter they gather the
new parameters instead of the gradients. Stage 3 gathers the parameters twice, for the
forward pass and again for the backward pass. So it moves $3\,\Psi$.

This chapter is that table as a program, for any model and any number of ranks:

```sh
python -m shardbook.memory --params 7.5e9 --ranks 64
```

[The planner](planner.py) adds what this library itself stores, to the byte.

:figure: four_stages
:notation $\Psi$: `numel`, the number of parameters
:notation $N_d$: `world_size`, the number of ranks
:notation $K$: `Cost.state`, the bytes of optimizer state for each parameter
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from shardbook.command import Mistake, Parser, complain, whole, writable
from shardbook.models.gpt import Config, parameters
from shardbook.planning.planner import (
    activations,
    layouts_of,
    one_vector,
    own_bytes,
    tables,
)
from shardbook.planning.report import write_figures
from shardbook.zero.policy import Policy

__all__ = ["Cost", "Row", "cost_of", "main", "parser", "zero_table"]


def zero_table(numel: int, world_size: int, cost: Cost) -> list[Row]:
    """The four rows of the table, one for each stage.

    >>> table = zero_table(7_500_000_000, world_size=64, cost=cost_of("bf16", "adamw"))
    >>> [f"{row.total / 1e9:.1f}" for row in table]
    ['120.0', '31.4', '16.6', '1.9']

    By what factor is that less? With more ranks stages 1 and 2 come near their limits:

    >>> for ranks in (8, 64, 1024):
    ...     whole, *rest = zero_table(10**9, ranks, cost_of("bf16", "adamw"))
    ...     print(ranks, [round(whole.total / row.total, 1) for row in rest])
    8 [2.9, 4.3, 8.0]
    64 [3.8, 7.2, 64.0]
    1024 [4.0, 7.9, 1024.0]

    A trillion parameters fit, too, if there are enough ranks:

    >>> table = zero_table(10**12, world_size=1024, cost=cost_of("bf16", "adamw"))
    >>> f"{table[3].total / 1e9:.1f}"
    '15.6'
    """
    # A kind of tensor is whole below the stage that splits it. From that stage on each
    # rank has a part.
    part = numel / world_size
    return [
        Row(
            stage=stage,
            parameters=cost.parameter * (part if stage >= 3 else numel),
            gradients=cost.gradient * (part if stage >= 2 else numel),
            state=cost.state * (part if stage >= 1 else numel),
            moved=(3 if stage == 3 else 2) * numel,
        )
        for stage in range(4)
    ]


@dataclass(frozen=True, slots=True)
class Row:
    """The bytes that a rank stores at one stage.

    :param parameters: bytes of parameters
    :param gradients: bytes of gradients
    :param state: bytes of optimizer state
    :param moved: elements that a rank sends in a step, if there are many ranks. With
        few ranks it sends less, $(N_d-1)/N_d$ of them, because it keeps its own part.
        With two ranks that is half
    """

    stage: int
    parameters: float
    gradients: float
    state: float
    moved: int

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.state


@dataclass(frozen=True, slots=True)
class Cost:
    """The bytes of one parameter as a number, as a gradient and as optimizer state."""

    parameter: int
    gradient: int
    state: int


def cost_of(precision: str, optimizer: str) -> Cost:
    """The bytes of one parameter, which depend on the dtype and on the optimizer.

    In FP32 the parameters are exact enough for the optimizer. So there is no second
    copy, and a parameter takes 16 bytes again:

    >>> cost_of("bf16", "adamw"), cost_of("fp32", "adamw")
    (Cost(parameter=2, gradient=2, state=12), Cost(parameter=4, gradient=4, state=8))

    Plain SGD has no moments. But in 16 bits it needs the FP32 copy all the same:

    >>> cost_of("fp16", "sgd"), cost_of("fp32", "sgd")
    (Cost(parameter=2, gradient=2, state=4), Cost(parameter=4, gradient=4, state=0))

    :param precision: `"fp32"`, `"fp16"` or `"bf16"`
    :param optimizer: `"adamw"`, or `"sgd"` without momentum
    """
    size = {"fp32": 4, "fp16": 2, "bf16": 2}[precision]
    copy = 0 if precision == "fp32" else 4
    moments = {"adamw": 2 * 4, "sgd": 0}[optimizer]
    return Cost(size, size, copy + moments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both tables.

    :param arguments: the options, `sys.argv` if left out
    :returns: [the exit code](command.py)
    """
    try:
        options = parse(arguments)
        figures = planned(options)
        if options.json is not None:
            save(options.json, figures)
    except Mistake as mistake:
        return complain("shardbook.memory", mistake)
    print(tables(figures))
    return 0


def planned(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, under their names in the JSON file."""
    cost, model = cost_of(options.precision, options.optimizer), options.config
    batch, checkpointing = options.batch or 1, options.checkpointing == "on"
    policy, extra = options.policy, None
    if model is None:
        layouts = [one_vector(options.numel, options.ranks, policy)]
    else:
        layouts = layouts_of(model, options.ranks, policy)
        # Under a policy the activations are not known. In 16 bits they are smaller, by
        # an amount that depends on the model's code. With offload the peak of a step is
        # at another moment.
        if policy.param_dtype is None and not policy.offload:
            extra = activations(model, batch, checkpointing)
    rows = zero_table(options.numel, options.ranks, cost)
    own = [
        own_bytes(layouts, stage, options.optimizer, extra, policy)
        for stage in range(4)
    ]
    return {
        "parameters": options.numel,
        "ranks": options.ranks,
        "optimizer": options.optimizer,
        "precision": options.precision,
        "policy": repr(policy) if policy != Policy() else None,
        "bytes_per_parameter": asdict(cost),
        "model": model and asdict(model),
        "batch": model and batch,
        "checkpointing": model and checkpointing,
        "zero": [{**asdict(row), "total": row.total} for row in rows],
        "own": [{**asdict(row), "steady": row.steady, "step": row.step} for row in own],
    }


# sidelit: depth The command line, and what cannot be planned or written.


def save(path: Path, figures: dict[str, Any]) -> None:
    """Write the file, or raise the reason why it cannot be written."""
    write_figures(path, figures)


SHAPE = {
    "layers": 10**4,
    "width": 10**9,
    "heads": 10**9,
    "context": 10**9,
    "vocabulary": 10**9,
}
LARGEST, PAPER = 10**18, 7_500_000_000
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
POLICY = {
    "param_dtype": "what modules compute with (default: fp32)",
    "reduce_dtype": "what gradients travel in, by default what modules compute with",
}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, checked.

    `options.config` is the model's shape, `options.numel` its number of parameters, and
    `options.policy` the library's policy.

    :raises Mistake: if an option is unknown, or its value makes no sense
    """
    options = parser().parse_args(arguments)
    given = {name: getattr(options, name) for name in SHAPE}
    shape = {name: value for name, value in given.items() if value is not None}
    if shape and options.params is not None:
        raise Mistake(
            f"--params and --{next(iter(shape))} exclude each other; "
            "give a number of parameters or the shape of a model"
        )
    for name in ("batch", "checkpointing"):
        if getattr(options, name) is not None and not shape:
            raise Mistake(f"--{name} needs a model; give --layers, --width, --heads")
    try:
        options.config = Config(**shape) if shape else None
    except ValueError as refusal:
        raise Mistake(str(refusal)) from refusal
    options.policy = Policy(
        param_dtype=DTYPES.get(options.param_dtype),
        reduce_dtype=DTYPES.get(options.reduce_dtype),
        offload=options.offload,
    )
    options.numel = parameters(options.config) if shape else options.params or PAPER
    if options.numel > LARGEST:
        raise Mistake(f"{options.numel:,} parameters are more than {LARGEST:,}")
    return options


def parser() -> argparse.ArgumentParser:
    """Every option with its default.

    `--precision` and `--optimizer` are for the paper's table. The second table shows
    the bytes that this library stores. There the masters are FP32, and [a
    policy](policy.py) changes the rest: `--param-dtype` and `--reduce-dtype` are the
    policy's dtypes, and `--offload` keeps the masters on the host.
    """
    result = Parser(
        prog="shardbook.memory",
        description="Print what training takes on each rank at every stage of ZeRO.",
        epilog="For a model instead of --params the second table also says what a step takes.",
    )
    add = result.add_argument
    add("--params", type=count, help="number of parameters (default: 7.5e9)")
    add(
        "--ranks",
        type=whole(1, 10**6),
        default=64,
        help="number of ranks (default: 64)",
    )
    for name, most in SHAPE.items():
        default = getattr(Config(), name)
        add(
            f"--{name}",
            type=whole(1, most),
            help=f"of the book's GPT (default: {default})",
        )
    add(
        "--batch",
        type=whole(1, 10**6),
        help="sequences on a rank in a step (default: 1)",
    )
    add(
        "--checkpointing",
        choices=["on", "off"],
        nargs="?",
        const="on",
        help="let the backward pass compute each block's activations again (default: off)",
    )
    add(
        "--precision",
        choices=["bf16", "fp16", "fp32"],
        default="bf16",
        help="for the paper's table; in 16 bits the optimizer keeps a copy in FP32 (default: bf16)",
    )
    add(
        "--optimizer",
        choices=["adamw", "sgd"],
        default="adamw",
        help="sgd is plain, without momentum (default: adamw)",
    )
    for name, what in POLICY.items():
        add(f"--{name.replace('_', '-')}", choices=[*DTYPES], help=what)
    add("--offload", action="store_true", help="keep the masters on the host")
    add(
        "--json",
        type=writable,
        metavar="FILE",
        help="also write the figures to this file",
    )
    return result


def count(text: str) -> int:
    """A number of parameters, which may be written as 7.5e9.

    >>> count("7.5e9"), count("124_000_000")
    (7500000000, 124000000)
    """
    # Not `float`, which knows no whole numbers between 2**53 and 2**53 + 2.
    return whole(1, LARGEST)(text)


if __name__ == "__main__":
    sys.exit(main())
