"""Record what the figures show: `python -m tools.record` all of it, `python -m tools.record ring` a part."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tools.record import labs
from tools.record.frame import make, names


def main(chosen: Sequence[str]) -> None:
    """Run the recordings with these names, or all of them."""
    known = [*names(), labs.NAME]
    unknown = [name for name in chosen if name.partition("/")[0] not in known]
    if unknown:
        sys.exit(f"there is no recording {unknown[0]!r}; choose from {', '.join(known)}")
    for name in chosen or known:
        if name.partition("/")[0] == labs.NAME:
            for stem, lang in labs.chosen(name):
                timed(f"{lang}/{stem}", lambda stem=stem, lang=lang: labs.make(stem, lang))
        else:
            timed(name, lambda name=name: make(name))


def timed(name: str, made: Callable[[], Path]) -> None:
    """Make one recording and say what it took."""
    started = time.perf_counter()
    path = made()
    seconds, size = time.perf_counter() - started, path.stat().st_size
    print(f"{name:<28}{size:>8,} bytes{seconds:>8.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
