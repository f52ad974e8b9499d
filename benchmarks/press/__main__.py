"""Measure the press: against Pycco, in several languages, after one edit, in memory, and in a browser.

Runs of two kinds take turns, and what counts is the median of the ratios of one round: the machine is never
quite the same twice. A run is a fresh process, and its processor time is that of all processes it started.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.press import book, foreign, visit
from benchmarks.press.cost import Cost, run, sidelit

MB = 1e6
PAGE = "hooks.html"
# The folder of each language's pages.
LANGUAGES = {"en": "", "ja": "ja/", "zh": "zh/"}
Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Goal:
    """What a figure should be: at least or at most this."""

    figure: str
    limit: float
    at_least: bool = False

    def row(self, figures: Figures) -> str:
        """A line of the table."""
        value = figures[self.figure]
        held = value >= self.limit if self.at_least else value <= self.limit
        bound = f"{'>=' if self.at_least else '<='} {self.limit:,g}"
        return f"{self.figure:<28}{value:>12,.3f}{bound:>14}{'held' if held else 'MISSED':>9}"


GOALS = (
    Goal("pages_a_cpu_second_ratio", 1.0, at_least=True),
    Goal("pages_a_wall_second_ratio", 2.0, at_least=True),
    Goal("three_languages_ratio", 1.5),
    *(
        Goal(f"edit_{kind}_{way}_share", 0.05 if kind == "words" else 0.1)
        for way in ("build", "serve")
        for kind in book.EDITS
    ),
    Goal("peak_of_four_times_ratio", 1.1),
    *(
        Goal(f"visit_{name}_{lang}_{width}", limit)
        for name, limit in (("bytes", 100_000), ("requests", 12), ("shift", 0.02))
        for lang in LANGUAGES
        for width in visit.HEIGHTS
    ),
)


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for, print the tables, write the figures."""
    options = parse(arguments)
    parts: dict[str, Callable[[Path, argparse.Namespace], Figures]] = {
        "foreign": against_pycco,
        "book": the_book,
        "memory": in_memory,
        "visit": in_a_browser,
    }
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {platform.system()} {platform.release()}; "
        f"Python {platform.python_version()}; {options.rounds} rounds, medians\n"
    )
    figures: Figures = {}
    with tempfile.TemporaryDirectory(prefix="bench-press-") as folder:
        for name in options.parts or parts:
            figures |= parts[name](Path(folder), options)
    for name, value in figures.items():
        print(f"{name:<40}{value:>16,.3f}")
    print(f"\n{'figure':<28}{'measured':>12}{'goal':>14}")
    print("\n".join(goal.row(figures) for goal in GOALS if goal.figure in figures))
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.press", description=__doc__)
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help="foreign, book, memory or visit; default: all")
    add("--rounds", type=int, default=5, metavar="N", help="runs of each kind (default: %(default)s)")
    add("--files", type=int, default=75, metavar="N", help="files of each library (default: %(default)s)")
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file, as one flat object")
    options = parser.parse_args(arguments)
    unknown = set(options.parts) - {"foreign", "book", "memory", "visit"}
    if unknown:
        parser.error(f"there is no part {sorted(unknown)[0]!r}")
    return options


def against_pycco(folder: Path, options: argparse.Namespace) -> Figures:
    """Pages a second: ours over theirs."""
    folder = folder / "foreign"
    files = foreign.copied(folder, options.files)
    theirs, ours = _in_turn(
        "foreign", options.rounds, lambda: foreign.pycco(folder, files), lambda: foreign.press(folder, files)
    )
    return {
        "foreign_files": len(files),
        "pycco_pages_a_cpu_second": len(files) / _median([one.cpu for one in theirs]),
        "press_pages_a_cpu_second": len(files) / _median([one.cpu for one in ours]),
        "pages_a_cpu_second_ratio": _ratio(theirs, ours, "cpu"),
        "pages_a_wall_second_ratio": _ratio(theirs, ours, "wall"),
    }


def the_book(folder: Path, options: argparse.Namespace) -> Figures:
    """Three languages over one, and one edit over all of it."""
    three, one = book.copied(folder / "three"), book.in_english(folder / "one")
    threes, ones = _in_turn("languages", options.rounds, lambda: book.cold(three), lambda: book.cold(one))
    colds: list[Cost] = []
    costs: dict[tuple[str, str], list[Cost]] = {}
    for number in range(options.rounds):
        print(f"edits: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        colds.append(book.cold(three))
        for kind in book.EDITS:
            costs.setdefault((kind, "build"), []).append(book.again(three, kind))
    served = book.Served(three)
    try:
        for _ in range(options.rounds):
            for kind in book.EDITS:
                costs.setdefault((kind, "serve"), []).append(served.edited(kind))
    finally:
        served.close()
    return {
        "book_pages": book.pages(three),
        "cold_cpu_seconds": _median([cost.cpu for cost in threes]),
        "cold_wall_seconds": _median([cost.wall for cost in threes]),
        "one_language_cpu_seconds": _median([cost.cpu for cost in ones]),
        "three_languages_ratio": _ratio(threes, ones, "cpu"),
        **{
            f"edit_{kind}_{way}_wall_seconds": _median([cost.wall for cost in each])
            for (kind, way), each in costs.items()
        },
        **{f"edit_{kind}_{way}_share": _ratio(each, colds, "cpu") for (kind, way), each in costs.items()},
    }


def in_memory(folder: Path, options: argparse.Namespace) -> Figures:
    """The peak of one process, for more and more files of one size."""
    peaks = {}
    for count in (250, 500, 1000):
        print(f"memory: {count} files", file=sys.stderr, flush=True)
        files = foreign.generated(folder / f"generated_{count}", count)
        peaks[count] = run(sidelit("print", files, "--out", f"printed_{count}"), folder).peak
    return {
        **{f"peak_megabytes_{count}": peak / MB for count, peak in peaks.items()},
        "peak_of_four_times_ratio": peaks[1000] / peaks[250],
    }


def in_a_browser(folder: Path, options: argparse.Namespace) -> Figures:
    """A first visit to a chapter, in each language."""
    project = folder / "three"
    if not project.exists():
        book.copied(project)
    book.cold(project)
    folder = project / "build" / "site"
    found = {lang: visit.visits(folder, prefix + PAGE) for lang, prefix in LANGUAGES.items()}
    return {
        f"visit_{name}_{lang}_{width}": getattr(seen, name)
        for name in ("bytes", "requests", "shift")
        for lang, widths in found.items()
        for width, seen in widths.items()
    }


def _in_turn(
    name: str, rounds: int, first: Callable[[], Cost], second: Callable[[], Cost]
) -> tuple[list[Cost], list[Cost]]:
    """Both kinds of runs, turn by turn."""
    runs: tuple[list[Cost], list[Cost]] = ([], [])
    for number in range(rounds):
        print(f"{name}: round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        runs[0].append(first())
        runs[1].append(second())
    return runs


def _ratio(over: list[Cost], under: list[Cost], figure: str) -> float:
    """The median of the ratios, round by round."""
    pairs = zip(over, under, strict=True)
    return _median([getattr(one, figure) / getattr(other, figure) for one, other in pairs])


def _median(numbers: list[float]) -> float:
    return statistics.median(numbers)


if __name__ == "__main__":
    sys.exit(main())
