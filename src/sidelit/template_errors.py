"""# Where a template fails

> The file and the line that an author has to mend, for whatever was raised while a template was filled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import jinja2

from sidelit.errors import SidelitError

# What the expressions of a template raise, beside Jinja2's own complaints.
RAISED = (
    *(jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError),
    # A template that is part of itself, and one that makes more than there is room for.
    *(RecursionError, MemoryError),
)


def refused(error: Exception, folder: Path, shown: str) -> SidelitError:
    """What a template in `folder`, which messages call `shown`, was refused for, with its line."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return SidelitError(
            f"not a valid template: {error.message}", path=f"{shown}/{error.name}", line=error.lineno
        )
    name, line = _place(error, folder, shown)
    if isinstance(error, UnicodeDecodeError):
        name = next(_undecodable(folder, shown), name)
    return SidelitError(f"the template fails: {_reason(error)}", path=name or shown, line=line)


def _reason(error: Exception) -> str:
    if isinstance(error, jinja2.TemplateNotFound):
        return f"there is no {error.name}"
    if isinstance(error, RecursionError):
        return "it is part of itself, or nested too deeply; what it extends of the press begins with `press/`"
    if isinstance(error, MemoryError):
        return "it makes more than there is room for"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    # The words of the interface, and those of the project, are such objects.
    return re.sub(
        r"'mappingproxy object' has no attribute '(.*)'", r"there is no word called '\1'", str(error)
    )


def _undecodable(folder: Path, shown: str) -> Iterator[str]:
    """The templates that are not UTF-8: the error does not say which one it was raised for."""
    for path in sorted(folder.rglob("*.html")):
        try:
            path.read_text("utf-8")
        except UnicodeDecodeError:
            yield f"{shown}/{path.relative_to(folder).as_posix()}"


def stands_in(error: BaseException, folder: Path) -> bool:
    """Whether the deepest template of a traceback is one of this folder.

    Where there is none, a template could not be read, and those of the press can.
    """
    trace, inside = error.__traceback__, True
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.suffix in (".html", ".svg"):
            inside = file.is_relative_to(folder)
        trace = trace.tb_next
    return inside


def _place(error: BaseException, folder: Path, shown: str) -> tuple[str | None, int | None]:
    """The deepest template line in a traceback: Jinja2 rewrites frames to point at its templates."""
    name: str | None = None
    line: int | None = None
    trace = error.__traceback__
    while trace is not None:
        file = Path(trace.tb_frame.f_code.co_filename)
        if file.is_relative_to(folder):
            name, line = f"{shown}/{file.relative_to(folder).as_posix()}", trace.tb_lineno
        trace = trace.tb_next
    return name, line
