"""# Whole files

> A file is written under another name and takes its place in one move, so nobody ever reads half of it.
"""

from __future__ import annotations

import glob
import os
import tempfile
from pathlib import Path

from sidelit import interrupts, leftovers


def write(path: Path, content: bytes) -> bool:
    """Write a file if it differs from what stands there, and say whether it did.

    What a killed process left behind on its way to this file is removed.
    """
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in leftovers.abandoned(path.parent, f"{glob.escape(path.name)}????????.new"):
        left.unlink(missing_ok=True)
    fresh: list[Path] = []

    def remove() -> None:
        for each in fresh:
            each.unlink(missing_ok=True)

    with interrupts.tidied(remove):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")
        fresh.append(Path(name))
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if (lock := leftovers.claim(fresh[0])) is None:
                return write(path, content)  # Another process took it for one that was left behind.
        fresh[0].chmod(0o644)
        fresh[0].replace(path)
        os.close(lock)
    return True
