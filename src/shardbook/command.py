r"""# Messages of the commands

> A user's mistake is reported in one sentence, once on each machine.

Several chapters are commands, too: `python -m shardbook.memory` plans memory, and
`python -m shardbook.train` trains. If an option is wrong, a command reports in one
sentence what is wrong and what to write instead. It prints no traceback.

All processes of a machine get the same options, so all of them detect the same mistake.
Only one of them reports it, because 64 copies would hide all other output. Other
mistakes may concern a single process, such as a missing GPU. In that case the process
reports the mistake with its rank.

The exit code says when a command ended:

| exit code | what happened |
|---|---|
| 0 | the work is done |
| 2 | something that you gave is wrong, and no work was begun |
| 1 | the work could not be finished, or its answer is no |
| 130 | you have pressed `Ctrl-C` |

A wrong value is found before the work begins, because each option is declared with [the
kind of value](#whole) that it takes, and the kind has the limits.

`Ctrl-C` reaches all processes of a machine, too. It ends a command with one line instead
of a traceback of each process.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal, InvalidOperation
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

__all__ = [
    "Failure",
    "Mistake",
    "OwnMistake",
    "Parser",
    "Stopped",
    "complain",
    "folder_to_write",
    "path",
    "phrase",
    "rank_and_ranks",
    "real",
    "short",
    "stoppable",
    "variable",
    "was_launched",
    "whole",
    "writable",
]


class Mistake(Exception):
    """Something that the user can put right. Its text is one sentence that says how."""

    code = 2


class Stopped(Mistake):
    """The user has pressed `Ctrl-C`."""

    code = 128 + signal.SIGINT


class OwnMistake(Mistake):
    """A mistake in the surroundings of this process, which other ranks need not share."""


class Failure(Mistake):
    """Work that has begun and cannot be finished, although no option was wrong."""

    code = 1


def complain(program: str, mistake: Mistake) -> int:
    """Print the sentence, unless another process of this machine does.

    :param program: the command's name, which comes first
    :returns: the exit code
    """
    own = isinstance(mistake, OwnMistake)
    who = f"rank {os.environ['RANK']}: " if own and "RANK" in os.environ else ""
    if own or speaks():
        print(f"{program}: {who}{in_one_line(str(mistake))}", file=sys.stderr)
    return mistake.code


def in_one_line(sentence: str) -> str:
    r"""Keep a sentence readable, whatever it quotes: line breaks, escapes, very long values.

    >>> in_one_line("--data a\nb\x1b[2J: there is no such file or folder")
    '--data a b\\x1b[2J: there is no such file or folder'
    """
    words = " ".join(sentence.split())
    shown = "".join(one if one.isprintable() else repr(one)[1:-1] for one in words)
    return shown if len(shown) <= 1000 else f"{shown[:500]} … {shown[-400:]}"


@contextmanager
def stoppable() -> Iterator[None]:
    """A block that `Ctrl-C` ends.

    The ranks do not end at the same moment, so a rank may meet another error first: the
    rank that it waits for has ended already. That error is not told either.

    :raises Stopped: after `Ctrl-C`
    """
    came = False
    # `torchrun` passes the signal on to ranks that have received it already. They clear
    # up, and `torchrun` kills them if this takes too long.
    launched = "TORCHELASTIC_RUN_ID" in os.environ

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal came
        came = True
        signal.signal(number, signal.SIG_IGN if launched else signal.SIG_DFL)
        raise KeyboardInterrupt

    # Only the main thread receives signals. A shell may have started this command
    # with the signal ignored.
    hears = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    if hears:
        signal.signal(signal.SIGINT, note)
    try:
        yield
    except BaseException:
        if came:
            raise Stopped("stopped by Ctrl-C") from None
        raise
    finally:
        if hears and not (came and launched):
            signal.signal(signal.SIGINT, signal.default_int_handler)


def speaks() -> bool:
    """Whether this process is the one on its machine that tells mistakes in the options.

    `torchrun` numbers the processes of a machine. Without these numbers, rank 0 speaks.
    """
    own = os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0"))
    # A process whose number is no number speaks, too, or nobody might.
    return not own.isdecimal() or not own.strip("0")


class Parser(argparse.ArgumentParser):
    """A parser that says one sentence instead of three lines of usage, and says it once."""

    def error(self, message: str) -> NoReturn:
        # The kinds of values below say "is 0, but …", and argparse says of what.
        message = re.sub(r"^argument (\S+): is ", r"\1 is ", message)
        raise Mistake(f"{message}; see --help")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given, rest = super().parse_known_args(args, namespace)
        for action in self._actions:
            # Before Python 3.13, argparse takes the two dashes of `--steps=--` away, and
            # asks no kind what it thinks of nothing.
            if action.nargs is None and getattr(given, action.dest, None) == []:
                self.error(
                    f"argument {'/'.join(action.option_strings)}: is --, which is no value"
                )
        return given, rest

    def print_help(self, file: Any = None) -> None:
        if speaks():
            super().print_help(file)


# sidelit: depth The variables that torchrun sets, for the commands that run on several ranks.


def was_launched() -> bool:
    """Whether this process is told that it is one of several ranks."""
    return "RANK" in os.environ or "WORLD_SIZE" in os.environ


def rank_and_ranks(launch: str) -> tuple[int, int]:
    """The rank of this process and the number of ranks, when all that `torchrun` sets is there.

    :param launch: how to start the ranks of this command
    :raises OwnMistake: naming the variable
    """
    ranks = variable("WORLD_SIZE", launch, least=1)
    rank = variable("RANK", launch)
    if rank >= ranks:
        raise OwnMistake(
            f"RANK is {rank}, but WORLD_SIZE is {ranks}, so the last rank is {ranks - 1}"
        )
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise OwnMistake(
                f"{name} is not set, so the ranks cannot meet; start them with {launch}"
            )
    variable("MASTER_PORT", launch, most=2**16 - 1)
    return rank, ranks


def variable(
    name: str,
    launch: str,
    *,
    least: int = 0,
    most: int = 10**6,
    default: str | None = None,
) -> int:
    """Read a whole number from the environment.

    :raises OwnMistake: if it is missing or is no such number
    """
    value = os.environ.get(name, default)
    if value is None:
        raise OwnMistake(f"{name} is not set; start the ranks with {launch}")
    # A text of more digits is refused before it is read as a number.
    if not value.isdecimal() or len(value) > 7 or not least <= int(value) <= most:
        raise OwnMistake(
            f"{name} is {short(value)!r}, but it must be a whole number of at least {least}, and at most "
            f"{most:,}; start the ranks with {launch}"
        )
    return int(value)


# sidelit: core
# sidelit: depth The kinds of values that options take, with their limits.


def whole(least: int, most: int) -> Callable[[str], int]:
    """The kind of a whole number, which may be written as 7.5e9.

    >>> whole(1, 10**10)("7.5e9"), whole(0, 9)("7")
    (7500000000, 7)

    :param most: the largest number with which the program does what it says, in a time
        and a memory that some machine has
    """

    def kind(text: str) -> int:
        # `float` has no whole numbers between 2**53 and 2**53 + 2.
        try:
            number = Decimal(text)
        except (InvalidOperation, ValueError):
            number = Decimal("NaN")
        fits = number.is_finite() and least <= number <= most
        if not fits or number != int(number):
            raise argparse.ArgumentTypeError(
                f"is {short(text)}, but it must be a whole number from {least:,} to {most:,}"
            )
        return int(number)

    return kind


def real(least: float, most: float) -> Callable[[str], float]:
    """The kind of a number that may have a fraction. The limits belong to it.

    >>> real(0, 1)("1e-3")
    0.001
    """

    def kind(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(
                f"is {short(text)}, but it must be a number from {least:g} to {most:g}"
            )
        return number

    return kind


def phrase(text: str) -> str:
    """The kind of a text that is not empty. It can be written in UTF-8."""
    if not text:
        raise argparse.ArgumentTypeError("is empty; write a text, or leave it out")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(
            f"is {short(text)!r}, which is no text in UTF-8"
        ) from None
    return text


def path(text: str) -> Path:
    """The kind of a path. There may be nothing at it yet, but the system has to accept it."""
    if not text:
        raise argparse.ArgumentTypeError(
            "is empty; name a file or a folder, or leave it out"
        )
    found = Path(text)
    with refused(f"is {short(text)!r}, which is no path"), suppress(FileNotFoundError):
        found.stat()
    # Where nothing is yet, the system has not looked at the rest of the path.
    whole_path = os.fsencode(found.absolute())
    if len(whole_path) > LONGEST or max(map(len, whole_path.split(b"/"))) > 255:
        raise argparse.ArgumentTypeError(f"is {short(text)}, which is too long a path")
    return found


# Linux takes 4,096 bytes. The rest is for the names that a program adds.
LONGEST = 3500


def writable(text: str) -> Path:
    """The kind of a file that will be written. Its folder exists, and takes a file of this name."""
    file = path(text)
    # Rank 0 writes the files, and a folder need not exist on other machines.
    if os.environ.get("RANK", "0") != "0":
        return file
    if file.is_dir():
        raise argparse.ArgumentTypeError(f"is {short(text)}, a folder; name a file")
    if not file.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"is {short(text)}, but there is no folder {file.parent}; make it first"
        )
    # What is no file [is refused](report.py#named_file) by its name.
    if file.exists() and not file.is_file():
        return file
    if file.exists() and not os.access(file, os.W_OK):
        raise argparse.ArgumentTypeError(f"is {short(text)}, which is read-only")
    with refused(f"is {short(text)}, but nothing can be written to {file.parent}"):
        # A file of this name might be too long, so the trial has it.
        tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.").close()
    return file


def folder_to_write(text: str) -> Path:
    """The kind of a folder that will be written into, and made where it is missing."""
    folder = path(text)
    if folder.exists() and not folder.is_dir():
        raise argparse.ArgumentTypeError(f"is {short(text)}, a file; name a folder")
    there = next(each for each in (folder, *folder.parents) if each.exists())
    with refused(f"is {short(text)}, but nothing can be written to {there}"):
        tempfile.TemporaryFile(dir=there, prefix=TRIAL).close()
    return folder


# What a system permits is known only when it is done. Most systems list no such file,
# and where one is listed, another rank knows it by its name.
TRIAL = ".shardbook-trial-"


@contextmanager
def refused(what: str) -> Iterator[None]:
    """Say what the system has refused, and why."""
    try:
        yield
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(f"{what}: {why}") from error


def short(text: str) -> str:
    """The beginning of a long value."""
    return text if len(text) <= 80 else f"{text[:60]}…"
