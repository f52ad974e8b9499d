"""Record what the figures show: `python -m tools.record` all of it, `python -m tools.record ring` a part."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from tools.record.frame import make, names


def main(chosen: Sequence[str]) -> None:
    """Run the recordings with these names, or all of them."""
    unknown = [name for name in chosen if name not in names()]
    if unknown:
        sys.exit(f"there is no recording {unknown[0]!r}; choose from {', '.join(names())}")
    for name in chosen or names():
        started = time.perf_counter()
        path = make(name)
        seconds, size = time.perf_counter() - started, path.stat().st_size
        print(f"{path.name:<20}{size:>8,} bytes{seconds:>8.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
