"""# `python -m sidelit`

> The same as the command `sidelit`, which starts here too.

The press takes a moment to load, and Ctrl-C may come in that moment.
"""

import gc
import sys

from sidelit.files import atomic


def main() -> int:
    """Run the command that the arguments of this process name, and return its exit code."""
    atomic.arm()
    from sidelit.cli import options

    try:
        return options.main()
    finally:
        # The process ends: nobody need look for garbage in what it leaves.
        gc.freeze()


if __name__ == "__main__":
    sys.exit(main())
