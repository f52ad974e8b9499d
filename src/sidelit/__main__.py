"""# `python -m sidelit`

> The same as the command `sidelit`, which starts here too.

The press takes a moment to load, and Ctrl-C may come in that moment.
"""

import sys

from sidelit import interrupts


def main() -> int:
    """Run the command that the arguments of this process name, and return its exit code."""
    interrupts.arm()
    from sidelit import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
