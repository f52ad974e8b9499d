r"""# Checking a script

> `python -m shardbook.check script.py` runs a few steps of a script, and says what nobody would have noticed.

```sh
python -m shardbook.check --steps 3 train.py --lr 1e-3
torchrun --nproc-per-node 4 -m shardbook.check train.py --lr 1e-3
```

Some mistakes in a sharded program raise no error, and the loss still falls: a norm that
is that of a slice, the same batch on every rank, a loss that is not divided. The check
runs the script [with everything watched](checked_run.py) and prints one page: a verdict, the findings,
each with the line of the program and what to write instead, and the bytes that each
unit has sent beside what the formula says.

Started alone, the command starts the ranks itself, with PyTorch's own launcher. Under
`torchrun` each rank runs the script in its place. The exit code is 0 if nothing makes
training wrong, 1 if something does, and 2 if the command was called in a wrong way. With
its own launcher the command knows the code from a file that rank 0 writes, because the launcher
prints a long report about each rank that ends with another code than 0.
"""

# sidelit: hide
from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main as torchrun

from shardbook.check.checked_run import check
from shardbook.command import Mistake, Parser, complain
from shardbook.planning.report import write

__all__ = ["main"]
# sidelit: show

PROGRAM = "python -m shardbook.check"


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a script, or name the mistake in the options.

    :returns: the exit code
    """
    try:
        options = parse(arguments)
        refuse_senseless(options)
        code = on_this_rank(options) if "RANK" in os.environ else on_new_ranks(options)
    except Mistake as mistake:
        complain(PROGRAM, mistake)
        code = 2
    return hand_over(code)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the options. What follows the script belongs to the script."""
    parser = Parser(
        prog=PROGRAM,
        description="Run a few steps of a script that shards a model, and say what is wrong with them.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--ranks",
        type=int,
        metavar="NUMBER",
        help="how many ranks to start (2), if torchrun has started none",
    )
    add(
        "--steps",
        type=int,
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
        type=Path,
        metavar="FILE",
        help="write the page as one JSON object, too",
    )
    add("script", type=Path, help="a Python file")
    add(
        "arguments",
        nargs=argparse.REMAINDER,
        metavar="...",
        help="the script's own arguments",
    )
    return parser.parse_args(arguments)


def on_this_rank(options: argparse.Namespace) -> int:
    """Run the script on a rank that is there, and let rank 0 print the page."""
    made = check(
        options.script, options.arguments, steps=options.steps, races=options.races
    )
    if made is None or os.environ["RANK"] != "0":
        return 0
    print(made.page(), flush=True)
    if options.json is not None:
        write(options.json, json.dumps(made.data(), indent=1) + "\n")
    return made.code


def on_new_ranks(options: argparse.Namespace) -> int:
    """Start ranks on this machine, each with this command, and wait for them."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "code")
        # PyTorch's launcher would set one thread for each rank, and print that it does.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ[_ANSWER] = str(answer)
        own = ["--steps", str(options.steps), *(["--races"] if options.races else [])]
        own += [] if options.json is None else ["--json", str(options.json)]
        count = str(2 if options.ranks is None else options.ranks)
        launch = ["--standalone", "--nproc-per-node", count, "-m", "shardbook.check"]
        try:
            torchrun([*launch, *own, str(options.script), *options.arguments])
        except ChildFailedError:
            # A rank was killed, or has ended the process by itself.
            return 1
        return int(answer.read_text()) if answer.exists() else 1


# In this variable the command tells its ranks where rank 0 writes the exit code.
_ANSWER = "SHARDBOOK_CHECK_ANSWER"


def hand_over(code: int) -> int:
    """On a rank that this command has started, write the code down and end with 0."""
    answer = os.environ.get(_ANSWER)
    if answer is None or "RANK" not in os.environ:
        return code
    if os.environ["RANK"] == "0":
        Path(answer).write_text(str(code))
    return 0


# sidelit: depth Options that make no sense.


def refuse_senseless(options: argparse.Namespace) -> None:
    """Refuse what could not be run, before any rank is started.

    :raises Mistake: naming the option
    """
    if not options.script.is_file():
        raise Mistake(f"there is no file {options.script}; name a Python script")
    if options.steps < 1:
        raise Mistake(f"--steps is {options.steps}, but it must be at least 1")
    if options.ranks is not None and options.ranks < 1:
        raise Mistake(f"--ranks is {options.ranks}, but it must be at least 1")
    if options.ranks is not None and "RANK" in os.environ:
        raise Mistake(
            "--ranks starts ranks, but torchrun has started them already; leave it out"
        )
    if options.json is not None and (
        options.json.is_dir() or not options.json.parent.is_dir()
    ):
        raise Mistake(
            f"--json {options.json} is no file in a folder that exists; name one"
        )
