r"""# Messages of the commands

> A user's mistake is reported in one sentence, once on each machine.

Several chapters are commands, too: `python -m shardbook.memory` plans memory, and
`python -m shardbook.train` trains. If an option is wrong, a command reports in one
sentence what is wrong and what to write instead. It prints no traceback.

All processes of a machine get the same options, so all of them detect the same mistake.
Only one of them reports it, because 64 copies would hide all other output. Other
mistakes may concern a single process, such as a missing GPU. In that case the process
reports the mistake with its rank.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

__all__ = ["Mistake", "OwnMistake", "Parser", "complain"]


class Mistake(Exception):
    """Something that the user can put right. Its text is one sentence that says how."""


class OwnMistake(Mistake):
    """A mistake in the surroundings of this process, which other ranks need not share."""


def complain(program: str, mistake: Mistake) -> int:
    """Print the sentence, unless another process of this machine does.

    :param program: the command's name, which comes first
    :returns: the exit code
    """
    own = isinstance(mistake, OwnMistake)
    who = f"rank {os.environ['RANK']}: " if own and "RANK" in os.environ else ""
    if own or speaks():
        print(f"{program}: {who}{mistake}", file=sys.stderr)
    return 1


def speaks() -> bool:
    """Whether this process is the one on its machine that tells mistakes in the options.

    `torchrun` numbers the processes of a machine. Without these numbers, rank 0 speaks.
    """
    return os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0"


class Parser(argparse.ArgumentParser):
    """A parser that says one sentence instead of three lines of usage, and says it once."""

    def error(self, message: str) -> NoReturn:
        raise Mistake(f"{message}; see --help")

    def print_help(self, file: Any = None) -> None:
        if speaks():
            super().print_help(file)
