r"""# Parsing and checking the options

> The options are parsed and checked before the run starts, so a wrong value is reported
> within a second.

Suppose a run should write its figures to a folder that does not exist. If this were
detected at the end, hours of training would be lost. So all options are checked first,
and a mistake [is reported in one sentence](command.py). Then [the ranks
meet](ranks.py), and [training begins](loop.py).

The options form [seven groups](#module/the-option-groups-of-the), and each option has a
default. You can also write them into [a
file](#module/options-in-a-configuration-file), whose values are checked in the same
way.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from reprlib import repr as repr_of
from typing import Any

from shardbook.command import (
    Mistake,
    Parser,
    folder_to_write,
    path,
    phrase,
    real,
    whole,
    writable,
)
from shardbook.models.gpt import Config
from shardbook.planning.report import named_file
from shardbook.train.not_finite import not_finite
from shardbook.train.ranks import LAUNCH, machine, shape
from shardbook.train.saving import saving
from shardbook.train.text import CACHE, load
from shardbook.train.tracking import kept

__all__ = ["add_config", "add_groups", "parse", "parser", "read"]


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
    """Add the option that names [a file](options.py#module/options-in-a-configuration-file) of options."""
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


# sidelit: core


# ## The option groups of the training program
#
# > Seven groups of options set the model, the text, the training, the techniques, the
# > machine, the checkpoints and the output.
#
# Each option has a default that works, so your first run needs no options. The group
# *techniques* turns on the subjects of this book: ZeRO stages, mixed precision,
# checkpointing, offload and compiling, one word each. The group *machine* is [in the
# chapter on ranks](ranks.py#machine), and *saving* is [in the chapter on
# resuming](saving.py#saving). [All groups together](options.py) form the command line.
# Each option can also be given [in a file](options.py#module/options-in-a-configuration-file).


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
        help="how often to compute the loss on the held-out text; left out: at the end",
    )
    add(
        "--evaluate-batches",
        type=whole(1, TIMES),
        metavar="NUMBER",
        help="batches of held-out text in an evaluation; left out: all there are",
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


# ## Options in a configuration file
#
# > `--config` reads the options of a run from a TOML or YAML file, and the command line
# > overrides the file.
#
# ```toml
# [model]
# layers = 12
# width = 768
#
# [training]
# steps = 5000
# schedule = "cosine"
# warmup = 200
# ```
#
# `--config run.toml` reads this file. Each key is an option without its dashes. A table is
# only a heading, so you can choose its name. A file whose name ends in `.yaml` or `.yml`
# is read as YAML, for which pyyaml has to be installed. A relative path in the file
# starts at the folder in which you start the program, as on the command line. The command
# line overrides the file, for example `--config run.toml --steps 100`.
#
# The program converts each entry into an argument and parses it, so the values of a file
# are checked like those of the command line. If a value is wrong, the message names the
# file and the line.


if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["arguments_in"]


def arguments_in(path: Path, parser: argparse.ArgumentParser) -> list[str]:
    """Convert the options in a file into arguments of the command line.

    :param parser: the parser of the options, which also checks them
    :raises Mistake: naming the file and the line, if the file cannot be read, or an
        option in it is unknown or has a wrong value
    """
    text = text_of(path)
    result: list[str] = []
    for key, value in entries(parsed(path, text)):
        place = f"{path}:{line_of(key, text)}"
        arguments = as_arguments(parser, key, value, place)
        try:
            parser.parse_args(arguments)
        except Mistake as mistake:
            raise Mistake(f"{place}: {mistake}") from mistake
        result += arguments
    return result


def entries(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """All keys with their values, including those inside tables."""
    # YAML can name a table and repeat it, even inside of itself. Once is enough.
    waiting, seen = [*values.items()], {id(values)}
    while waiting:
        key, value = waiting.pop(0)
        if not isinstance(value, dict):
            yield str(key), value
        elif id(value) not in seen:
            seen.add(id(value))
            waiting[:0] = value.items()


def as_arguments(
    parser: argparse.ArgumentParser, key: str, value: Any, place: str
) -> list[str]:
    """Convert one entry into arguments of the command line."""
    flag = f"--{key.replace('_', '-')}"
    actions = {
        name: action for action in parser._actions for name in action.option_strings
    }
    if flag not in actions or key in ("help", "config"):
        raise Mistake(f"{place}: {key} is no option of a file; see --help")
    # A switch has no value: it is either given or left out. A switch that can be turned
    # off has a second name, such as `--no-offload`.
    if actions[flag].nargs == 0:
        off = [name for name in (f"--no-{flag[2:]}",) if name in actions]
        if not isinstance(value, bool):
            raise Mistake(
                f"{place}: {key} is {repr_of(value)}, but it must be true or false"
            )
        return [flag] if value else off
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise Mistake(
            f"{place}: {key} is {repr_of(value)}, but it must be a word or a number"
        )
    # The option and its value form one argument, because a value may begin with a dash.
    return [f"{flag}={value}"]


def parsed(path: Path, text: str) -> dict[str, Any]:
    """Parse a file into a dictionary. The end of its name chooses TOML or YAML."""
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        # A deep nesting and a very long number have errors of their own.
        except (ValueError, RecursionError) as error:
            line = re.search(r"at line (\d+)", str(error))
            place = f"{path}:{line[1]}" if line else str(path)
            raise Mistake(f"{place}: this is no TOML: {error}") from error
    return parsed_yaml(path, text)


# sidelit: depth Files that cannot be read, and the line of a mistake.


def parsed_yaml(path: Path, text: str) -> dict[str, Any]:
    """Parse YAML into a dictionary.

    :raises Mistake: if pyyaml is missing, or the text is not YAML, or it has no keys
    """
    try:
        import yaml
    except ModuleNotFoundError as error:
        raise Mistake(
            f"--config {path} needs the library pyyaml: pip install pyyaml, "
            "or write the options as TOML"
        ) from error
    try:
        values = yaml.safe_load(text)
    # The reader has errors of many kinds, such as for a date in a thirteenth month.
    except Exception as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "it cannot be read"
        raise Mistake(f"{path}{line}: this is no YAML: {problem}") from error
    if not isinstance(values, dict | None):
        raise Mistake(f"{path}:1: write options with their values, such as steps: 200")
    return values or {}


def text_of(path: Path) -> str:
    """Read the text of a file.

    :raises Mistake: if the file cannot be read
    """
    if path.suffix not in (".toml", ".yaml", ".yml"):
        raise Mistake(f"--config {path}: name a file that ends in .toml, .yaml or .yml")
    if path.exists() and not path.is_file():
        raise Mistake(f"--config {path}: this is no file")
    try:
        # Every option once takes a hundredth of that.
        if path.stat().st_size > 2**16:
            raise Mistake(f"--config {path}: a file of options has at most 64 kB")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise Mistake(f"--config {path}: {reason}") from error


def line_of(key: str, text: str) -> int:
    """Find the number of the line with a key and its value."""
    pattern = rf"""^[ \t{{,]*["']?{re.escape(key)}["']?\s*[:=]"""
    found = re.search(pattern, text, re.MULTILINE)
    return text.count("\n", 0, found.end()) + 1 if found else 1
