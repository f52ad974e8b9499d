r"""# Checking a script

> `python -m shardbook.check script.py` runs a few steps of a script, and reports faults
> that raise no error.

```sh
python -m shardbook.check --steps 3 train.py --lr 1e-3
torchrun --nproc-per-node 4 -m shardbook.check train.py --lr 1e-3
```

Some mistakes in a sharded program raise no error, and the loss still falls. For
example, the program computes the norm of a slice instead of the whole gradient, or
every rank trains on the same batch. The check [runs the script under
watch](checked_run.py) and prints one page: a summary, the findings, and the bytes that
each unit has sent, next to those of the formula. Each finding names the line of the
program and what to write instead.

Without `torchrun` the command starts the ranks itself, with PyTorch's launcher. Under
`torchrun` each rank runs the script. The exit code is 0 if no finding is an error, 1 if
one is, and 2 if the options of the command are wrong.

PyTorch's launcher prints a long report about each rank that ends with another exit code
than 0. So ranks that the command has started always end with 0, and rank 0 writes the
real code into a file, which the command reads.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from shardbook.check.checked_run import check
from shardbook.command import (
    Mistake,
    Parser,
    complain,
    path,
    rank_and_ranks,
    was_launched,
    whole,
    writable,
)
from shardbook.planning.report import named_file, write_figures

__all__ = ["main"]

PROGRAM = "python -m shardbook.check"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, or report a mistake in its options.

    :returns: [the exit code](command.py)
    """
    try:
        options = parse(arguments)
        launched = was_launched()
        refuse_senseless(options, launched)
        code = on_this_rank(options) if launched else on_new_ranks(options)
    except Mistake as mistake:
        code = complain(PROGRAM, mistake)
    return hand_over(code)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the options. The arguments after the script's name belong to the script."""
    parser = Parser(
        prog=PROGRAM,
        description="Run a few steps of a script that shards a model, and say what is wrong with them.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--ranks",
        # Each is a process on this machine, and takes about 300 MB.
        type=whole(1, 64),
        metavar="NUMBER",
        help="how many ranks to start (2), if torchrun has started none",
    )
    add(
        "--steps",
        type=whole(1, 10**6),
        default=3,
        metavar="NUMBER",
        help="after how many steps to end the script (3)",
    )
    add(
        "--races",
        action="store_true",
        help="look for races between streams, too: slower, and on a CPU only",
    )
    add(
        "--json",
        type=writable,
        metavar="FILE",
        help="write the page as one JSON object, too",
    )
    add("script", type=path, help="a Python file")
    add(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="the script's own arguments",
    )
    return parser.parse_args(arguments)


def on_this_rank(options: argparse.Namespace) -> int:
    """Run the script on this rank. Rank 0 prints the page."""
    made = check(
        options.script, options.arguments, steps=options.steps, races=options.races
    )
    if made is None or os.environ["RANK"] != "0":
        return 0
    print(made.page(), flush=True)
    if options.json is not None:
        write_figures(options.json, made.data())
    return made.code


def on_new_ranks(options: argparse.Namespace) -> int:
    """Start ranks on this machine, each with this command, and wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "code")
        # Otherwise PyTorch's launcher would set one thread for each rank, and print a
        # message about it.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ[_ANSWER] = str(answer)
        own = ["--steps", str(options.steps), *(["--races"] if options.races else [])]
        own += [] if options.json is None else ["--json", str(options.json)]
        count = str(2 if options.ranks is None else options.ranks)
        launch = ["--standalone", "--nproc-per-node", count, "-m", "shardbook.check"]
        try:
            torchrun([*launch, *own, str(options.script), *options.arguments])
        except ChildFailedError:
            # A rank was killed, or the script ended the process.
            return 1
        return int(answer.read_text()) if answer.exists() else 1


# This environment variable names the file into which rank 0 writes the exit code.
_ANSWER = "SHARDBOOK_CHECK_ANSWER"


def hand_over(code: int) -> int:
    """On a rank that this command has started, write the exit code into the file and return 0."""
    answer = os.environ.get(_ANSWER)
    if answer is None or "RANK" not in os.environ:
        return code
    if os.environ["RANK"] == "0":
        Path(answer).write_text(str(code))
    return 0


# sidelit: depth Options that make no sense.


def refuse_senseless(options: argparse.Namespace, launched: bool) -> None:
    """Refuse wrong options before any rank is started.

    :raises Mistake: naming the option
    """
    if launched:
        rank_and_ranks(
            f"torchrun --nproc-per-node 2 -m shardbook.check {options.script}"
        )
    if options.ranks is not None and launched:
        raise Mistake(
            "--ranks starts ranks, but torchrun has started them already; leave it out"
        )
    if options.json is not None:
        named_file(options.json)
    if not options.script.is_file():
        raise Mistake(f"there is no file {options.script}; name a Python script")
    refuse_unreadable(options.script)


def refuse_unreadable(script: Path) -> None:
    """Refuse a file that is no program, by the words of Python itself.

    :raises Mistake: naming the line, if there is one
    """
    try:
        # Warnings are for the run itself.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = "" if error.lineno is None else f":{error.lineno}"
        raise Mistake(f"{script}{line}: this is no Python: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise Mistake(f"{script}: this is no Python: {error}") from error
    except OSError as error:
        raise Mistake(f"{script} cannot be read: {error.strerror}") from error
