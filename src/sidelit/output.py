"""# A build is whole or not there

> The new site is written beside the old one and takes its place in one move.

A reader, a web server or a copy job that looks at the site during a build sees the old one; a build that
fails or is stopped leaves the old one untouched. Nothing is ever written into the folder that is being
served. A build that was killed leaves its folder behind, and the next one removes it.
"""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sidelit import interrupts, leftovers
from sidelit.errors import SidelitError

# Every site has this file, and hardly anything else does.
MARK = "assets/sidelit.js"
# Where a site lies for a moment when the system cannot exchange two folders.
_OLD = "site"


@contextmanager
def written(target: Path) -> Iterator[Path]:
    """An empty folder for a whole site, which takes the place of `target` behind the block.

    Raises `SidelitError` when the disk refuses. Then, and when the block raises, `target` is as it was.
    """
    target = target.resolve()
    check_target(target)
    try:
        with fresh_folder(target) as fresh:
            yield fresh
            switch(fresh, target)
    except OSError as error:
        if not _is_about(error, target):
            raise
        raise SidelitError(
            f"cannot write the site: {error.strerror}", path=str(error.filename or target)
        ) from None


def _is_about(error: OSError, target: Path) -> bool:
    """Whether the disk refused the site, and not a file that it is made of."""
    if error.filename is None:
        return True
    path = Path(os.fsdecode(error.filename))
    return path in (target, target.parent) or any(part.startswith(_prefix(target)) for part in path.parts)


def write(files: Mapping[str, bytes], target: Path) -> None:
    """Write a whole site that is in memory to `target`, in place of what is there.

    Raises `SidelitError` when the disk refuses; then `target` is as it was.
    """
    with written(target) as fresh:
        for name, content in files.items():
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def check_target(target: Path) -> None:
    """Refuse to put a site in the place of anything but a site: what stands there will be deleted.

    Raises `SidelitError` when `target` is a file or a folder that holds something else.
    """
    if target.is_dir():
        if not (target / MARK).is_file() and any(target.iterdir()):
            what = "this folder holds something that is not a site of sidelit"
            raise SidelitError(what, path=target, hint="name a new or an empty folder")
    elif target.exists():
        raise SidelitError("this is a file, not a folder", path=target, hint="name another folder")


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """Make an empty folder beside `target`: on the same disk, so that a rename can move it there.

    What is in it behind the block, and what killed builds of `target` left behind, is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    _clear(target)
    made: list[Path] = []

    def remove() -> None:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)

    with interrupts.tidied(remove):
        handle = None
        while handle is None:
            made[:] = [Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))]
            handle = leftovers.claim(made[0])
        try:
            # `mkdtemp` keeps everybody else out, but a site is there to be read.
            made[0].chmod(0o755)
            yield made[0]
        finally:
            os.close(handle)


def switch(fresh: Path, target: Path) -> None:
    """Put `fresh` where `target` is, in one move; the old site is in `fresh` then, if there was one."""
    if not target.exists():
        fresh.rename(target)
    elif not _exchange(fresh, target):
        _switch_in_two(fresh, target)


def _prefix(target: Path) -> str:
    return f".{target.name}.sidelit-"


def _clear(target: Path) -> None:
    """Remove what killed builds left behind, but bring back a site that one of them had moved away."""
    for folder in leftovers.abandoned(target.parent, f"{glob.escape(_prefix(target))}????????"):
        if (folder / _OLD / MARK).is_file() and not target.exists():
            (folder / _OLD).rename(target)
        shutil.rmtree(folder, ignore_errors=True)


def _exchange(fresh: Path, target: Path) -> bool:
    """Exchange two folders in one move; false where the system cannot do that."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(fresh), os.fsencode(target)
    if sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        return int(libc.renamex_np(*names, _RENAME_SWAP)) == 0
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        return int(libc.renameat2(_CURRENT, names[0], _CURRENT, names[1], _RENAME_EXCHANGE)) == 0
    return False


# The numbers that the C libraries give to these words.
_CURRENT, _RENAME_EXCHANGE, _RENAME_SWAP = -100, 2, 2


def _switch_in_two(fresh: Path, target: Path) -> None:
    """Move the old site away, then the new one in; between the two moves there is none."""
    with fresh_folder(target) as old:
        target.rename(old / _OLD)
        try:
            fresh.rename(target)
        except OSError:
            (old / _OLD).rename(target)
            raise
