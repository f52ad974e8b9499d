"""Kill ranks at random moments, many times, and compare each run with one that was left alone: `make soak`.

    python tests/soak.py --kills 100 --seed 1 --minutes 60

The real command runs under `torchrun --max-restarts`, on 2, 3 and 4 ranks in turn, and saves every few steps.
In each run ranks get SIGKILL one after the other: before a forward or backward pass, a reduce, a step of the
optimizer, in each phase of a save and of a load (`mortal.MOMENTS`), or some milliseconds after a step,
wherever the rank is then. Each time `torchrun` starts the job again, and it goes on from its newest
checkpoint. Every step, also one that is taken again, must have the loss and the norm of the undisturbed run,
on every rank and bit for bit; so must the lines that `--jsonl` has left, each step once.

The seed decides who dies where, but for the milliseconds, in which a rank gets as far as it gets. Ctrl-C ends
the soak with the table of what is done. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import warm

MORTAL = Path(__file__).with_name("mortal.py")
STEPS, EVERY = 36, 3
OPTIONS = (
    f"--steps {STEPS} --layers 2 --width 16 --heads 2 --context 16 --batch 2 --device cpu --precision fp16 "
    f"--evaluate-batches 1 --sample 0 --schedule cosine --warmup 4 --clip 1 --save-every {EVERY}"
).split()
# A moment that only the first rank comes to, or that comes once in a step or a save, has fewer places.
FIRST_ONLY = ("index", "rename", "named", "remove")
PLACES = {"forward": 8, "backward": 4, "reduce": 4, "sum": 2, "time": 60}
WEIGHTS = {"forward": 2, "backward": 2, "reduce": 2, "optimizer": 2, "time": 6}
MOMENTS = (
    *("time", "forward", "backward", "reduce", "optimizer", "load", "read"),
    *("save", "plan", "write", "index", "sum", "rename", "named", "remove"),
)


def plan(draw: random.Random, ranks: int, kills: int) -> str:
    """Who dies in each attempt, in the words of `mortal.py`."""
    words = []
    # Behind the last of these steps two saves are left, so that each death has its occasion.
    places = sorted(draw.sample(range(STEPS - 2 * EVERY), kills))
    for number, after in enumerate(places):
        # There is nothing to read before something was saved.
        saved = number and places[number - 1] > 2 * EVERY
        known = [moment for moment in MOMENTS if moment != "read" or saved]
        weights = [WEIGHTS.get(moment, 1) for moment in known]
        moment = draw.choices(known, weights)[0]
        rank = 0 if moment in FIRST_ONLY else draw.randrange(ranks)
        # A load is over before the first step.
        begin = 0 if moment in ("load", "read") else after
        words.append(f"{moment}:{rank}:{begin}:{draw.randint(1, PLACES.get(moment, 1))}")
    return ",".join(words)


@dataclass
class Counts:
    """What runs have gone through."""

    runs: int = 0
    kills: int = 0
    resumes: int = 0
    again: int = 0
    begun: int = 0
    needed: int = 0
    written: int = 0
    ideal: int = 0
    differences: list[str] = field(default_factory=list)

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass
class Left:
    """What one run has left behind.

    :param lines: of its ranks' traces
    :param log: of each step what `--jsonl` says that does not depend on the clock
    """

    code: int
    said: str
    lines: list[list[dict[str, Any]]]
    log: list[tuple[Any, ...]]

    def values(self, rank: int) -> Iterator[tuple[int, tuple[str, str]]]:
        """Each step that a rank took, also one more time, with its loss and its norm."""
        for line in self.lines[rank]:
            if "step" in line:
                yield line["step"], (line["loss"], line["norm"])

    def every(self, name: str) -> list[Any]:
        """What all ranks say under a name."""
        return [line[name] for lines in self.lines for line in lines if name in line]

    def attempts(self) -> int:
        """How many attempts have taken a step."""
        return len({line["attempt"] for lines in self.lines for line in lines if "step" in line})


def run(folder: Path, ranks: int, deaths: str, *options: str) -> Left:
    """Train to the end, with the deaths of a plan."""
    log = folder / "log.jsonl"
    restarts = str(deaths.count(":") // 3)
    line = [*warm.TORCHRUN, str(ranks), "--max-restarts", restarts]
    line += [str(MORTAL), deaths, str(folder / "trace")]
    line += [*OPTIONS, "--jsonl", str(log), "--checkpoints", str(folder / "run"), *options]
    job = subprocess.Popen(
        [warm.python(), *line],
        env=warm.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _, said = job.communicate(timeout=300)
    except BaseException:
        # It ends its ranks.
        job.terminate()
        job.wait()
        raise
    traces = [folder / "trace" / f"rank-{rank}" for rank in range(ranks)]
    lines = [list(map(json.loads, trace.read_text("utf-8").splitlines())) for trace in traces]
    return Left(job.returncode, said, lines, list(steps_in(log)))


def steps_in(log: Path) -> Iterator[tuple[Any, ...]]:
    """The lines of a log, without what depends on the clock."""
    for line in log.read_text("utf-8").splitlines():
        said = json.loads(line)
        del said["seconds"]
        yield tuple(said.items())


def compared(found: Left, alone: Left) -> Counts:
    """What a run has gone through, and where it differs from the one that was left alone."""
    counts = Counts(runs=1, kills=len(found.every("dies")), resumes=found.attempts() - 1)
    if found.code:
        counts.differences.append(f"exit code {found.code}:\n{found.said}")
    if found.log != alone.log:
        counts.differences.append("the lines of --jsonl differ")
    for rank in range(len(alone.lines)):
        expected = dict(alone.values(rank))
        wrong = [step for step, values in found.values(rank) if values != expected[step]]
        if wrong:
            counts.differences.append(f"rank {rank}: step {wrong[0]} has another loss or norm")
        if {step for step, _ in found.values(rank)} != set(expected):
            counts.differences.append(f"rank {rank}: not every step was taken")
    counts.again = sum(1 for _ in found.values(0)) - STEPS
    # Of a save that was killed, the ranks may have begun it at different times.
    counts.begun = len({(line["attempt"], line["save"]) for line in found.lines[0] if "save" in line})
    counts.needed = len(alone.every("save")) // len(alone.lines)
    counts.written, counts.ideal = sum(found.every("wrote")), sum(alone.every("wrote"))
    return counts


HEADINGS = ("ranks", "runs", "kills", "resumes", "steps again", "saves begun", "needed")


def table(counts: dict[int, Counts], seed: int, seconds: float) -> str:
    """The rows of all numbers of ranks, and their sum."""
    rows = [(str(ranks), each) for ranks, each in counts.items()]
    rows.append(("all", sum(counts.values(), Counts())))
    lines = [
        f"Seed {seed}, {STEPS} steps, a save every {EVERY}, {seconds:.0f} s",
        "".join(f"{each:>13}" for each in HEADINGS) + f"{'bytes':>14}{'ideal':>14}{'ratio':>7}  equal",
    ]
    for name, each in rows:
        numbers = (name, each.runs, each.kills, each.resumes, each.again, each.begun, each.needed)
        ratio = each.written / each.ideal if each.ideal else 1
        equal = "no" if each.differences else "yes"
        lines.append(
            "".join(f"{number:>13}" for number in numbers)
            + f"{each.written:>14,}{each.ideal:>14,}{ratio:>7.2f}  {equal}"
        )
    return "\n".join(lines)


def soak(options: argparse.Namespace, counts: dict[int, Counts]) -> None:
    """Run until as many ranks were killed as are wanted, and add up what happens in `counts`."""
    draw, alone = random.Random(options.seed), {}
    until = time.monotonic() + 60 * options.minutes
    left, number = options.kills, 0
    while left > 0 and time.monotonic() < until:
        ranks = options.ranks[number % len(options.ranks)]
        deaths = plan(draw, ranks, min(left, draw.randint(1, options.most)))
        options_of_run = ["--save-in-background"] * draw.choice([False, True])
        with tempfile.TemporaryDirectory(prefix="soak-") as folder:
            if ranks not in alone:
                alone[ranks] = run(Path(folder, "alone"), ranks, "")
                assert alone[ranks].code == 0, alone[ranks].said
            found = compared(run(Path(folder, "killed"), ranks, deaths, *options_of_run), alone[ranks])
        counts[ranks] = counts.get(ranks, Counts()) + found
        left, number = left - max(found.kills, 1), number + 1
        print(f"{options.kills - left:>4}/{options.kills}  {ranks} ranks  {deaths}", flush=True)
        for difference in found.differences:
            print(f"DIFFERS: {difference}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="soak", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="how many ranks are killed in all")
    parser.add_argument("--seed", type=int, default=0, help="decides who dies where")
    parser.add_argument("--minutes", type=float, default=60, help="begin no run after this time")
    parser.add_argument("--most", type=int, default=6, help="kills in one run, at most")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 3, 4], help="in turn")
    options = parser.parse_args(arguments)
    counts: dict[int, Counts] = {}
    started = time.monotonic()
    try:
        soak(options, counts)
    except KeyboardInterrupt:
        print("stopped")
    print(table(counts, options.seed, time.monotonic() - started))
    return int(any(each.differences for each in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
