r"""# The option groups of the training program

> Seven groups of options set the model, the text, the training, the techniques, the
> machine, the checkpoints and the output.

Each option has a default that works, so your first run needs no options. The group
*techniques* turns on the subjects of this book: ZeRO stages, mixed precision,
checkpointing, offload and compiling, one word each. The group *machine* is [in the
chapter on ranks](ranks.py#machine), and *saving* is [in the chapter on
resuming](saving.py#saving). [All groups together](options.py) form the command line.
Each option can also be given [in a file](option_file.py).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardbook.train.machines import shape
from shardbook.train.not_finite import not_finite
from shardbook.train.ranks import machine
from shardbook.train.saving import saving
from shardbook.train.tokens import CACHE

__all__ = ["add_groups"]

# sidelit: hide
Add = Callable[..., Any]
# sidelit: show


def add_groups(parser: argparse.ArgumentParser) -> None:
    """Give a parser every option of a run."""
    for add_options in (model, text, training, techniques, machine, saving, writing):
        group = parser.add_argument_group(add_options.__name__)
        add_options(group.add_argument)


def model(add: Add) -> None:
    """The shape of [the GPT](gpt.py#Config)."""
    add("--layers", type=int, default=4, help="blocks of the GPT")
    add(
        "--width",
        type=int,
        default=128,
        help="values for each position, a multiple of --heads",
    )
    add("--heads", type=int, default=4, help="attention heads in a block")
    add("--context", type=int, default=128, help="tokens that the model sees at once")


def text(add: Add) -> None:
    """The options for [the training text](text.py). By default it is a book."""
    add(
        "--data",
        "--text",
        type=Path,
        metavar="PATH",
        help="a file, or a folder of files, to train on; left out: a book",
    )
    add(
        "--tokenizer",
        type=Path,
        metavar="FILE",
        help="a file of the tokenizers library; left out: a byte is a token",
    )
    add(
        "--cache",
        type=Path,
        metavar="FOLDER",
        default=CACHE,
        help="where text is kept that a tokenizer has encoded",
    )
    add(
        "--held-out",
        type=float,
        metavar="PART",
        default=0.1,
        help="the end of the text that is not trained on, as a part of the whole",
    )
    add(
        "--seed",
        type=int,
        default=0,
        help="decides the first weights and the order of the text",
    )


def training(add: Add) -> None:
    """The length of the run, the size of its steps, the optimizer and the learning rate."""
    add("--steps", type=int, default=200, help="steps of the optimizer, at least 2")
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
        "--optimizer",
        choices=["adamw", "sgd"],
        default="adamw",
        help="sgd is plain, without momentum",
    )
    add(
        "--lr",
        type=float,
        default=1e-3,
        help="learning rate; sgd wants a larger one, such as 0.5",
    )
    add(
        "--schedule",
        choices=["constant", "cosine"],
        default="constant",
        help="how the learning rate goes on after the warm-up",
    )
    add("--warmup", type=int, default=0, help="steps in which the learning rate grows")
    add(
        "--lr-end",
        type=float,
        metavar="PART",
        default=0.1,
        help="the part of --lr that the last step has, with the schedule cosine",
    )
    add(
        "--clip",
        type=float,
        metavar="NORM",
        help="the largest norm of the gradient; left out: none is clipped",
    )
    not_finite(add)
    add(
        "--evaluate-every",
        type=int,
        metavar="STEPS",
        help="how often to compute the loss on the unseen text; left out: at the end",
    )
    add(
        "--evaluate-batches",
        type=int,
        metavar="NUMBER",
        help="batches of unseen text in an evaluation; left out: all there are",
    )


def techniques(add: Add) -> None:
    """The ZeRO stage, the mesh, precision, checkpointing, offload and compiling."""
    add(
        "--stage",
        type=int,
        choices=[0, 1, 2, 3],
        default=3,
        help="what is split over the ranks: 0 nothing, 1 the optimizer's state, 2 the gradients too, "
        "3 the parameters too",
    )
    add(
        "--mesh",
        type=shape,
        metavar="COPIESxRANKS",
        help="copies of the model, and how many ranks share each: 2x8 for two machines of 8 ranks; left "
        "out: all ranks share one",
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
        action=argparse.BooleanOptionalAction,
        default=False,
        help="keep parameters, gradients and the optimizer's state in the host's memory",
    )
    add(
        "--compile",
        choices=["none", "inductor", "aot_eager", "eager"],
        nargs="?",
        const="inductor",
        default="none",
        help="compile each block with this backend of torch.compile; without a word: inductor",
    )


def writing(add: Add) -> None:
    """The output of a run: a written sample, figures, a trace, and a memory snapshot."""
    add(
        "--sample",
        type=int,
        metavar="TOKENS",
        default=120,
        help="tokens of text that the trained model writes at the end",
    )
    add("--prompt", default="The ", metavar="TEXT", help="what that text goes on from")
    add(
        "--json",
        type=Path,
        metavar="FILE",
        help="also write the table's figures to this file",
    )
    add(
        "--jsonl",
        type=Path,
        metavar="FILE",
        help="append a line of JSON to this file in each step",
    )
    add(
        "--track",
        choices=["none", "labml"],
        default="none",
        help="follow the run with labml, if it is installed; otherwise use --jsonl",
    )
    add(
        "--profile",
        type=Path,
        metavar="FOLDER",
        help="write a trace of one step of each rank into this folder",
    )
    add(
        "--memory-snapshot",
        type=Path,
        metavar="FOLDER",
        help="write what each rank stored at the peak of the last step into this folder",
    )
