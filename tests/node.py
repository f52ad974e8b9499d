"""What one node of a test on two nodes does: some programs, one after the other, each from a warm Python.

    python -m benchmarks.nodes python tests/node.py FOLDER PROGRAMS

PROGRAMS is a list of lists of words, as JSON. `PYTHON` is the warm Python, and `FIRST` the address of the
first node. After each program the node writes into FOLDER/crossed-NODE what it has put on the wire.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.nodes import crossed

import warm


def main(folder: Path, programs: list[list[str]]) -> int:
    """Run the programs as long as they succeed; the exit code of the last one."""
    node = os.environ["NODE"]
    torchrun = folder / f"torchrun-{node}"
    torchrun.write_text(f'#!/bin/sh\nexec "{warm.python()}" -m torch.distributed.run "$@"\n', "utf-8")
    torchrun.chmod(0o755)
    settings = {
        "TORCHRUN": str(torchrun),
        "CHECKPOINTS": str(folder / "run"),
        # Both nodes have the same name, so torchrun cannot find out which of them the address is.
        "PET_RDZV_CONF": f"is_host={int(node == '0')}",
        "PET_LOCAL_ADDR": os.environ["ADDRESS"],
    }
    words = {"PYTHON": warm.python(), "FIRST": os.environ["FIRST"]}
    counts = []
    for program in programs:
        command = [words.get(word, word.replace("FIRST:", words["FIRST"] + ":")) for word in program]
        before = crossed()
        code = subprocess.run(command, env=warm.environment(**settings), check=False).returncode
        counts.append(crossed() - before)
        (folder / f"crossed-{node}").write_text(json.dumps(counts), "utf-8")
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), json.loads(sys.argv[2])))
