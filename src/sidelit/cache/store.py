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
import sqlite3
import sys
import tempfile
import threading
import time
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
#
# The entries lie in one SQLite database, in which several processes may write at a time: to make a file for
# each took five times as long. Its name follows from the key, so nobody else's is ever opened.


_SIZE = 32
# Changes with the columns of the table.
_LAYOUT = "1"
# The seconds after which a use is noted again. The note of each would be a transaction.
_LATELY = 600
_OPENING = (
    "pragma page_size = 16384",
    "pragma auto_vacuum = incremental",
    "pragma journal_mode = wal",
    # Whoever loses power loses time.
    "pragma synchronous = off",
    "create table if not exists kept"
    " (name text primary key, used integer, size integer, signed blob, about blob, content blob)",
)


class Store:
    """Entries of bytes by their names, which are digests in hexadecimal digits.

    :param folder: where they are kept, made when needed; `None` keeps nothing.
    :param key: signs the entries of a folder that nobody else finds; by default this user's key does.
    :param top: the folder around it that git is to pass over, where it lies in somebody's repository.
    """

    def __init__(self, folder: Path | None, key: bytes | None = None, top: Path | None = None) -> None:
        self._folder = folder
        self._top = top
        self._key = key or (_key(home()) if folder is not None else None)
        # By process and thread: one that was forked must not use, or close, what it came with.
        self._opened: dict[tuple[int, int], sqlite3.Connection | None] = {}

    @property
    def keeps(self) -> bool:
        """Whether anything is kept at all."""
        return self._key is not None

    @property
    def path(self) -> Path | None:
        """The database, whether it is there or not."""
        if self._folder is None or self._key is None:
            return None
        return self._folder / f"{self._signature(_LAYOUT, b'').hex()[:16]}.sqlite"

    def get(self, name: str) -> bytes | None:
        """What is kept under a name; `None` if nothing is, or nothing that may be trusted."""
        return self._read(name, "content", _SIZE)

    def about(self, name: str) -> bytes | None:
        """What was said about it when it was put there; what is kept itself is not read."""
        return self._read(name, "about", 0)

    def _read(self, name: str, column: str, place: int) -> bytes | None:
        found = self._asked(f"select used, signed, {column} from kept where name = ?", name)
        if not found:
            return None
        used, signed, data = found[0]
        # In a damaged database anything may stand anywhere.
        if not (isinstance(used, int) and isinstance(signed, bytes) and isinstance(data, bytes)):
            return None
        if not hmac.compare_digest(signed[place : place + _SIZE], self._signature(f"{column} {name}", data)):
            return None
        if used < time.time() - _LATELY:
            # What was used last is removed last.
            self._asked("update kept set used = ? where name = ?", int(time.time()), name)
        return data

    def put(self, name: str, content: bytes, about: bytes = b"") -> None:
        """Keep something. A folder that cannot be written to costs time, never the build."""
        if self._key is not None:
            signed = self._signature(f"about {name}", about) + self._signature(f"content {name}", content)
            row = (name, int(time.time()), len(about) + len(content), signed, about, content)
            self._asked("insert or replace into kept values (?, ?, ?, ?, ?, ?)", *row)

    def trim(self, most: int) -> None:
        """Remove what was not used for longest until all entries have at most so many bytes."""
        ordered = "select name, sum(size) over (order by used desc, rowid desc) as so_far from kept"
        self._asked(f"delete from kept where name in (select name from ({ordered}) where so_far > ?)", most)
        self._asked("pragma incremental_vacuum")

    def close(self) -> None:
        """Let go of the database; whoever asks for an entry opens it again."""
        if database := self._opened.pop(_here(), None):
            database.close()

    def _asked(self, sentence: str, *values: object) -> list[Any]:
        """What the database says; nothing where there is none, or where it cannot say anything."""
        if (database := self._database()) is None:
            return []
        try:
            if not values:
                # Stepped through to its end, which `execute` does for a query alone.
                database.executescript(sentence)
                return []
            return database.execute(sentence, values).fetchall()
        except _FAILURES as error:
            if _is_damage(error):
                self._remove(database)
            return []

    def _database(self) -> sqlite3.Connection | None:
        if (here := _here()) not in self._opened:
            self._opened[here] = self._open(again=True)
        return self._opened[here]

    def _open(self, *, again: bool) -> sqlite3.Connection | None:
        if (path := self.path) is None:
            return None
        database = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if self._top is not None:
                _pass_over(self._top)
            database = sqlite3.connect(path, isolation_level=None)
            for sentence in _OPENING:
                database.execute(sentence)
        except _FAILURES as error:
            if not _is_damage(error):
                return None
            self._remove(database)
            return self._open(again=False) if again else None
        return database

    def _remove(self, database: sqlite3.Connection | None) -> None:
        """Remove a database that is damaged; this process does without."""
        if database:
            database.close()
        self._opened[_here()] = None
        for ending in ("", "-wal", "-shm"):
            with contextlib.suppress(OSError):
                Path(f"{self.path}{ending}").unlink()

    def _signature(self, name: str, content: bytes) -> bytes:
        signature = blake2b(f"{name}\n".encode(), key=self._key or b"", digest_size=_SIZE)
        signature.update(content)
        return signature.digest()


def _pass_over(folder: Path) -> None:
    """Keep a folder out of the repository around it, as other tools do with what they make anew."""
    # Nothing that is there already is written to, not even through a link.
    with contextlib.suppress(OSError), (folder / ".gitignore").open("x", encoding="utf-8") as file:
        file.write("# Made by sidelit, which makes this folder again when it is gone.\n*\n")


# A damaged database may say anything, also in letters that are none.
_FAILURES = (sqlite3.Error, ValueError, OSError)
# What SQLite says where the database is sound, and the disk or another process is in the way.
_IN_THE_WAY = ("locked", "full", "readonly", "unable to open", "too big")


def _is_damage(error: Exception) -> bool:
    return not isinstance(error, OSError) and not any(words in str(error) for words in _IN_THE_WAY)


def _here() -> tuple[int, int]:
    return os.getpid(), threading.get_ident()


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
