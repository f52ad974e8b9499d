r"""# The options of fine-tuning

> Three groups of options set the model, the trained parameters and the result. The
> others are those of training.

A fine-tuning run has most [options of a training
run](options.py#module/the-option-groups-of-the): the text, the steps, the ZeRO stage,
precision, checkpoints and output. It has three groups of its own. `--model pythia-1b`
names the pretrained model, `--train biases` chooses the trained parameters, and `--out
tuned` names the folder of the result.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from shardbook.command import (
    TRIAL,
    Mistake,
    Parser,
    folder_to_write,
    path,
    phrase,
    whole,
)
from shardbook.models.gpt import Config
from shardbook.train.options import (
    LAYERS,
    SIZE,
    add_config,
    read,
    techniques,
    text,
    training,
    writing,
)
from shardbook.train.ranks import machine
from shardbook.train.saving import saving

__all__ = ["LAUNCH", "parse", "parser"]

# sidelit: hide
Add = Callable[..., Any]
# sidelit: show

LAUNCH = "torchrun --standalone --nproc-per-node 2 -m shardbook.finetune_neox"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the options.

    :param arguments: the arguments; `None` for those of this process
    :raises Mistake: if an option is unknown, or has a wrong value
    """
    options = read(parser(), arguments)
    refuse_nonsense(options)
    refuse_full_folder(options)
    if options.tokenizer is None and options.model is not None:
        # Most folders contain the tokenizer with which the model was trained.
        tokenizer = options.model / "tokenizer.json"
        options.tokenizer = tokenizer if tokenizer.is_file() else None
    return options


def parser() -> argparse.ArgumentParser:
    """Make the parser with all options and their defaults."""
    result = Parser(
        prog="shardbook.finetune_neox",
        description="Fine-tune a GPT-NeoX, or any other causal language model that the transformers library "
        "has a class for, sharded over all ranks. No rank ever holds the whole model. Without --model a "
        "small random GPT-NeoX is trained, which runs anywhere.",
        epilog=f"Start it with: {LAUNCH} --model FOLDER --out FOLDER",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add_config(result)
    own = (model, trained, result_folder)
    shared = (text, training, techniques, machine, saving, writing)
    for add_options in (*own, *shared):
        name = add_options.__name__.removesuffix("_folder")
        add_options(result.add_argument_group(name).add_argument)
    result.set_defaults(lr=3e-3)
    return result


def model(add: Add) -> None:
    """The options for [the pretrained model](pretrained.py)."""
    add(
        "--model",
        type=path,
        metavar="FOLDER",
        help="config.json and safetensors files, as from_pretrained opens them; left out: random weights",
    )
    add("--layers", type=LAYERS, help="blocks of a random model; left out: 4")
    add(
        "--width",
        type=SIZE,
        help="values for each position in a random model; left out: 128",
    )
    add(
        "--heads",
        type=SIZE,
        help="attention heads in a block of a random model; left out: 4",
    )
    add("--context", type=SIZE, default=128, help="tokens that the model sees at once")
    add(
        "--units",
        type=phrase,
        metavar="CLASS",
        help="the class of the model's blocks; left out: the one that the library names",
    )


def trained(add: Add) -> None:
    """The options for [the trained parameters](tuned_folder.py#module/training-a-subset-of-the)."""
    add(
        "--train",
        type=phrase,
        metavar="PATTERN",
        default="biases",
        help="biases, all, lora, or a regular expression for the names of parameters",
    )
    add(
        "--lora-rank",
        type=whole(1, 10**4),
        metavar="NUMBER",
        default=8,
        help="columns of a LoRA matrix",
    )
    add(
        "--lora-targets",
        type=phrase,
        metavar="NAMES",
        help="the layers that get LoRA matrices, with commas between; left out: those that peft names",
    )


def result_folder(add: Add) -> None:
    """The options for [the result](tuned_folder.py)."""
    add(
        "--out",
        type=folder_to_write,
        metavar="FOLDER",
        help="write the trained model here, for from_pretrained; left out: it is not kept",
    )
    add(
        "--replace",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="replace what is in the folder of --out",
    )


# sidelit: depth Values that make no sense, and a folder that is not empty.


def refuse_nonsense(options: argparse.Namespace) -> None:
    """Refuse values that would fail later, or would be ignored.

    :raises Mistake: naming the option
    """
    for name in SHAPE:
        if getattr(options, name) is not None and options.model is not None:
            raise Mistake(
                f"--{name} is for a random model; leave it out, or leave out --model"
            )
    try:
        Config(width=options.width or 128, heads=options.heads or 4)
    except ValueError as refusal:
        raise Mistake(str(refusal)) from refusal
    if options.lora_targets is not None and options.train != "lora":
        raise Mistake("--lora-targets is for LoRA; add --train lora")
    if options.train == "lora" and options.out is not None and options.model is None:
        raise Mistake(
            "--train lora writes matrices that belong to a model in a folder; name it with --model, or "
            "leave out --out"
        )
    if options.mesh is not None:
        raise Mistake(
            "--mesh is for shardbook.train; in fine-tuning all ranks share one copy of the model"
        )
    if options.train not in WORDS:
        try:
            re.compile(options.train)
        # A pattern may also be nested too deeply, or repeat a part too often.
        except (re.error, RecursionError, OverflowError) as error:
            raise Mistake(
                f"--train {options.train} is no regular expression ({error}); write one, or one of "
                + ", ".join(WORDS)
            ) from error


SHAPE = ("layers", "width", "heads")
WORDS = ("biases", "all", "lora")


def refuse_full_folder(options: argparse.Namespace) -> None:
    """Refuse to write the result over other files. Every rank writes a part of the
    result, so every rank checks the folder.

    :raises Mistake: naming the folder
    """
    out: Path | None = options.out
    if out is None:
        return
    if options.model is not None and out.resolve() == options.model.resolve():
        raise Mistake(f"--out {out} is the folder of --model; name another one")
    found = [] if options.replace or not out.is_dir() else out.iterdir()
    if any(not each.name.startswith(TRIAL) for each in found):
        raise Mistake(
            f"--out {out} is not empty; name another folder, or add --replace"
        )
