r"""# Where the bytes go

> Training takes eight times the bytes of the model itself, and ZeRO splits them over the ranks.

Take a model of 7.5 billion parameters in 16-bit numbers. Its file is 15 GB; 1 GB is $10^9$ bytes here. To
train it with Adam in mixed precision takes 120 GB, before a single activation is stored:

| what is stored | bytes for each parameter | 7.5 billion parameters |
|---|---|---|
| the parameters, in 16 bits | 2 | 15 GB |
| their gradients, in 16 bits | 2 | 15 GB |
| the optimizer's own copy of the parameters, in FP32 | 4 | 30 GB |
| Adam's moving average of the gradients, in FP32 | 4 | 30 GB |
| Adam's moving average of their squares, in FP32 | 4 | 30 GB |
| together | 16 | 120 GB |

The optimizer keeps a copy in FP32 because one step changes a weight very little. In 16 bits most of these
changes would be rounded away. The three rows of the optimizer are the *optimizer state*, $K$ bytes for each
parameter: here 12.

**The naive picture.** In plain data parallel training each rank stores all of this and reads its own part of
the data. After every step the ranks agree again. So 64 ranks store the same 120 GB 64 times. More ranks make
the training faster, but they never make room for a larger model.

**ZeRO** lets each of the $N_d$ ranks store an equal part of a thing, instead of everybody all of it
([ZeRO](bib:rajbhandari2020zero)). It has three stages. Each splits one thing more than the stage before:

| stage | what is split | bytes on each rank | 64 ranks |
|---|---|---|---|
| 0 | nothing | $(2 + 2 + K)\,\Psi$ | 120 GB |
| 1 | optimizer state | $(2 + 2)\,\Psi + K\,\Psi / N_d$ | 31.4 GB |
| 2 | gradients, too | $2\,\Psi + (2 + K)\,\Psi / N_d$ | 16.6 GB |
| 3 | parameters, too | $(2 + 2 + K)\,\Psi / N_d$ | 1.9 GB |

**Why stage 1 may split the optimizer state.** Adam treats each element by itself. To update one part of the
parameters a rank needs the state of that part and nothing else. So each rank updates its own part, and then
the ranks gather the results.

**Why stage 2 may split the gradients.** A rank now updates only its part, so it reads only that part of the
gradients. The rest has to be added up for the other ranks, and can then be forgotten.

**Why stage 3 may split the parameters.** A layer needs its parameters while it computes, and a model computes
one layer after the other. So the ranks gather a layer before its use and drop it afterwards.

**What it costs.** In stage 0 the ranks add up their gradients with an all-reduce. That is [a reduce-scatter
and then an all-gather](collectives.py), and together they move $2\,\Psi$ elements. Stages 1 and 2 move
the same: after the reduce-scatter they gather the new parameters instead of the gradients. Stage 3
gathers the parameters twice, for the forward pass and again for the backward pass. So it moves $3\,\Psi$.

This chapter is that table as a program, for any model and any number of ranks:

```sh
python -m shardbook.memory --params 7.5e9 --ranks 64
```

[The planner](planner.py) adds what this library itself stores, to the byte.

:notation $\Psi$: `numel`, the number of parameters
:notation $N_d$: `world_size`, the number of ranks
:notation $K$: `Cost.state`, the bytes of optimizer state for each parameter
"""

# sidelit: hide
from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardbook.launch import Mistake
from shardbook.planner import activations, layouts_of, one_vector, own_bytes, tables
from shardbook.planner_options import parse, parser
from shardbook.policy import Policy
from shardbook.report import write

__all__ = ["Cost", "Row", "cost_of", "main", "parser", "zero_table"]
# sidelit: show


def zero_table(numel: int, world_size: int, cost: Cost) -> list[Row]:
    """The four rows of the table: one for each stage.

    >>> table = zero_table(7_500_000_000, world_size=64, cost=cost_of("bf16", "adamw"))
    >>> [f"{row.total / 1e9:.1f}" for row in table]
    ['120.0', '31.4', '16.6', '1.9']

    A trillion parameters fit, too, if there are enough ranks:

    >>> table = zero_table(10**12, world_size=1024, cost=cost_of("bf16", "adamw"))
    >>> f"{table[3].total / 1e9:.1f}"
    '15.6'
    """
    # A thing is whole up to the stage that splits it, and from there on each rank has a part.
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
    """What a rank stores at one stage.

    :param parameters: bytes of parameters
    :param gradients: bytes of gradients
    :param state: bytes of optimizer state
    :param moved: elements that a rank sends in a step, if there are many ranks. With few it sends less,
        $(N_d-1)/N_d$ of them, because it keeps its own part. With two ranks that is half.
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
    """The bytes that one parameter takes as a number, as a gradient and as optimizer state."""

    parameter: int
    gradient: int
    state: int


def cost_of(precision: str, optimizer: str) -> Cost:
    """What one parameter takes depends on the format and on the optimizer.

    In FP32 the parameters are exact enough for the optimizer to work on them. So there is no second copy,
    and a parameter takes 16 bytes again:

    >>> cost_of("bf16", "adamw"), cost_of("fp32", "adamw")
    (Cost(parameter=2, gradient=2, state=12), Cost(parameter=4, gradient=4, state=8))

    Plain SGD remembers nothing. In 16 bits it needs the copy all the same:

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
    :returns: the exit code, 1 after a mistake of the user
    """
    try:
        options = parse(arguments)
        figures = planned(options)
        if options.json is not None:
            save(options.json, figures)
    except Mistake as mistake:
        print(f"shardbook.memory: {mistake}", file=sys.stderr)
        return 1
    print(tables(figures))
    return 0


def planned(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, under the names that they have in the file."""
    cost, model = cost_of(options.precision, options.optimizer), options.config
    batch, checkpointing = options.batch or 1, options.checkpointing == "on"
    policy, extra = options.policy, None
    if model is None:
        layouts = [one_vector(options.numel, options.ranks, policy)]
    else:
        layouts = layouts_of(model, options.ranks, policy)
        # Under a policy they are not known. In 16 bits activations are smaller, and by
        # how much depends on the model's code. With offload the largest moment of a
        # step is another one.
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


def save(path: Path, figures: dict[str, Any]) -> None:
    """Write the file, or say why that cannot be."""
    if path.is_dir():
        raise Mistake(f"--json {path} is a folder; name a file")
    try:
        write(path, json.dumps(figures, indent=1) + "\n")
    except OSError as error:
        raise Mistake(f"--json {path} cannot be written: {error.strerror}") from error


if __name__ == "__main__":
    sys.exit(main())
