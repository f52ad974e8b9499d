"""# From bytes to text, and back

> A file is decoded the way Python decodes it, and refused when its bytes could not be written again.

Python lets a source choose its encoding in a comment on one of its first two lines, or with a byte order
mark. The press honours both. It translates no newlines, since a carriage return that came in must go out
again.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from sidelit.errors import SidelitError
from sidelit.files import assets

# The comment is looked for where Python looks: on the first line, or on the second one if the first holds no
# code.
CODING = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)", re.ASCII)
NO_CODE = re.compile(r"[ \t\f]*(?:#|$)", re.ASCII)

# Line ends are those of Python's own reader. `str.splitlines` knows seven more, which stand inside strings
# and comments of real files.
NEWLINE = re.compile("\r\n|\r|\n")

# These escape characters instead of encoding them. The same text has many spellings in them, so what is
# read could be written back only by luck.
ESCAPES = frozenset({"utf_7", "unicode_escape", "raw_unicode_escape", "idna", "punycode"})

# Emacs adds the kind of line ends, as in `utf-8-unix`. Python looks at these beginnings alone.
BEGINNINGS = re.compile("(utf-8)(?:-.*)?|(?:latin-1|iso-8859-1|iso-latin-1)(?:-.*)?")


def read_source(path: Path, shown: str) -> tuple[str, str]:
    """Return the text of a Python file and the name of the encoding that writes it back.

    A byte order mark belongs to the encoding (`utf-8-sig`) and not to the text.

    :param shown: the name by which errors call the file.
    :raises SidelitError: the file cannot be read, decoded or written back as it was.
    """
    try:
        data = _instead.get(path) or assets.data(path)
    except OSError as error:
        raise SidelitError(f"the file cannot be read ({error.strerror})", path=shown) from None
    return decode(data, shown)


# What is read in the place of files; only `standing_in` changes it.
_instead: dict[Path, bytes] = {}


@contextmanager
def standing_in(contents: Mapping[Path, bytes]) -> Iterator[None]:
    """Read these contents in the place of the files, which somebody is typing into."""
    _instead.update(contents)
    try:
        yield
    finally:
        _instead.clear()


def decode(data: bytes, path: str) -> tuple[str, str]:
    """Decode the bytes of a Python file, as `read_source` does."""
    encoding, line = _encoding(data, path)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise SidelitError(
            f"not valid {encoding}: {error.reason}",
            path=path,
            line=_line_at(data, error.start),
            hint="save the file as UTF-8, or declare its encoding on the first line",
        ) from None
    # A stateful encoding may be decoded and still come out differently; that is found by writing it back.
    if text.encode(encoding, "replace") != data:
        raise _one_way(encoding, path, line)
    return text, encoding


def _one_way(encoding: str, path: str, line: int) -> SidelitError:
    what = f"the encoding {encoding} cannot be written back"
    return SidelitError(what, path=path, line=line, hint="save the file as UTF-8")


def _encoding(data: bytes, path: str) -> tuple[str, int]:
    """Return the encoding that a file declares, and the line that declares it."""
    marked = data.startswith(codecs.BOM_UTF8)
    name, line = _declared(data.removeprefix(codecs.BOM_UTF8))
    try:
        found = codecs.lookup(_normal(name)).name
        "".encode(found)
    except (LookupError, UnicodeError):
        raise SidelitError(
            f"unknown encoding {name}", path=path, line=line, hint="save the file as UTF-8"
        ) from None
    if found.replace("-", "_") in ESCAPES:
        raise _one_way(found, path, line)
    if not marked:
        return found, line
    if found != "utf-8":
        raise SidelitError(
            f"the file starts with UTF-8's byte order mark but declares {name}",
            path=path,
            line=line,
            hint="remove one of the two",
        )
    return "utf-8-sig", line


def _normal(name: str) -> str:
    """Return the name by which Python calls a declared encoding."""
    known = BEGINNINGS.fullmatch(name.lower().replace("_", "-"))
    return name if known is None else known[1] or "iso-8859-1"


def _declared(data: bytes) -> tuple[str, int]:
    """Look for a coding comment. Every encoding that may be declared agrees with ASCII on such a line."""
    for number, line in enumerate(NEWLINE.split(data[:4096].decode("latin-1"))[:2], start=1):
        if match := CODING.match(line):
            return match[1], number
        if not NO_CODE.match(line):
            break
    return "utf-8", 1


def _line_at(data: bytes, position: int) -> int:
    """Count the line of a byte, for a file that cannot be decoded."""
    return len(NEWLINE.findall(data[:position].decode("latin-1"))) + 1
