"""`python -m shardbook.check`."""

import os
import sys

from shardbook.check.check_command import main

if __name__ == "__main__":
    code = main()
    # As after [training](../train/__main__.py), threads of the backend may still run.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
