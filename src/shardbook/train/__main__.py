"""`python -m shardbook.train`."""

import os
import sys

from shardbook.train.loop import main

if __name__ == "__main__":
    code = main()
    # The backend has threads of its own, and torch may keep them running after the
    # process group has ended. Suppose the interpreter shuts down while such a thread
    # releases a tensor. Then the process aborts, and the launcher reports a failure.
    # All results are written by now, so the process ends here without a shutdown.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
