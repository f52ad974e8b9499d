r"""# The options of a training run

> What the command line may say.

The options are checked before anything else happens. What is wrong [is said in one
sentence](command.py). Then [the ranks meet](ranks.py), and [training begins](loop.py).
"""

# sidelit: hide
from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from shardbook.command import Mistake, Parser
from shardbook.models.gpt import Config
from shardbook.train.ranks import LAUNCH

__all__ = ["parse", "parser"]
# sidelit: show


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options, checked, with the model's shape as `options.config`.

    :raises Mistake: if an option is unknown, or its value makes no sense
    """
    options = parser().parse_args(arguments)
    refuse_senseless(options)
    try:
        options.config = Config(
            layers=options.layers,
            width=options.width,
            heads=options.heads,
            context=options.context,
        )
    except ValueError as refusal:
        raise Mistake(str(refusal)) from refusal
    return options


def parser() -> argparse.ArgumentParser:
    """Every option with its default."""
    result = Parser(
        prog="shardbook.train",
        description="Train a small GPT on the bytes of a book, its parameters, gradients and optimizer state "
        "sharded over all ranks as the stage of ZeRO says, and compare what was sent and stored with the "
        "formulas.",
        epilog=f"Start it with: {LAUNCH} --steps 200",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = result.add_argument
    add("--steps", type=int, default=200, help="steps of the optimizer, at least 2")
    add("--layers", type=int, default=4, help="blocks of the GPT")
    add(
        "--width",
        type=int,
        default=128,
        help="values for each position, a multiple of --heads",
    )
    add("--heads", type=int, default=4, help="attention heads in a block")
    add("--context", type=int, default=128, help="bytes that the model sees at once")
    add(
        "--batch",
        type=int,
        default=8,
        help="windows of text for one rank in one micro-batch",
    )
    add(
        "--accumulate",
        type=int,
        default=1,
        help="micro-batches whose gradients add up to one step",
    )
    add(
        "--lr",
        type=float,
        default=1e-3,
        help="learning rate; sgd wants a larger one, such as 0.5",
    )
    add(
        "--optimizer",
        choices=["adamw", "sgd"],
        default="adamw",
        help="sgd is plain, without momentum",
    )
    add(
        "--stage",
        type=int,
        choices=[0, 1, 2, 3],
        default=3,
        help="what is split over the ranks: 0 nothing, 1 the optimizer's state, 2 the gradients too, "
        "3 the parameters too",
    )
    add(
        "--precision",
        choices=["fp32", "bf16", "fp16"],
        default="fp32",
        help="the format that modules compute with; the optimizer's stays fp32, and fp16 scales the loss",
    )
    add(
        "--checkpoint",
        choices=["none", "reentrant", "non-reentrant"],
        default="none",
        help="how the blocks' activations are computed again in the backward pass",
    )
    add(
        "--offload",
        action="store_true",
        help="keep parameters, gradients and the optimizer's state in the host's memory",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="decides the first weights and the order of the text",
    )
    add(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="auto: a GPU for each rank, else the CPU",
    )
    add(
        "--backend",
        choices=["auto", "gloo", "nccl"],
        default="auto",
        help="gloo lets ranks share one GPU",
    )
    add(
        "--json",
        type=Path,
        metavar="FILE",
        default=None,
        help="also write the table's figures to this file",
    )
    return result


# sidelit: depth Values that make no sense, and files that could not be written.


def refuse_senseless(options: argparse.Namespace) -> None:
    """Refuse options that would fail only in the middle of a run.

    :raises Mistake: naming the option
    """
    for name in ("batch", "accumulate"):
        if getattr(options, name) < 1:
            raise Mistake(
                f"--{name} is {getattr(options, name)}, but it must be at least 1"
            )
    if options.steps < 2:
        raise Mistake(
            f"--steps is {options.steps}, but it must be at least 2: the first makes the optimizer's state, "
            "and the last is measured"
        )
    if not 0 < options.lr < float("inf"):
        raise Mistake(f"--lr is {options.lr}, but it must be a positive number")
    if not 0 <= options.seed < 2**63:
        raise Mistake(f"--seed is {options.seed}, but it must be from 0 to 2**63 - 1")
    # Rank 0 writes the file, and the folder need not exist on other machines.
    if options.json is not None and os.environ.get("RANK", "0") == "0":
        if options.json.is_dir():
            raise Mistake(f"--json {options.json} is a folder; name a file")
        if not options.json.parent.is_dir():
            raise Mistake(
                f"--json {options.json}: there is no folder {options.json.parent}; make it first"
            )
