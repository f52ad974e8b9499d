"""Compare Shardbook with PyTorch's own data parallel training.

Every contender trains the same GPT with the same lines, on CPU and gloo, one thread a rank, each run in
fresh processes. Single runs of one program differ more than the programs do. So the contenders take turns,
each of our runs is compared with the others' runs of the same round, and what counts is the median of these
ratios.

`floor` is our own step with every exchange left out. No way to shard can be faster in this library. The peak
is also compared with the sum of what must be there, and the lean mode with the least that a step can take
which computes nothing twice.

Our lean mode saves memory in three ways: a loss in chunks, an optimizer that steps inside the backward pass,
and units that are gathered only when they are needed. The leanest mode also checkpoints every block, which
costs another forward pass. More rounds, fewer in number, show each of the four by itself.

At the end 64 small layers train, each a unit of its own. Such a step hardly computes, so its time is what
Python and the exchanges take.
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
from typing import TypeVar

import torch
from benchmarks import small_units
from benchmarks.contender import CORE, LEVERS, Contender, train
from benchmarks.floor import config_of, floor_bytes, lean_bytes
from benchmarks.launch import Run, Size, enter_network, on_ranks

from shardbook.models.gpt import parameters
from shardbook.planning.report import write

OURS, THEIRS, FLOOR = "shardbook", "fsdp2", "floor"
OTHERS = tuple(f"{THEIRS}_{way}" for way in ("chunked", "blocks", "checkpointed"))
MB = 1e6
Figures = dict[str, float | str | None]
R = TypeVar("R")


def main(arguments: list[str] | None = None) -> int:
    """Run all contenders in turn, print the tables, write the figures."""
    options = parse(arguments)
    if not Path("/proc/self/clear_refs").exists():
        sys.exit("the benchmark reads memory and traffic from Linux's /proc, which is not here")
    if options.json is not None and not options.json.parent.is_dir():
        sys.exit(f"--json {options.json}: there is no folder {options.json.parent}; make it first")
    enter_network()
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
    core = rounds(2 if options.quick else options.pairs, CORE, size)
    levers = rounds(1 if options.quick else options.lever_pairs, LEVERS, size)
    # Four ranks are run for their bytes, which do not vary. Their time says little where cores are fewer.
    four = on_ranks(4, train, OURS, replace(size, steps=2, warm_up=1))
    few = (8, 1, 1) if options.quick else (64, 12, 3)
    small = on_ranks(2, small_units.measure, *few)
    figures: Figures = {
        **compare(core),
        **sent(core[OURS], four, size),
        **stored(core[OURS], size),
        **over_floor(core, size),
        **alone(levers),
        **medians({**levers, **core}),
        **small_units.ratios(small),
    }
    print(absolute(core), relative(figures), between_steps(figures, size), floor(figures), sep="\n\n")
    print("\nEach lever alone", absolute(levers), alone_as_text(figures), sep="\n\n")
    print("", small_units.table(small), sep="\n")
    # What the figures were measured with is a part of them.
    figures |= {"bytes_by": "network" if os.environ["COUNTED"] else "ledger", "cpu": processor()}
    figures |= {"torch": torch.__version__, "python": platform.python_version()}
    if options.json is not None:
        write(options.json, json.dumps(figures, indent=1) + "\n")
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=" ".join(about[0].split()),
        epilog=" ".join(" ".join(about[1:]).split()),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    size, add = Size(), parser.add_argument
    add("--pairs", type=positive, default=10, metavar="N", help="rounds; each runs every contender once")
    add("--lever-pairs", type=positive, default=3, metavar="N", help="rounds for each lever alone")
    add("--steps", type=positive, default=size.steps, metavar="N", help="timed steps of a run")
    add("--quick", action="store_true", help="few rounds of two steps: shows that it works, not how fast")
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


def rounds(pairs: int, contenders: dict[str, Contender], size: Size) -> dict[str, list[Run]]:
    """Every contender once a round. Each round starts with another one, so none is always the first."""
    runs: dict[str, list[Run]] = defaultdict(list)
    names = list(contenders)
    for number in range(pairs):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            print(f"round {number + 1} of {pairs}: {name}", file=sys.stderr, flush=True)
            runs[name].append(on_ranks(2, train, name, size))
    return {name: runs[name] for name in names}


def compare(runs: dict[str, list[Run]]) -> Figures:
    """The ratios that the project promises something about: medians, with quartiles as `_low` and `_high`."""
    figures: Figures = {}
    for other in (name for name in runs if not name.startswith(OURS)):
        figures |= spread(f"step_ratio_{other}", runs[OURS], runs[other], seconds)
        figures |= spread(f"cpu_ratio_{other}", runs[OURS], runs[other], cpu)
        # Where nothing is exchanged the peak means nothing; its floor is a sum.
        if other != FLOOR:
            figures |= spread(f"peak_ratio_{other}", runs[OURS], runs[other], peak)
    for mode in ("lean", "leanest"):
        for key, figure in (("step_ratio", seconds), ("peak_ratio", peak)):
            figures |= spread(f"{key}_{THEIRS}_{mode}", runs[f"{OURS}_{mode}"], runs[THEIRS], figure)
    return figures


def alone(runs: dict[str, list[Run]]) -> Figures:
    """What each lever does to our own figures, and how the result compares with the other's."""
    figures: Figures = {}
    for name in (name for name in runs if name.startswith(f"{OURS}_")):
        lever = name.removeprefix(f"{OURS}_")
        for key, figure in (("step", seconds), ("peak", peak)):
            figures |= spread(f"lever_{lever}_{key}", runs[name], runs[OURS], figure)
            figures |= spread(f"lever_{lever}_{key}_over_{THEIRS}", runs[name], runs[THEIRS], figure)
    # The levers that are not ours alone, and the parts that PyTorch's tutorial chooses.
    for name in OTHERS:
        figures |= spread(f"{name}_peak_over_{THEIRS}", runs[name], runs[THEIRS], peak)
        figures |= spread(f"peak_ratio_{name}", runs[OURS], runs[name], peak)
        for mode in ("lean", "leanest"):
            figures |= spread(f"peak_ratio_{name}_{mode}", runs[f"{OURS}_{mode}"], runs[name], peak)
    # The same lever on both sides.
    ours, theirs = runs[f"{OURS}_checkpointed"], runs[f"{THEIRS}_checkpointed"]
    for key, figure in (("step", seconds), ("peak", peak)):
        figures |= spread(f"checkpointed_{key}_over_{THEIRS}_checkpointed", ours, theirs, figure)
    return figures


def sent(two: list[Run], four: Run, size: Size) -> Figures:
    """What a rank sends over what ZeRO-3 cannot do without.

    `bytes_ratio` counts what the network saw, with all headers, where a private network is allowed.
    `payload_ratio` is what our own ledger says.
    """
    figures: Figures = {}
    for ranks, runs in ((2, two), (4, [four])):
        limit = 3 * 4 * parameters(config_of(size)) * (ranks - 1) / ranks
        payload = statistics.median(one.payload or 0 for one in runs) / limit
        wire = [one.wire for one in runs if one.wire is not None]
        figures[f"bytes_ratio_limit_n{ranks}"] = statistics.median(wire) / limit if wire else payload
        figures[f"payload_ratio_limit_n{ranks}"] = payload
    return figures


def stored(two: list[Run], size: Size) -> Figures:
    """The bytes between two steps by name, their sum over 12 bytes a parameter, and what the checks cost."""
    parts = two[-1].stored or {}
    figures: Figures = {f"steady_bytes_of_{name.replace(' ', '_')}": count for name, count in parts.items()}
    limit = 12 * parameters(config_of(size)) / 2
    checks = statistics.median(one.checks or 0 for one in two)
    share = statistics.median((one.checks or 0) / one.seconds for one in two)
    return {
        **figures,
        "steady_ratio_limit_n2": sum(parts.values()) / limit,
        "order_check_seconds": checks,
        "order_check_share": share,
    }


def over_floor(runs: dict[str, list[Run]], size: Size) -> Figures:
    """Our peak over the sum of what must be there, the least of the lean mode, and where time goes."""
    least, lean = floor_bytes(size, 2), lean_bytes(size, 2)
    figures: Figures = {f"floor_bytes_of_{name.replace(' ', '_')}": count for name, count in least.items()}
    figures["floor_bytes"] = sum(least.values())
    figures |= spread_of("peak_over_floor", [one.peak / sum(least.values()) for one in runs[OURS]])
    figures["lean_least_bytes"] = sum(lean.values())
    figures["lean_least_share_of_saved_activations"] = lean["saved activations"] / sum(lean.values())
    ratios = [sum(lean.values()) / one.peak for one in runs[THEIRS]]
    figures |= spread_of(f"lean_least_over_{THEIRS}", ratios)
    lean_peaks = [one.peak / sum(lean.values()) for one in runs[f"{OURS}_lean"]]
    figures |= spread_of("lean_peak_over_least", lean_peaks)
    # What a step takes beyond the floor, and the part of it in which a rank waits for an exchange.
    pairs = list(zip(runs[OURS], runs[FLOOR], strict=True))
    figures |= spread_of("over_floor_seconds", [one.seconds - other.seconds for one, other in pairs])
    figures |= spread_of("waiting_seconds", [one.waits or 0 for one in runs[OURS]])
    return figures


def medians(runs: dict[str, list[Run]]) -> Figures:
    """Each contender by itself."""
    figures: Figures = {}
    for name, of_one in runs.items():
        figures[f"step_seconds_{name}"] = statistics.median(one.seconds for one in of_one)
        figures[f"peak_bytes_{name}"] = statistics.median(one.peak for one in of_one)
        figures[f"steady_bytes_{name}"] = statistics.median(one.steady for one in of_one)
    return figures


def spread(key: str, ours: list[R], theirs: list[R], figure: Callable[[R], float]) -> Figures:
    """One figure over the other, round by round."""
    return spread_of(key, [figure(one) / figure(other) for one, other in zip(ours, theirs, strict=True)])


def spread_of(key: str, numbers: list[float]) -> Figures:
    """The median of some numbers, with the quartiles as `_low` and `_high`."""
    low, middle, high = (
        statistics.quantiles(numbers, n=4, method="inclusive") if len(numbers) > 1 else numbers * 3
    )
    return {key: middle, f"{key}_low": low, f"{key}_high": high}


def seconds(run: Run) -> float:
    """How long a step takes."""
    return run.seconds


def cpu(run: Run) -> float:
    """How long the threads of a rank compute in a step."""
    return run.cpu


def peak(run: Run) -> float:
    """The most memory that is used at any time."""
    return run.peak


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
    title = "2 ranks, medians"
    width = max(len(name) for name in [*runs, title])
    lines = [f"{title:<{width}}{'step, s':>9}{'peak, MB':>10}{'steady, MB':>12}{'sent a rank, MB':>17}"]
    for name, of_one in runs.items():
        wire = [one.wire for one in of_one if one.wire is not None]
        crossed = f"{statistics.median(wire) / MB:.1f}" if wire else "-"
        step, most, steady = (
            statistics.median(getattr(one, figure) for one in of_one)
            for figure in ("seconds", "peak", "steady")
        )
        lines.append(f"{name:<{width}}{step:>9.3f}{most / MB:>10.1f}{steady / MB:>12.1f}{crossed:>17}")
    return "\n".join(lines)


def relative(figures: Figures) -> str:
    """The ratios with their spread."""
    keys = [key for key in figures if "_ratio_" in key and not any(name in key for name in OTHERS)]
    return table("ours over theirs", keys, figures)


def alone_as_text(figures: Figures) -> str:
    """The levers with their spread."""
    starts = ("lever_", "checkpointed_", *OTHERS, *(f"peak_ratio_{name}" for name in OTHERS))
    return table("one over the other", [key for key in figures if key.startswith(starts)], figures)


def table(title: str, keys: list[str], figures: Figures) -> str:
    """Some figures, one a line, with their quartiles beside them."""
    keys = [key for key in keys if not key.endswith(("_low", "_high"))]
    width = max(map(len, [title, *keys]))
    lines = [f"{title:<{width}}{'median':>8}{'quartiles':>18}"]
    for key in keys:
        low, high = figures.get(f"{key}_low"), figures.get(f"{key}_high")
        between = f"{low:.3f} to {high:.3f}" if low is not None and high is not None else ""
        lines.append(f"{key:<{width}}{figures[key]:>8.3f}{between:>18}")
    return "\n".join(lines)


def between_steps(figures: Figures, size: Size) -> str:
    """What a rank stores between two steps, and what the checks of the order cost."""
    prefix = "steady_bytes_of_"
    parts = {key.removeprefix(prefix): value for key, value in figures.items() if key.startswith(prefix)}
    lines = [f"{'stored between steps, bytes':<28}{'':>12}"]
    lines += [f"{name.replace('_', ' '):<28}{value:>12,}" for name, value in parts.items()]
    lines += [f"{'12 bytes a parameter, halved':<28}{6 * parameters(config_of(size)):>12,}"]
    cost = 1000 * float(figures["order_check_seconds"] or 0)
    share = 100 * float(figures["order_check_share"] or 0)
    return "\n".join([*lines, "", f"checks of the order: {cost:.3f} ms a step, {share:.3f} % of it"])


def floor(figures: Figures) -> str:
    """What must be there at the peak, and how far above it a run is."""
    prefix = "floor_bytes_of_"
    parts = {key.removeprefix(prefix): value for key, value in figures.items() if key.startswith(prefix)}
    lines = [f"{'must be there at the peak, bytes':<42}"]
    lines += [f"{name.replace('_', ' '):<42}{value:>12,}" for name, value in parts.items()]
    lines += [f"{'together':<42}{figures['floor_bytes']:>12,}"]
    lines += [f"{'lean, the least without computing twice':<42}{figures['lean_least_bytes']:>12,}"]
    keys = ["peak_over_floor", "lean_peak_over_least", f"lean_least_over_{THEIRS}"]
    keys += ["lean_least_share_of_saved_activations", "over_floor_seconds", "waiting_seconds"]
    return "\n".join([*lines, "", table("beside the floor", keys, figures)])


if __name__ == "__main__":
    sys.exit(main())
