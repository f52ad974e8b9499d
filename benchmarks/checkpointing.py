"""Compare Shardbook's activation checkpointing with PyTorch's.

Both variants, reentrant and not, are applied to every block of the same GPT, each run in a fresh process
with one thread. The runs take turns, and each of ours is compared with PyTorch's run of the same round.

Two processes that run the same program differ by more than these programs do. So the two are also trained in
one process, a step of one beside a step of the other. The median of these ratios counts.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.__main__ import Figures, positive, processor, spread, table
from benchmarks.contender import config_of
from benchmarks.launch import ROOT, Size
from benchmarks.recompute import CONTENDERS, Step

from shardbook.models.gpt import parameters
from shardbook.planning.report import write

MB = 1e6


def main(arguments: list[str] | None = None) -> int:
    """Run everything in turn, print the tables, write the figures."""
    options = parse(arguments)
    if options.json is not None and not options.json.parent.is_dir():
        sys.exit(f"--json {options.json}: there is no folder {options.json.parent}; make it first")
    names = [field for field in Size.__dataclass_fields__ if hasattr(options, field)]
    size = Size(**{name: getattr(options, name) for name in names})
    print(describe(size), flush=True)
    runs = rounds(options.pairs, size)
    figures: Figures = {**compare(runs), **in_turns(options.beside, size), **medians(runs)}
    print(absolute(runs), relative(figures), sep="\n\n")
    figures |= {"cpu": processor(), "torch": torch.__version__, "python": platform.python_version()}
    if options.json is not None:
        write(options.json, json.dumps(figures, indent=1) + "\n")
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about, *more = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpointing",
        description=" ".join(about.split()),
        epilog=" ".join(" ".join(more).split()),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    size, add = Size(steps=10), parser.add_argument
    add("--pairs", type=positive, default=10, metavar="N", help="rounds; each runs every contender once")
    add("--beside", type=positive, default=30, metavar="N", help="pairs of steps in one process")
    for name, meaning in [
        ("steps", "timed steps of a run"),
        ("layers", "blocks of the model"),
        ("width", "width of the model"),
        ("heads", "attention heads in a block"),
        ("context", "positions of a sequence"),
        ("vocabulary", "different tokens"),
        ("batch", "sequences in a step"),
    ]:
        add(f"--{name}", type=positive, default=getattr(size, name), metavar="N", help=meaning)
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file, as one flat object")
    return parser.parse_args(arguments)


def rounds(pairs: int, size: Size) -> dict[str, list[Step]]:
    """Every contender once a round, ours beside PyTorch's. Which of the two is first changes each round."""
    runs: dict[str, list[Step]] = {name: [] for name in CONTENDERS}
    for number in range(pairs):
        names = list(CONTENDERS) if number % 2 == 0 else list(CONTENDERS)[::-1]
        for name in names:
            print(f"round {number + 1} of {pairs}: {name}", file=sys.stderr, flush=True)
            runs[name].append(run(name, size))
    return runs


def run(name: str, size: Size) -> Step:
    """One run of one contender."""
    return Step(**process(size, name))


def in_turns(pairs: int, size: Size) -> Figures:
    """Ours over PyTorch's, step by step, for both variants."""
    figures: Figures = {}
    for variant in ("", "_reentrant"):
        names = f"shardbook{variant}", f"torch{variant}"
        print(f"{pairs} pairs of steps: {' and '.join(names)}", file=sys.stderr, flush=True)
        ratios: list[float] = process(replace(size, steps=pairs), *names)
        figures |= spread(f"checkpoint{variant}_step_beside_ratio", ratios, [1.0] * pairs, float)
    return figures


def process(size: Size, *names: str) -> Any:
    """Run one or two contenders in a fresh process, and read what the last line says that it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.recompute", json.dumps(asdict(size)), *names],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' and '.join(names)} failed; the message stands above")
    return json.loads(done.stdout.splitlines()[-1])


def compare(runs: dict[str, list[Step]]) -> Figures:
    """Ours over PyTorch's, for both variants: medians, with quartiles as `_low` and `_high`."""
    figures: Figures = {}
    for variant in ("", "_reentrant"):
        mine, other = runs[f"shardbook{variant}"], runs[f"torch{variant}"]
        for key, figure in (("step", seconds), ("saved", saved), ("peak", peak)):
            figures |= spread(f"checkpoint{variant}_{key}_ratio", mine, other, figure)
    # What a checkpoint is worth, beside a model that has none.
    for key, figure in (("step", seconds), ("saved", saved), ("peak", peak)):
        figures |= spread(f"checkpoint_{key}_over_plain", runs["shardbook"], runs["plain"], figure)
    return figures


def seconds(step: Step) -> float:
    """How long a step takes."""
    return step.seconds


def saved(step: Step) -> float:
    """What the blocks leave behind for the backward pass."""
    return step.saved


def peak(step: Step) -> float:
    """The most that is alive at any time."""
    return step.peak


def medians(runs: dict[str, list[Step]]) -> Figures:
    """Each contender by itself."""
    figures: Figures = {}
    for name, of_one in runs.items():
        figures[f"checkpoint_step_seconds_{name}"] = statistics.median(one.seconds for one in of_one)
        figures[f"checkpoint_saved_bytes_{name}"] = statistics.median(one.saved for one in of_one)
        figures[f"checkpoint_peak_bytes_{name}"] = statistics.median(one.peak for one in of_one)
    return figures


def describe(size: Size) -> str:
    """The machine, the versions and the task."""
    return (
        f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {platform.system()} "
        f"{platform.release()}; Python {platform.python_version()}, torch {torch.__version__}\n"
        f"GPT of {size.layers} x {size.width}, vocabulary {size.vocabulary}, {parameters(config_of(size)):,} "
        f"parameters; batch {size.batch} x {size.context}; fp32, AdamW (foreach); one process, one thread"
    )


def absolute(runs: dict[str, list[Step]]) -> str:
    """Medians of each contender."""
    title = "every block checkpointed, medians"
    width = max(len(name) for name in [*runs, title])
    lines = [f"{title:<{width}}{'step, s':>10}{'saved, MB':>12}{'peak, MB':>11}"]
    for name, of_one in runs.items():
        step, kept, most = (
            statistics.median(figure(one) for one in of_one) for figure in (seconds, saved, peak)
        )
        lines.append(f"{name:<{width}}{step:>10.3f}{kept / MB:>12.3f}{most / MB:>11.1f}")
    return "\n".join(lines)


def relative(figures: Figures) -> str:
    """The ratios with their spread."""
    keys = [key for key in figures if "_ratio" in key or "_over_" in key]
    return table("one over the other", keys, figures)


if __name__ == "__main__":
    sys.exit(main())
