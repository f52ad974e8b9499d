"""# Files that are read

> A project is read and never followed outside, and the templates of the press lie beside it.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from sidelit.errors import SidelitError

# ## Files that may be read
#
# > A project is read and nothing else: no pipe that never ends, and nothing that lies outside of it.
#
# Whoever runs the press may have got the project from a stranger. A pipe under the name of a catalogue would
# hold the build for ever, and a link under the name of a picture could put any file of this machine on a
# page.


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


# Names without a dot at their start, between single slashes: nearly all are such.
_USUAL = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")


def stays_inside(name: str) -> bool:
    """Whether a path of a file, with forward slashes, leads nowhere but below its folder."""
    if _USUAL.fullmatch(name):
        return True
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


# ## Scripts as they are served
#
# > Comments and indentation stay with the sources; readers get the rest.
#
# It is a small tool for the press's own scripts. It knows their strings, and it trusts their style: every
# statement ends with a semicolon or a brace, none is empty, no template stands inside of another one, and a
# regular expression holds neither a quotation mark nor white space.


_STRING = r'"(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`'
_PART = re.compile(rf"(?P<string>{_STRING})|(?P<gap>(?:\s|//[^\n]*)+)")
# What ends the last statement of a block, or the last part of a list.
_LAST = re.compile(rf"(?P<string>{_STRING})|;(?=\}})|,(?=[\])}}])")
_OPEN = frozenset("{;,(=>&|?:[+")
_CLOSED = frozenset("})].,?:;&|")


@lru_cache
def compact(text: str) -> str:
    """Leave out of a script what a browser does not need.

    >>> compact('// Why.\\nconst a = "b  // c";\\nif (a)\\n  go(`${a} d`);\\n')
    'const a="b  // c";if(a)\\ngo(`${a} d`);'
    """
    found = _PART.sub(lambda part: part["string"] or _between(text, *part.span()), text)
    return _LAST.sub(lambda part: part["string"] or "", found.strip())


def _between(text: str, start: int, end: int) -> str:
    """What has to stay of a gap: a space between two words, a line's end where a statement may end."""
    before, after = text[start - 1 : start], text[end : end + 1]
    if "\n" in text[start:end]:
        return "" if before in _OPEN or after in _CLOSED else "\n"
    if before == after and before in "+-":
        return " "
    return " " * all(char.isalnum() or char in '_$"`' for char in (before, after) if char)


# ## Where the templates are
#
# > The press carries its look with it, wherever it was installed.
#
# In a wheel the templates lie inside the package; in a clone they lie at the top of the repository, where
# designers look for them. Everything else asks this module and never builds such a path itself.


@cache
def templates_folder() -> Path:
    """Return the folder that holds the templates, the assets and the words of the interface.

    Raises `SidelitError` when neither place has them, which means a broken installation.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "templates", package.parent.parent / "templates"):
        if (folder / "ui").is_dir():
            return folder
    raise SidelitError(
        "the templates of sidelit are not installed",
        hint="install the package again, or work in a full clone",
    )


def asset_files() -> tuple[tuple[str, Path], ...]:
    """List the files a page may refer to, as (name below `assets/`, file), in a fixed order.

    Notes for those who keep the assets are not part of a site; licences are.
    """
    folder = templates_folder() / "assets"
    files = (file for file in folder.rglob("*") if file.is_file() and not file.name.startswith("."))
    kept = (file for file in files if file.suffix != ".md" and file.name != "CHECKSUMS")
    return tuple(sorted((file.relative_to(folder).as_posix(), file) for file in kept))


def read_asset(path: Path) -> bytes:
    """What is served of a file of the assets: the press's own scripts without their comments."""
    own = path.suffix == ".js" and path.parent == templates_folder() / "assets"
    return compact(path.read_text(encoding="utf-8")).encode() if own else data(path)


# ## Files that go together
#
# > What every page loads goes over the wire in few files, since each request costs a first visit time.
#
# The sources stay apart, one subject a file, and are served as well: a template of a project may name them. A
# file of the project that takes the place of one of the press's, by `override_assets`, takes it in the
# bundle.


# In the order in which a browser reads them: later rules win, and later scripts use what earlier ones define.
BUNDLES = {
    "frame.css": ("fonts.css", "colours.css", "page.css", "sidebar.css"),
    "frame.js": (
        *(
            "depth.js",
            "lesson.js",
            "sidelit.js",
            "search.js",
            "sidebar.js",
            "comforts.js",
            "names.js",
            "cite.js",
            "forward.js",
        ),
    ),
}


def served(known: Mapping[str, Path]) -> dict[str, bytes]:
    """What is served of the assets, by the name below `assets/`.

    :param known: every file that a page may refer to.
    """
    files = {name: _content(path) for name, path in known.items()}
    bundles = {name: b"\n".join(files[part] for part in parts) for name, parts in BUNDLES.items()}
    return files | bundles


def _content(path: Path) -> bytes:
    """What is served of a file: the press's own stylesheets without comments and indentation."""
    content = read_asset(path)
    if path.suffix != ".css" or path.parent != templates_folder() / "assets":
        return content
    # Strings stay as they are.
    text = _QUIET.sub(lambda found: found["string"] or "", content.decode("utf-8"))
    return re.sub(r"\s*\n\s*", "\n", text).strip().encode()


_QUIET = re.compile(r'(?P<string>"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\')|/\*[\s\S]*?\*/')
