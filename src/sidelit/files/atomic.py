"""# Files that are written

> What is written is whole or not there, whatever stops the program.
"""

from __future__ import annotations

import ctypes
import glob
import os
import shutil
import signal
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from sidelit.errors import SidelitError
from sidelit.files import assets

# ## Ctrl-C
#
# > Who stops a command gets the prompt back at once: no traceback, and nothing half-written is left.
#
# Python turns Ctrl-C into an exception, which may be raised while a module is being imported, inside a
# callback that prints and forgets it, or twice. A command of the press is simpler to stop: what it is writing
# is not in its place yet, so it is removed, and the process ends.


# What a process does before it ends; only a door of the press calls `arm`, so in other programs this is idle.
_tidying: list[Callable[[], object]] = []
_armed_in = 0


def arm() -> None:
    """End this process at Ctrl-C, or when it is told to terminate, with the exit code that a shell expects.

    The code is 128 and the number of the signal: 130 after Ctrl-C. A signal that is ignored, or that somebody
    else takes care of, stays as it is.
    """
    global _armed_in
    if threading.current_thread() is not threading.main_thread():
        return
    _armed_in = os.getpid()
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is usual:
            signal.signal(number, _stop)


def disarm() -> None:
    """Give both signals back their usual meaning."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is _stop:
            signal.signal(number, usual)


@contextmanager
def tidied(tidy: Callable[[], object]) -> Iterator[None]:
    """Call `tidy` behind this block, and also when the process is stopped inside it."""
    _tidying.append(tidy)
    try:
        yield
    finally:
        tidy()
        _tidying.remove(tidy)


def _stop(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    # A process that was forked from this one has the same handler, and nothing to say or to remove.
    if os.getpid() == _armed_in:
        os.write(2, b"Stopped.\n")
        _end_children()
        for tidy in reversed(_tidying):
            tidy()
    os._exit(128 + number)


def _end_children() -> None:
    """End the processes that share the work, if there are any: they would wait for more of it."""
    if "multiprocessing.process" in sys.modules:
        children = sys.modules["multiprocessing.process"].active_children()
        for child in children:
            child.kill()
        # Until it has ended, a process may still write into what is removed next.
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(child.pid, 0)


# ## What a killed process leaves behind
#
# > A file or folder that is still being made is locked by its maker; without a lock nobody will finish it.
#
# A process that is killed removes nothing, so the next one does. It must not remove what a third one is
# making at that moment. The lock tells them apart, since the system gives it back however a process ends: a
# number in a name would not, because another process may have it by then.


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


# ## Whole files
#
# > A file is written under another name and takes its place in one move, so nobody ever reads half of it.


def write(path: Path, content: bytes) -> bool:
    """Write a file if it differs from what stands there, and say whether it did.

    What a killed process left behind on its way to this file is removed.
    """
    if path.exists() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in abandoned(path.parent, f"{glob.escape(path.name)}????????.new"):
        left.unlink(missing_ok=True)
    fresh: list[Path] = []

    def remove() -> None:
        for each in fresh:
            each.unlink(missing_ok=True)

    with tidied(remove):
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".new")
        fresh.append(Path(name))
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            if (lock := claim(fresh[0])) is None:
                return write(path, content)  # Another process took it for one that was left behind.
        fresh[0].chmod(0o644)
        fresh[0].replace(path)
        os.close(lock)
    return True


# ## A build is whole or not there
#
# > The new site is written beside the old one and takes its place in one move.
#
# A reader, a web server or a copy job that looks at the site during a build sees the old one; a build that
# fails or is stopped leaves the old one untouched. Nothing is ever written into the folder that is being
# served. A build that was killed leaves its folder behind, and the next one removes it.


# Every site has this file, and hardly anything else does.
MARK = "assets/sidelit.js"
# Where a site lies for a moment when the system cannot exchange two folders.
_OLD = "site"


State = tuple[int, ...]
"""What tells a file that was written from one that somebody has put there or changed."""


@dataclass(frozen=True, slots=True)
class Output:
    """Where a site is written.

    A file that would be what it was is linked to, and not written again. To make a file takes longer than all
    else that a build does for a page that has not changed.

    :param folder: holds nothing yet
    :param before: the site whose place it will take
    """

    folder: Path
    before: Path | None = None

    def below(self, name: str) -> Output:
        """A folder in it."""
        return Output(self.folder / name, self.before and self.before / name)

    def put(self, name: str, content: bytes) -> State:
        """Write a file; nothing outside of the folder, whoever gave the name."""
        if not assets.stays_inside(name):
            raise SidelitError(f"{name!r} would be written outside the site", path=self.folder)
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        # A file that was linked to is that of the site before, and nothing may be written into it.
        path.unlink(missing_ok=True)
        if self.before is None or not _linked(self.before / name, path, content):
            path.write_bytes(content)
        return _state(path)

    def take(self, name: str, state: State) -> bool:
        """Link to a file of the site before, unread, if it is still the one that was written there."""
        if self.before is None:
            return False
        old, path = self.before / name, self.folder / name
        try:
            if _state(old) != state:
                return False
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(old, path)
        except OSError:
            return False
        return True


def _state(path: Path) -> State:
    found = path.lstat()
    return found.st_mode, found.st_ino, found.st_mtime_ns, found.st_size


def _linked(old: Path, path: Path, content: bytes) -> bool:
    """Let a file be another one, if that has this content and the disk knows such links."""
    try:
        state = old.lstat()
        if not stat.S_ISREG(state.st_mode) or state.st_size != len(content) or old.read_bytes() != content:
            return False
        os.link(old, path)
    except OSError:
        return False
    return True


@contextmanager
def written(target: Path) -> Iterator[Output]:
    """An empty folder for a whole site, which takes the place of `target` behind the block.

    Raises `SidelitError` when the disk refuses. Then, and when the block raises, `target` is as it was.
    """
    target = target.resolve()
    check_target(target)
    try:
        with fresh_folder(target) as fresh:
            yield Output(fresh, target)
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


def write_folder(files: Mapping[str, bytes], target: Path) -> None:
    """Write a whole site that is in memory to `target`, in place of what is there.

    Raises `SidelitError` when the disk refuses; then `target` is as it was.
    """
    with written(target) as fresh:
        for name, content in files.items():
            fresh.put(name, content)


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

    with tidied(remove):
        handle = None
        while handle is None:
            made[:] = [Path(tempfile.mkdtemp(prefix=_prefix(target), dir=target.parent))]
            handle = claim(made[0])
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
    for folder in abandoned(target.parent, f"{glob.escape(_prefix(target))}????????"):
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
