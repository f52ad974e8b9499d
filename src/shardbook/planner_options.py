r"""# The planner's options

> Which options can be given, and which exclude each other.

[The first chapter](memory.py) is also a command. It plans a number of parameters, or a
model whose shape is given. The paper's table follows `--precision` and `--optimizer`.
The second table shows what this library stores. There the masters are FP32, and [a
policy](policy.py) changes the rest: `--param-dtype` and `--reduce-dtype` are the
policy's dtypes, and `--offload` keeps the masters on the host.
"""

# sidelit: hide
from __future__ import annotations

import argparse
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path

import torch

from shardbook.gpt import Config, parameters
from shardbook.launch import Mistake, Parser
from shardbook.policy import Policy

__all__ = ["parse", "parser"]
# sidelit: show

SHAPE = ("layers", "width", "heads", "context", "vocabulary")
LARGEST, PAPER = 10**18, 7_500_000_000
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, checked. `options.config` is the model's shape, `options.numel` its number of parameters,
    and `options.policy` what the library is told.

    :raises Mistake: an option is unknown, or its value makes no sense
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
    for name, most in {"ranks": 10**6, "layers": 10**4, "batch": 10**6}.items():
        number = getattr(options, name)
        if number is not None and not 1 <= number <= most:
            raise Mistake(f"--{name} is {number}, but it must be from 1 to {most:,}")
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
    """Every option with its default."""
    result = Parser(
        prog="shardbook.memory",
        description="Print what training takes on each rank at every stage of ZeRO.",
        epilog="For a model instead of --params the second table also says what a step takes.",
    )
    add = result.add_argument
    add("--params", type=count, help="number of parameters (default: 7.5e9)")
    add("--ranks", type=int, default=64, help="number of ranks (default: 64)")
    for name in SHAPE:
        default = getattr(Config(), name)
        add(f"--{name}", type=int, help=f"of the book's GPT (default: {default})")
    add("--batch", type=int, help="sequences on a rank in a step (default: 1)")
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
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    return result


def count(text: str) -> int:
    """A number of parameters, also written as 7.5e9.

    >>> count("7.5e9"), count("124_000_000")
    (7500000000, 124000000)
    """
    try:
        # Not `float`, which knows no whole numbers between 2**53 and 2**53 + 2.
        number = Decimal(text)
    except InvalidOperation:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not number.is_finite() or not 1 <= number <= LARGEST:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {LARGEST:.0e}")
    if number % 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number")
    return int(number)


POLICY = {
    "param_dtype": "what modules compute with (default: fp32)",
    "reduce_dtype": "what gradients travel in, by default what modules compute with",
}
