"""# What a killed process leaves behind

> A file or folder that is still being made is locked by its maker; without a lock nobody will finish it.

A process that is killed removes nothing, so the next one does. It must not remove what a third one is
making at that moment. The lock tells them apart, since the system gives it back however a process ends: a
number in a name would not, because another process may have it by then.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks: nothing is removed there.
    fcntl = None  # type: ignore[assignment]


def claim(path: Path) -> int | None:
    """Lock a file or folder of one's own until the handle is closed.

    Returns the handle, or `None` when somebody else was faster and is about to remove it.
    """
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        return handle  # Some file systems know no locks; then nothing is ever removed on them.
    if _is_there(path, handle):
        return handle
    os.close(handle)
    return None


def abandoned(folder: Path, pattern: str) -> Iterator[Path]:
    """The files and folders that match a pattern and that nobody is making; each is locked meanwhile."""
    if fcntl is None or not folder.is_dir():
        return
    for path in sorted(folder.glob(pattern)):
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_there(path, handle):
                yield path
        except OSError:
            pass  # Somebody is at work there, or this file system knows no locks.
        finally:
            os.close(handle)


def _is_there(path: Path, handle: int) -> bool:
    """Whether the name still means what was opened under it: it may be gone, or another one's by now."""
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except OSError:
        return False
