"""# Work that earlier builds have done

> What follows from the same inputs is not done twice: a digest names the inputs, and a store keeps the
> result.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import marshal
import os
import platform
import re
import secrets
import sys
import tempfile
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path, PurePath
from typing import Any

# ## Digests
#
# > One short name stands for all that a piece of work was made from; where any of it differs, so does the
# > name.
#
# It is the same in every process: sets are put in order, and nothing depends on where an object lies in
# memory.


# The version of the format that depends on values alone; later ones write what is the same object once.
_FORMAT = 2
# What is written as it is.
_PLAIN = {type(None), str, int, bool, float, bytes}


def digest(*values: object) -> str:
    """A digest of texts, numbers, paths, patterns, records, and of tuples, lists, mappings and sets of such.

    Raises `TypeError` for a value of another kind.
    """
    return _digest(tuple(_Walk().plain(value) for value in values)).hex()


def of_files(paths: Iterable[Path]) -> str:
    """A digest of files: their paths and what is in them. One that cannot be read counts as empty."""
    return digest([(path, _content(path)) for path in paths])


def of_folder(folder: Path, pattern: str = "*") -> str:
    """A digest of all files below a folder that match a pattern."""
    return of_files(path for path in sorted(folder.rglob(pattern)) if path.is_file())


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _digest(plain: Any) -> bytes:
    return hashlib.blake2b(marshal.dumps(plain, _FORMAT), digest_size=20).digest()


class _Walk:
    """Turns values into what `marshal` writes. A record that is met again is not walked again."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[object, bytes]] = {}

    def plain(self, value: Any) -> Any:
        kind: type = type(value)
        if kind in _PLAIN:
            return value
        if kind is tuple or kind is list:
            return tuple([each if type(each) is str else self.plain(each) for each in value])
        if _fields(kind) is not None:
            return self._record(value)
        if isinstance(value, Mapping):
            return "mapping", tuple([(self.plain(key), self.plain(each)) for key, each in value.items()])
        if isinstance(value, Set):
            if all(type(each) is str for each in value):
                return "set", tuple(sorted(value))
            return "set", tuple(sorted(_digest(self.plain(each)) for each in value))
        if isinstance(value, PurePath | str):
            return str(value)
        if isinstance(value, re.Pattern):
            return "pattern", value.pattern, value.flags
        if isinstance(value, Exception):
            return kind.__qualname__, str(value)
        raise TypeError(f"a {kind.__qualname__} has no digest")

    def _record(self, value: Any) -> bytes:
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        kind: type = type(value)
        told = [self.plain(getattr(value, name)) for name in _fields(kind) or ()]
        made = _digest((kind.__qualname__, *told))
        # The record is kept as long as its number counts, so that no other one gets it.
        self._known[id(value)] = value, made
        return made


@cache
def _fields(kind: type) -> tuple[str, ...] | None:
    """The names of the fields of a record; `None` for what is none."""
    return tuple(field.name for field in fields(kind)) if is_dataclass(kind) else None


# ## A store of finished work
#
# > What took long to make is kept on disk for the next build, which trusts only what this user's press wrote.
#
# A project may come from a stranger, with a folder of finished pages in it that nobody has made from its
# sources. So each entry is signed with a key that lies in the home of the user, and the signature covers the
# name of the entry, too. An entry that is damaged, moved or foreign counts as none. Where no key can be kept,
# nothing is: then a build takes longer and makes the same.


# The bytes of a signature, and of the number that says how much is said about an entry.
_SIZE, _LENGTH = 32, 8
# Hardly ever is more said about an entry than this many bytes.
_SHORT = 8192


class Store:
    """Entries of bytes by their names, which are digests in hexadecimal digits.

    :param folder: where they are kept, made when needed; `None` keeps nothing.
    :param key: signs the entries of a folder that nobody else finds; by default this user's key does.
    """

    def __init__(self, folder: Path | None, key: bytes | None = None) -> None:
        self._folder = folder
        self._key = key or (_key(home()) if folder is not None else None)

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._key is not None

    def get(self, name: str) -> bytes | None:
        """What is kept under a name; `None` if nothing is, or nothing that may be trusted."""
        found = self._read(name)
        return found and found[1]

    def about(self, name: str) -> bytes | None:
        """What was said about it when it was put there; what is kept itself is not read."""
        found = self._read(name, _SHORT)
        return found and found[0]

    def _read(self, name: str, most: int = -1) -> tuple[bytes, bytes] | None:
        """What is said about an entry, and the entry; both are signed, so a part may be read alone."""
        if self._key is None:
            return None
        path = self._path(name)
        try:
            with path.open("rb", buffering=0) as file:
                data = file.read(most)
                start = 2 * _SIZE + _LENGTH
                end = start + int.from_bytes(data[2 * _SIZE : start], "little")
                if most >= 0 and len(data) < end:
                    data += file.read(end - len(data))
        except OSError:
            return None
        about, content = data[start:end], data[end:]
        signed = [(data[:_SIZE], self._signature(f"about {name}", about))]
        if most < 0:
            signed.append((data[_SIZE : 2 * _SIZE], self._signature(name, content)))
        if not all(hmac.compare_digest(*each) for each in signed):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # What was used last is removed last.
        return about, content

    def put(self, name: str, content: bytes, about: bytes = b"") -> None:
        """Keep something. A folder that cannot be written to costs time, never the build."""
        if self._key is None:
            return
        path = self._path(name)
        signatures = self._signature(f"about {name}", about) + self._signature(name, content)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(path, signatures + len(about).to_bytes(_LENGTH, "little") + about + content)

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
    """Where programs keep what is of use to this user alone and may be lost.

    A relative path names another place in each folder, so nobody means one, as the standard says.
    """
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return (given if given.is_absolute() else Path.home() / ".cache") / "sidelit"
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


@cache
def program() -> str:
    """The version of the press, which stays what it is while it runs, unlike its templates."""
    return of_folder(Path(__file__).parents[1], "*.py")


@cache
def environment() -> str:
    """The version of Python, and of everything that is installed beside it."""
    folders = (Path(each) for each in sys.path if Path(each).is_dir())
    installed = sorted({path.name for each in folders for path in each.glob("*.dist-info")})
    return digest(sys.version, platform.platform(), installed)
