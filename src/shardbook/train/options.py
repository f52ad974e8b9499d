r"""# Parsing and checking the options

> The options are parsed and checked before the run starts, so a wrong value is reported
> within a second.

Suppose a run should write its figures to a folder that does not exist. If this were
detected at the end, hours of training would be lost. So all options are checked first,
and a mistake [is reported in one sentence](command.py). Then [the ranks
meet](ranks.py), and [training begins](loop.py).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from shardbook.command import Mistake, Parser, path
from shardbook.models.gpt import Config
from shardbook.planning.report import named_file
from shardbook.train.option_file import arguments_in
from shardbook.train.option_groups import add_groups
from shardbook.train.ranks import LAUNCH
from shardbook.train.tokens import load
from shardbook.train.tracking import kept

__all__ = ["add_config", "parse", "parser", "read"]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse and check the options. The model's shape becomes `options.config`.

    :param arguments: the arguments; `None` for those of this process
    :raises Mistake: if an option is unknown, or has a wrong value
    """
    options = read(parser(), arguments)
    shape = {name: getattr(options, name) for name in SHAPE}
    if options.tokenizer is not None:
        shape["vocabulary"] = load(options.tokenizer).get_vocab_size()
    try:
        options.config = Config(**shape)
    except ValueError as refusal:
        raise Mistake(str(refusal)) from refusal
    return options


SHAPE = ("layers", "width", "heads", "context")


def read(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """Parse the options of a command line and of the file that it names. The options
    that all programs have are checked.

    :param arguments: the arguments; `None` for those of this process
    :raises Mistake: as `parse` does
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    if options.file is not None:
        # The arguments from the file come first, so that those of the command line
        # override them.
        options = parser.parse_args([*arguments_in(options.file, parser), *given])
    refuse_senseless(options)
    refuse_unwritable(options)
    return options


def parser() -> argparse.ArgumentParser:
    """Make the parser with all options and their defaults."""
    result = Parser(
        prog="shardbook.train",
        description="Train a small GPT on the bytes of a book, or on text of your own, its parameters, "
        "gradients and optimizer state sharded over all ranks as the stage of ZeRO says, and compare what "
        "was sent and stored with the formulas.",
        epilog=f"Start it with: {LAUNCH} --steps 200",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        # Abbreviations are not allowed. `--check` would mean `--checkpoint` today, and
        # become ambiguous when a new option begins with `--check`.
        allow_abbrev=False,
    )
    add_config(result)
    add_groups(result)
    return result


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add the option that names [a file](option_file.py) of options."""
    parser.add_argument(
        "--config",
        type=path,
        metavar="FILE",
        dest="file",
        help="read options from this TOML or YAML file; the command line wins",
    )


# sidelit: depth Options that contradict each other.


def refuse_senseless(options: argparse.Namespace) -> None:
    """Refuse options that would fail only in the middle of a run, although each has a good value.

    :raises Mistake: naming the option
    """
    if options.warmup >= options.steps:
        raise Mistake(
            f"--warmup is {options.warmup}, but the run has only {options.steps} steps"
        )
    if options.mesh is not None and options.stage == 0:
        raise Mistake(
            "--mesh is for stages 1 to 3: in stage 0 each rank has a copy of its own"
        )
    for name in ("ranks", "memory"):
        if getattr(options, name) is not None and not options.plan:
            raise Mistake(f"--{name} is for a plan; add --plan")


def refuse_unwritable(options: argparse.Namespace) -> None:
    """Refuse names that do not stand for a file of this run.

    :raises Mistake: naming the option
    """
    # Rank 0 writes the file, and the folder need not exist on other machines.
    if os.environ.get("RANK", "0") != "0":
        return
    for name in ("json", "jsonl"):
        file = getattr(options, name)
        if file is None:
            continue
        there = named_file(file, f"--{name}")
        if name == "jsonl" and there.exists():
            try:
                kept(file)
            except OSError as error:
                raise Mistake(f"--jsonl {file}: {error.strerror}") from error
    if options.json is not None and options.json == options.jsonl:
        raise Mistake(f"--json and --jsonl both name {options.json}; name two files")
