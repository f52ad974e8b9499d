"""`python -m shardbook.finetune_neox`."""

import os
import sys

from shardbook.finetune_neox.finetune import main

if __name__ == "__main__":
    code = main()
    # As [the training program](train/__main__.py) does: no shutdown of the interpreter.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
