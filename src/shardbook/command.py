r"""# Messages of the commands

> A user's mistake is reported in one sentence, once on each machine.

Several chapters are commands, too: `python -m shardbook.memory` plans memory, and
`python -m shardbook.train` trains. If an option is wrong, a command reports in one
sentence what is wrong and what to write instead. It prints no traceback.

All processes of a machine get the same options, so all of them detect the same mistake.
Only one of them reports it, because 64 copies would hide all other output. Other
mistakes may concern a single process, such as a missing GPU. In that case the process
reports the mistake with its rank.

`Ctrl-C` reaches all processes of a machine, too. It ends a command with one line instead
of a traceback of each process.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

__all__ = ["Mistake", "OwnMistake", "Parser", "Stopped", "complain", "stoppable"]


class Mistake(Exception):
    """Something that the user can put right. Its text is one sentence that says how."""

    code = 1


class Stopped(Mistake):
    """The user has pressed `Ctrl-C`."""

    code = 128 + signal.SIGINT


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
    return mistake.code


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
    # without them.
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
    return os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")) == "0"


class Parser(argparse.ArgumentParser):
    """A parser that says one sentence instead of three lines of usage, and says it once."""

    def error(self, message: str) -> NoReturn:
        raise Mistake(f"{message}; see --help")

    def print_help(self, file: Any = None) -> None:
        if speaks():
            super().print_help(file)
