"""# A page through its template

> The records of `views` go in, a page of HTML comes out.

Here live the addresses of the assets and the one Jinja2 environment. Nothing is
looked up in silence: a word, a field or an asset that does not exist stops the build at the template's line.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from markupsafe import Markup

from sidelit import assets
from sidelit.errors import SidelitError
from sidelit.languages import Language
from sidelit.site.views import View


def render(view: View) -> str:
    """Fill the template of the page's kind.

    Raises `SidelitError` at the template's line when the template asks for something that does not exist.
    """
    context: dict[str, Any] = {field.name: getattr(view, field.name) for field in fields(view)}
    context["ui"] = view.language.words
    context["asset"] = _asset_address(view.root)
    try:
        return _environment().get_template(f"{view.page.kind}.html").render(context)
    except jinja2.TemplateError as error:
        raise _failed(error) from None


def fragment(template: str, language: Language, values: Mapping[str, object]) -> Markup:
    """Fill a template that is a piece of a page, as `render` fills a whole one."""
    try:
        return Markup(_environment().get_template(template).render({**values, "ui": language.words}))
    except jinja2.TemplateError as error:
        raise _failed(error) from None


def _failed(error: jinja2.TemplateError) -> SidelitError:
    if isinstance(error, jinja2.TemplateSyntaxError):
        what = f"not a valid template: {error.message}"
        return SidelitError(what, path=f"templates/{error.name}", line=error.lineno)
    name, line = _template_line(error)
    return SidelitError(f"the template fails: {error}", path=name, line=line)


def forget() -> None:
    """Read the templates anew at the next build: somebody may have saved one."""
    _environment.cache_clear()


def relative(target: str, page: str) -> str:
    """The address of one file of the site as seen from a page of it."""
    return quote(posixpath.relpath(target, posixpath.dirname(page) or "."))


def _asset_address(root: str) -> Callable[[str], str]:
    known = {name for name, _ in assets.asset_files()}

    def asset(name: str) -> str:
        if name not in known:
            raise jinja2.TemplateRuntimeError(f"there is no file assets/{name}")
        return f"{root}assets/{name}"

    return asset


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(assets.templates_folder()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
    )


def _template_line(error: BaseException) -> tuple[str | None, int | None]:
    """The deepest template line in a traceback: Jinja2 rewrites frames to point at its templates."""
    folder, place = assets.templates_folder(), (None, None)
    trace = error.__traceback__
    while trace is not None:
        name = Path(trace.tb_frame.f_code.co_filename)
        if name.is_relative_to(folder):
            place = (f"templates/{name.relative_to(folder).as_posix()}", trace.tb_lineno)  # type: ignore[assignment]
        trace = trace.tb_next
    return place
