"""`python -m shardbook.train`."""

import os
import sys

from shardbook.train.loop import main

if __name__ == "__main__":
    code = main()
    # All is done and written. The backend has threads of its own, and torch may keep
    # them running beyond the end of the group. If the interpreter shut down while one
    # of them releases a tensor, the process would abort, and the launcher would report
    # a failure. So the process ends here, without a shutdown.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
