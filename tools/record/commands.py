"""Every command with its options, from the parsers themselves: what the page of commands prints."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

from shardbook import command, memory, sketch
from shardbook.check import check_command
from shardbook.finetune_neox import finetune_options
from shardbook.parallel.__main__ import parse as parallel
from shardbook.planning import overlap
from shardbook.precision import formats, rounding
from shardbook.train import options as train
from shardbook.train.text import CACHE
from sidelit.cli import options as press

TORCHRUN = "torchrun --standalone --nproc-per-node 2 -m shardbook."
# What makes each parser, or reads a command line with it; and an example, which a test gives to the parser.
DOORS: dict[str, tuple[Callable[..., Any], str]] = {
    "memory": (memory.parser, "python -m shardbook.memory --params 7.5e9 --ranks 64"),
    "train": (train.parser, f"{TORCHRUN}train --steps 200 --stage 3 --checkpoint non-reentrant"),
    "finetune_neox": (finetune_options.parser, f"{TORCHRUN}finetune_neox --model FOLDER --out FOLDER"),
    "check": (check_command.parse, "python -m shardbook.check --ranks 4 train.py --lr 1e-3"),
    "planning.overlap": (overlap.parse, "python -m shardbook.planning.overlap --bandwidth 50e9 --ranks 8"),
    "parallel": (parallel, f"{TORCHRUN}parallel tensor"),
    "precision.formats": (formats.main, "python -m shardbook.precision.formats 0.1 1e-5"),
    "precision.rounding": (rounding.main, "python -m shardbook.precision.rounding --steps 50"),
    "sketch": (sketch.options, f"{TORCHRUN}sketch --steps 100"),
}
PRESS = {
    "build": "--keep-going --jobs 1",
    "pack": "--out dist",
    "book": "--lang en",
    "slides": "one_step --lang en",
    "serve": "--port 8001",
    "init": "--lang en --lang de",
    "print": "src/rings --out printed",
    "sections": "src/rings/ring.py",
    "sync": "",
    "status": "--todo",
    "reviewed": "rings/ring#Ring.push --lang de",
    "lint": "",
    "lab": "--check",
    "cite": "Ring.push --form bibtex",
    "search": "out of memory",
    "cards": "",
    "versions": "--draft",
    "publish": "--redirect 'rings/ring#Ring.put=Ring.push'",
}


def record() -> Any:
    """The programs with their options, in the order in which the page has them."""
    programs = [program(name, parser(name), example) for name, (_, example) in DOORS.items()]
    top = press.parser()
    programs.append({**program("sidelit", top, "sidelit --version"), "call": "sidelit COMMAND"})
    for name, sub in subcommands(top).items():
        programs.append(program(f"sidelit {name}", sub, f"sidelit {name} {PRESS[name]}".strip()))
    return programs


def parser(name: str) -> argparse.ArgumentParser:
    """The parser of a program of the library."""

    def built(self: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        raise Built(self)

    make, _ = DOORS[name]
    with mock.patch.object(command.Parser, "parse_args", built):
        try:
            made = make() if make.__name__ == "parser" else make([])
        except Built as caught:
            return caught.parser
    assert isinstance(made, argparse.ArgumentParser)
    return made


class Built(Exception):
    """Takes a parser out of the function that would use it."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


def subcommands(top: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers of the press's commands."""
    (subs,) = (each for each in top._actions if isinstance(each, argparse._SubParsersAction))
    return dict(subs.choices)


def program(name: str, parser: argparse.ArgumentParser, example: str) -> dict[str, Any]:
    """One program as the page shows it."""
    launched = example.startswith("torchrun")
    call = name if name.startswith("sidelit") else f"{'' if launched else 'python -m '}shardbook.{name}"
    return {
        "name": name,
        "call": f"torchrun … -m {call}" if launched else call,
        "about": " ".join((parser.description or "").split()),
        "example": example,
        "groups": [group for group in groups(parser) if group["options"]],
    }


def groups(parser: argparse.ArgumentParser) -> Iterator[dict[str, Any]]:
    """The options in their groups; those that argparse makes itself have no label."""
    own = (parser._positionals, parser._optionals)
    for group in parser._action_groups:
        options = [option(parser, each) for each in group._group_actions if shown(each)]
        yield {"label": "" if group in own else str(group.title), "options": options}


def shown(action: argparse.Action) -> bool:
    """Every program has `--help`, and the commands of the press have a place of their own."""
    left_out = (argparse._HelpAction, argparse._SubParsersAction)
    return not isinstance(action, left_out) and action.help != argparse.SUPPRESS


def option(parser: argparse.ArgumentParser, action: argparse.Action) -> dict[str, Any]:
    """One option, without what is not so of it."""
    takes = action.nargs != 0
    named = takes and bool(action.option_strings)
    told, words = default_in(help_of(parser, action))
    name = action.dest if action.nargs == argparse.REMAINDER else str(action.metavar or action.dest)
    found: dict[str, Any] = {
        "names": list(action.option_strings) or [name.lower()],
        "value": value(action) if named else "",
        "choices": [str(each) for each in action.choices or ()],
        "takes": kind(action.type) if takes and not action.choices else [],
        "default": told or (default(action) if takes else ""),
        "help": words,
        "required": action.required if action.option_strings else action.nargs not in ("?", "*"),
        "repeats": isinstance(action, argparse._AppendAction) or action.nargs in ("+", "*", "..."),
    }
    return {key: each for key, each in found.items() if each}


def value(action: argparse.Action) -> str:
    """What stands for the value of an option, as `--help` has it."""
    if action.choices is not None:
        return ""
    name = str(action.metavar or action.dest.upper())
    return f"[{name}]" if action.nargs == "?" else name


def kind(of: Any) -> list[str]:
    """The kind of a value and its limits, as far as more is known of it than that it is a text or a path."""
    if of in (int, float):
        return ["whole" if of is int else "number"]
    name, _, inside = getattr(of, "__qualname__", "").partition(".")
    if (name, inside) not in (("whole", "<locals>.kind"), ("real", "<locals>.kind")):
        return []
    limits = inspect.getclosurevars(of).nonlocals
    least, most = limits["least"], limits["most"]
    return ["whole", f"{least:,}", f"{most:,}"] if name == "whole" else ["number", f"{least:g}", f"{most:g}"]


def help_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """What `--help` says, without what a formatter adds: defaults have a column of their own."""
    words = argparse.HelpFormatter(parser.prog)._expand_help(action) if action.help else ""
    return " ".join(words.split()).removesuffix("may be repeated").rstrip("; ")


def default_in(words: str) -> tuple[str, str]:
    """The default that a help text names, and the text without it.

    >>> default_in("number of ranks (default: 64)"), default_in("default: 8000; 0 takes any free one")
    (('64', 'number of ranks'), ('8000', '0 takes any free one'))
    """
    found = re.search(r" ?\(default: ([^)]+)\)|^default: ([^;]+)(?:; )?", words)
    return (found[1] or found[2], words.replace(found[0], "")) if found else ("", words)


def default(action: argparse.Action) -> str:
    """What holds where an option is left out."""
    if action.default in (None, argparse.SUPPRESS, [], "", Path()):
        return ""
    if action.default == CACHE:
        return "~/.cache/shardbook"
    return f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
