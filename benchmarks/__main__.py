"""Compare Shardbook with PyTorch's own data parallel training.

Every contender trains the same GPT on the same batches, one thread a rank, on CPU and gloo. The runs of the
contenders alternate, because single runs of one program differ more than the programs do. The table shows
medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.contender import CONTENDERS
from benchmarks.launch import Run, Size, run

OURS = "shardbook"


def main() -> int:
    """Run all contenders in turn, print the table, write the figures."""
    options = arguments()
    size = Size(options.layers, options.width, options.context, options.batch, options.steps)
    runs: dict[str, list[Run]] = defaultdict(list)
    for number in range(options.rounds):
        for name in CONTENDERS:
            print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
            runs[name].append(run(name, 2, size))
    more_ranks = run(OURS, 4, size)
    table = {name: median(of_one) for name, of_one in runs.items()}
    figures = compare(table, more_ranks)
    show(table)
    for name, value in figures.items():
        print(f"{name:24} {value:.3f}" if value is not None else f"{name:24} not measured here")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each contender (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=6, help="timed steps of a run (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=8, help="blocks of the model (default: %(default)s)")
    parser.add_argument("--width", type=int, default=512, help="width of the model (default: %(default)s)")
    parser.add_argument("--context", type=int, default=128, help="positions (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=4, help="sequences a rank (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the ratios to FILE")
    return parser.parse_args()


def median(runs: list[Run]) -> Run:
    """The medians of some runs, figure by figure."""
    sent = [one.sent for one in runs if one.sent is not None]
    return Run(
        seconds=statistics.median(one.seconds for one in runs),
        peak=statistics.median(one.peak for one in runs),
        sent=statistics.median(sent) if sent else None,
        parameters=runs[0].parameters,
    )


def compare(table: dict[str, Run], more_ranks: Run) -> dict[str, float | None]:
    """The ratios that the project promises something about."""
    ours = table[OURS]
    return {
        "step_ratio_ddp": ours.seconds / table["ddp"].seconds,
        "step_ratio_fsdp2": ours.seconds / table["fsdp2"].seconds,
        "step_ratio_fsdp2_tuned": ours.seconds / table["fsdp2_tuned"].seconds,
        "peak_ratio_fsdp2": ours.peak / table["fsdp2"].peak,
        "bytes_ratio_limit_n2": over_limit(ours, 2),
        "bytes_ratio_limit_n4": over_limit(more_ranks, 4),
    }


def over_limit(one: Run, ranks: int) -> float | None:
    """Bytes sent over what ZeRO-3 cannot do without: two gathers and one reduction of FP32 values."""
    return one.sent / (3 * 4 * one.parameters * (ranks - 1) / ranks) if one.sent is not None else None


def show(table: dict[str, Run]) -> None:
    """Print one line a contender."""
    print(f"{'2 ranks, medians':24} {'step, s':>8} {'peak, MB':>9} {'sent a rank and step, MB':>25}")
    for name, one in table.items():
        sent = "not measured" if one.sent is None else f"{one.sent / 1e6:.1f}"
        print(f"{name:24} {one.seconds:8.3f} {one.peak / 1e6:9.1f} {sent:>25}")


if __name__ == "__main__":
    sys.exit(main())
