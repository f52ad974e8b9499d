"""# A store of finished work

> What took long to make is kept on disk for the next build, which trusts only what this user's press wrote.

A project may come from a stranger, with a folder of finished pages in it that nobody has made from its
sources. So each entry is signed with a key that lies in the home of the user, and the signature covers the
name of the entry, too. An entry that is damaged, moved or foreign counts as none. Where no key can be kept,
nothing is: then a build takes longer and makes the same.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import tempfile
from functools import cache
from hashlib import blake2b
from pathlib import Path

_SIZE = 32


class Store:
    """Entries of bytes by their names, which are digests in hexadecimal digits.

    :param folder: where they are kept, made when needed; `None` keeps nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._key = _key(home()) if folder is not None else None

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._key is not None

    def get(self, name: str) -> bytes | None:
        """What is kept under a name; `None` if nothing is, or nothing that may be trusted."""
        if self._key is None:
            return None
        path = self._path(name)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if not hmac.compare_digest(data[:_SIZE], self._signature(name, data[_SIZE:])):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # What was used last is removed last.
        return data[_SIZE:]

    def put(self, name: str, content: bytes) -> None:
        """Keep something. A folder that cannot be written to costs time, never the build."""
        if self._key is None:
            return
        path = self._path(name)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, self._signature(name, content) + content)

    def trim(self, most: int) -> None:
        """Remove what was not used for longest until the files have at most so many bytes."""
        if self._folder is None:
            return
        found = []
        with contextlib.suppress(OSError):
            for folder in os.scandir(self._folder):
                for each in os.scandir(folder) if folder.is_dir(follow_symlinks=False) else ():
                    state = each.stat(follow_symlinks=False)
                    found.append((state.st_mtime_ns, each.path, state.st_size))
        size = sum(each[2] for each in found)
        for _, path, bytes_ in sorted(found):
            if size <= most:
                return
            size -= bytes_
            with contextlib.suppress(OSError):
                Path(path).unlink()

    def _path(self, name: str) -> Path:
        assert self._folder is not None
        return self._folder / name[:2] / name[2:]

    def _signature(self, name: str, content: bytes) -> bytes:
        signature = blake2b(f"{name}\n".encode(), key=self._key or b"", digest_size=_SIZE)
        signature.update(content)
        return signature.digest()


def home() -> Path | None:
    """Where programs keep what is of use to this user alone and may be lost."""
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sidelit"
    except RuntimeError:
        return None  # Nobody knows where the user is at home.


@cache
def _key(home: Path | None) -> bytes | None:
    """The key of this user, made when it is first asked for."""
    if home is None:
        return None
    path = home / "key"
    with contextlib.suppress(OSError):
        if not path.is_file() or path.stat().st_size != _SIZE:
            home.mkdir(parents=True, exist_ok=True)
            # Readable to nobody else, as `mkstemp` makes it.
            _write(path, secrets.token_bytes(_SIZE))
        return path.read_bytes()
    return None


def _write(path: Path, content: bytes) -> None:
    """Two builds may share the folder: a file is either whole or not there."""
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        Path(name).replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
