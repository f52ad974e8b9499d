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
from typing import Any

from shardbook.command import folder_to_write, path, phrase, real, whole, writable
from shardbook.train.machines import shape
from shardbook.train.not_finite import not_finite
from shardbook.train.ranks import machine
from shardbook.train.saving import saving
from shardbook.train.tokens import CACHE

__all__ = ["add_groups"]

# sidelit: hide
Add = Callable[..., Any]
# sidelit: show

# The deepest transformers that were published have a thousand layers. A size is limited
# only so that all numbers of bytes stay countable; whether there is memory for a model
# [is checked](plan.py#refuse_too_large) before it is made.
LAYERS, SIZE, TIMES = whole(1, 1000), whole(1, 10**6), 10**12


def add_groups(parser: argparse.ArgumentParser) -> None:
    """Give a parser every option of a run."""
    for add_options in (model, text, training, techniques, machine, saving, writing):
        group = parser.add_argument_group(add_options.__name__)
        add_options(group.add_argument)


def model(add: Add) -> None:
    """The shape of [the GPT](gpt.py#Config)."""
    add("--layers", type=LAYERS, default=4, help="blocks of the GPT")
    add(
        "--width",
        type=SIZE,
        default=128,
        help="values for each position, a multiple of --heads",
    )
    add("--heads", type=SIZE, default=4, help="attention heads in a block")
    add("--context", type=SIZE, default=128, help="tokens that the model sees at once")


def text(add: Add) -> None:
    """The options for [the training text](text.py). By default it is a book."""
    add(
        "--data",
        "--text",
        type=path,
        metavar="PATH",
        help="a file, or a folder of files, to train on; left out: a book",
    )
    add(
        "--tokenizer",
        type=path,
        metavar="FILE",
        help="a file of the tokenizers library; left out: a byte is a token",
    )
    add(
        "--cache",
        type=path,
        metavar="FOLDER",
        default=CACHE,
        help="where text is kept that a tokenizer has encoded",
    )
    add(
        "--held-out",
        type=real(1e-6, 0.999999),
        metavar="PART",
        default=0.1,
        help="the end of the text that is not trained on, as a part of the whole",
    )
    add(
        "--seed",
        # The random generators take 64 bits, and each epoch of the text has a seed of its own.
        type=whole(0, 10**12),
        default=0,
        help="decides the first weights and the order of the text",
    )


def training(add: Add) -> None:
    """The length of the run, the size of its steps, the optimizer and the learning rate."""
    add(
        "--steps",
        type=whole(2, TIMES),
        default=200,
        help="steps of the optimizer, at least 2",
    )
    add(
        "--batch",
        type=SIZE,
        default=8,
        help="windows of text for one rank in one micro-batch",
    )
    add(
        "--accumulate",
        type=SIZE,
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
        # A step of AdamW divides it by a tenth, and FP32 ends at 3e38.
        type=real(1e-30, 1e30),
        default=1e-3,
        help="learning rate; sgd wants a larger one, such as 0.5",
    )
    add(
        "--schedule",
        choices=["constant", "cosine"],
        default="constant",
        help="how the learning rate goes on after the warm-up",
    )
    add(
        "--warmup",
        type=whole(0, TIMES),
        default=0,
        help="steps in which the learning rate grows",
    )
    add(
        "--lr-end",
        type=real(0, 1),
        metavar="PART",
        default=0.1,
        help="the part of --lr that the last step has, with the schedule cosine",
    )
    add(
        "--clip",
        type=real(1e-30, 1e30),
        metavar="NORM",
        help="the largest norm of the gradient; left out: none is clipped",
    )
    not_finite(add)
    add(
        "--evaluate-every",
        type=whole(1, TIMES),
        metavar="STEPS",
        help="how often to compute the loss on the unseen text; left out: at the end",
    )
    add(
        "--evaluate-batches",
        type=whole(1, TIMES),
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
        type=whole(0, 10**6),
        metavar="TOKENS",
        default=120,
        help="tokens of text that the trained model writes at the end",
    )
    add(
        "--prompt",
        type=phrase,
        default="The ",
        metavar="TEXT",
        help="what that text goes on from",
    )
    add(
        "--json",
        type=writable,
        metavar="FILE",
        help="also write the table's figures to this file",
    )
    add(
        "--jsonl",
        type=writable,
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
        type=folder_to_write,
        metavar="FOLDER",
        help="write a trace of one step of each rank into this folder",
    )
    add(
        "--memory-snapshot",
        type=folder_to_write,
        metavar="FOLDER",
        help="write what each rank stored at the peak of the last step into this folder",
    )
