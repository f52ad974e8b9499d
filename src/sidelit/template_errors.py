"""# Where a template fails

> The file and the line that an author has to mend, for whatever was raised while a template was filled.
"""

from __future__ import annotations

from pathlib import Path

import jinja2

from sidelit.errors import SidelitError

# What the expressions of a template raise, beside Jinja2's own complaints.
RAISED = (jinja2.TemplateError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def refused(error: Exception, folder: Path, shown: str) -> SidelitError:
    """What a template in `folder`, which messages call `shown`, was refused for, with its line."""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return SidelitError(
            f"not a valid template: {error.message}", path=f"{shown}/{error.name}", line=error.lineno
        )
    if isinstance(error, jinja2.TemplateNotFound):
        return SidelitError(f"the template fails: there is no {error.name}", path=shown)
    name, line = _place(error, folder, shown)
    return SidelitError(f"the template fails: {error}", path=name, line=line)


def stands_in(error: BaseException, folder: Path) -> bool:
    """Whether the deepest template of a traceback is one of this folder."""
    trace, inside = error.__traceback__, False
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
