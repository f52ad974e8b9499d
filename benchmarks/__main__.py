"""Compare Shardbook with PyTorch's own data parallel training.

Every contender trains the same GPT with the same lines, on CPU and gloo, one thread a rank, each run in
fresh processes. Single runs of one program differ more than the programs do. So the contenders take turns,
each of our runs is compared with the others' runs of the same round, and what counts is the median of these
ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from benchmarks.contender import CONTENDERS, config_of
from benchmarks.launch import Run, Size, namespace, run

from shardbook.gpt import parameters

OURS = "shardbook"
MB = 1e6


def main(arguments: list[str] | None = None) -> int:
    """Run all contenders in turn, print the tables, write the figures."""
    options = parse(arguments)
    if not Path("/proc/self/clear_refs").exists():
        sys.exit("the benchmark reads memory and traffic from Linux's /proc, which is not here")
    if options.json is not None and not options.json.parent.is_dir():
        sys.exit(f"--json {options.json}: there is no folder {options.json.parent}; make it first")
    size = Size(
        layers=options.layers,
        width=options.width,
        heads=options.heads,
        context=options.context,
        vocabulary=options.vocabulary,
        batch=options.batch,
        steps=2 if options.quick else options.steps,
        warm_up=1 if options.quick else 2,
    )
    print(describe(size), flush=True)
    runs = rounds(2 if options.quick else options.pairs, size)
    # Four ranks are run for their bytes, which do not vary. Their time says little where cores are fewer.
    four = run(OURS, 4, replace(size, steps=2, warm_up=1))
    figures = compare(runs, four, size)
    print(absolute(runs), relative(figures), sep="\n\n")
    if options.json is not None:
        draft = options.json.with_name(f".{options.json.name}.{os.getpid()}")
        draft.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")
        draft.replace(options.json)
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=" ".join(about[0].split()),
        epilog=" ".join(about[1].split()),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    size, add = Size(), parser.add_argument
    add("--pairs", type=positive, default=10, metavar="N", help="rounds; each runs every contender once")
    add("--steps", type=positive, default=size.steps, metavar="N", help="timed steps of a run")
    add("--quick", action="store_true", help="two rounds of two steps: shows that it works, not how fast")
    for name, meaning in [
        ("layers", "blocks of the model"),
        ("width", "width of the model"),
        ("heads", "attention heads in a block"),
        ("context", "positions of a sequence"),
        ("vocabulary", "different tokens"),
        ("batch", "sequences for one rank"),
    ]:
        add(f"--{name}", type=positive, default=getattr(size, name), metavar="N", help=meaning)
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file, as one flat object")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """A whole number from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def rounds(pairs: int, size: Size) -> dict[str, list[Run]]:
    """Every contender once a round. Each round starts with another one, so none is always the first."""
    runs: dict[str, list[Run]] = defaultdict(list)
    names = list(CONTENDERS)
    for number in range(pairs):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            print(f"round {number + 1} of {pairs}: {name}", file=sys.stderr, flush=True)
            runs[name].append(run(name, 2, size))
    return {name: runs[name] for name in names}


def compare(runs: dict[str, list[Run]], four: Run, size: Size) -> dict[str, float | str | None]:
    """The ratios that the project promises something about: medians, with quartiles as `_low` and `_high`.

    `bytes_ratio_limit` is what a rank sends over what ZeRO-3 cannot do without. `bytes_by` says who counted:
    the network, with all headers, or our own ledger where a private network is not allowed.
    """
    figures: dict[str, float | str | None] = {"bytes_by": "network" if namespace() else "ledger"}
    for other in (name for name in runs if name != OURS):
        figures |= spread(f"step_ratio_{other}", runs, other, lambda one: one.seconds)
        figures |= spread(f"peak_ratio_{other}", runs, other, lambda one: one.peak)
    for ranks, of_ours in ((2, runs[OURS]), (4, [four])):
        limit = 3 * 4 * parameters(config_of(size)) * (ranks - 1) / ranks
        payload = statistics.median(one.payload or 0 for one in of_ours) / limit
        wire = [one.wire for one in of_ours if one.wire is not None]
        figures[f"bytes_ratio_limit_n{ranks}"] = statistics.median(wire) / limit if wire else payload
        figures[f"payload_ratio_limit_n{ranks}"] = payload
    for name, of_one in runs.items():
        figures[f"step_seconds_{name}"] = statistics.median(one.seconds for one in of_one)
        figures[f"peak_bytes_{name}"] = statistics.median(one.peak for one in of_one)
        figures[f"steady_bytes_{name}"] = statistics.median(one.steady for one in of_one)
    return {**figures, "torch": torch.__version__, "python": platform.python_version(), "cpu": processor()}


def spread(
    key: str, runs: dict[str, list[Run]], other: str, figure: Callable[[Run], float]
) -> dict[str, float | str | None]:
    """Our figure over the other's, round by round."""
    ratios = [figure(ours) / figure(theirs) for ours, theirs in zip(runs[OURS], runs[other], strict=True)]
    low, middle, high = (
        statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    )
    return {key: middle, f"{key}_low": low, f"{key}_high": high}


def describe(size: Size) -> str:
    """The machine, the versions and the task."""
    return (
        f"{processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {platform.system()} "
        f"{platform.release()}; Python {platform.python_version()}, torch {torch.__version__}\n"
        f"GPT of {size.layers} x {size.width}, vocabulary {size.vocabulary}, {parameters(config_of(size)):,} "
        f"parameters; batch {size.batch} x {size.context} a rank; fp32, AdamW (foreach); gloo"
    )


def processor() -> str:
    """The name that the processor gives itself."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def absolute(runs: dict[str, list[Run]]) -> str:
    """Medians of each contender."""
    lines = [
        f"{'2 ranks, medians':<18}{'step, s':>9}{'peak, MB':>10}{'steady, MB':>12}{'sent a rank, MB':>17}"
    ]
    for name, of_one in runs.items():
        wire = [one.wire for one in of_one if one.wire is not None]
        sent = f"{statistics.median(wire) / MB:.1f}" if wire else "-"
        seconds, peak, steady = (
            statistics.median(getattr(one, figure) for one in of_one)
            for figure in ("seconds", "peak", "steady")
        )
        lines.append(f"{name:<18}{seconds:>9.3f}{peak / MB:>10.1f}{steady / MB:>12.1f}{sent:>17}")
    return "\n".join(lines)


def relative(figures: dict[str, float | str | None]) -> str:
    """The ratios with their spread."""
    lines = [f"{'ours over theirs':<26}{'median':>8}{'quartiles':>18}"]
    for key, value in figures.items():
        if isinstance(value, float) and "_ratio_" in key and not key.endswith(("_low", "_high")):
            low, high = figures.get(f"{key}_low"), figures.get(f"{key}_high")
            between = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
            lines.append(f"{key:<26}{value:>8.3f}{between:>18}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
