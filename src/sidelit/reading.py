"""# Files that may be read

> A project is read and nothing else: no pipe that never ends, and nothing that lies outside of it.

Whoever runs the press may have got the project from a stranger. A pipe under the name of a catalogue would
hold the build for ever, and a link under the name of a picture could put any file of this machine on a page.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path, PurePosixPath
from typing import Any

from sidelit.errors import SidelitError


def data(path: Path) -> bytes:
    """The bytes of a file.

    :raises OSError: it cannot be read, or is a pipe, a socket or a device.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(None, "it is no regular file", str(path))
    return path.read_bytes()


def text(path: Path) -> str:
    """The text of a file in UTF-8, without the mark by which some editors begin it.

    :raises OSError: as `data` does.
    :raises UnicodeDecodeError: it is not UTF-8.
    """
    return data(path).decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def refuse_outside(path: Path, project: Path, shown: str, line: int | None = None) -> None:
    """Refuse a symbolic link that leads out of the project."""
    if not path.resolve().is_relative_to(project.resolve()):
        what = "this leads out of the project's folder by a symbolic link"
        raise SidelitError(what, path=shown, line=line, hint="put the file itself there")


def stays_inside(name: str) -> bool:
    """Whether a path of a file, with forward slashes, leads nowhere but below its folder."""
    path = PurePosixPath(name)
    return bool(path.name) and str(path) == name and not path.is_absolute() and ".." not in path.parts


def parsed(path: Path, shown: str | Path, hint: str | None = None) -> Any:
    """What a file of JSON holds.

    :raises SidelitError: it cannot be read, is not UTF-8, not JSON, or nested too deeply.
    """
    try:
        return json.loads(text(path))
    except json.JSONDecodeError as error:
        raise SidelitError(f"not valid JSON: {error.msg}", path=shown, line=error.lineno, hint=hint) from None
    except UnicodeDecodeError:
        raise SidelitError("cannot be read: it is not UTF-8", path=shown, hint=hint) from None
    except RecursionError:
        what = "its objects or lists are nested too deeply"
        raise SidelitError(what, path=shown, line=1, hint=hint) from None
    except ValueError as error:
        # A number with thousands of digits, which the parser leaves to Python.
        raise SidelitError(f"not valid JSON: {error}", path=shown, line=1, hint=hint) from None
    except OSError as error:
        raise SidelitError(f"cannot be read: {error.strerror}", path=shown, hint=hint) from None
