"""# A build is whole or not there

> The new site is written beside the old one and takes its place in one move.

A reader, a web server or a copy job that looks at the site during a build sees the old one; a build that
fails leaves the old one untouched. Nothing is ever written into the folder that is being served.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sidelit.errors import SidelitError

# Every site has this file, and hardly anything else does.
MARK = "assets/sidelit.js"


def write(files: Mapping[str, bytes], target: Path) -> None:
    """Write a whole site to `target`, in place of what is there.

    Raises `SidelitError` when the disk refuses; then `target` is as it was.
    """
    target = target.resolve()
    check_target(target)
    try:
        fresh = fresh_folder(target)
        try:
            for name, content in files.items():
                path = fresh / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            switch(fresh, target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise SidelitError(
            f"cannot write the site: {error.strerror}", path=str(error.filename or target)
        ) from None


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


def fresh_folder(target: Path) -> Path:
    """Make an empty folder beside `target`: on the same disk, so that a rename can move it there."""
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    # `mkdtemp` keeps everybody else out, but a site is there to be read.
    folder.chmod(0o755)
    return folder


def switch(fresh: Path, target: Path) -> None:
    """Put `fresh` where `target` is; the old folder is deleted only when the new one stands in its place."""
    if not target.exists():
        fresh.rename(target)
        return
    old = fresh_folder(target)
    # POSIX lets a rename replace an empty folder, so `old` is the place the old site moves to.
    target.rename(old / "site")
    try:
        fresh.rename(target)
    except OSError:
        (old / "site").rename(target)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)
