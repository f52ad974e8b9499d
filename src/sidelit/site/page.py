"""# A page through its template

> The records of `views` go in, a page of HTML comes out.

Nothing is looked up in silence: a word, a field or an asset that does not exist stops the build at the
template's line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

import jinja2
from markupsafe import Markup

from sidelit import template_errors
from sidelit.bundles import BUNDLES
from sidelit.languages import Language
from sidelit.look import Look
from sidelit.site.views import View


def render(view: View, look: Look) -> str:
    """Fill the template of the page's kind.

    Raises `SidelitError` at the template's line when the template asks for something that does not exist.
    """
    context: dict[str, Any] = {field.name: getattr(view, field.name) for field in fields(view)}
    context["asset"] = _asset_address(view.root, look)
    return _filled(f"{view.page.kind}.html", view.language, look, context)


def fragment(template: str, language: Language, look: Look, values: Mapping[str, object]) -> Markup:
    """Fill a template that is a piece of a page, as `render` fills a whole one."""
    return Markup(_filled(template, language, look, values))


def _filled(template: str, language: Language, look: Look, values: Mapping[str, object]) -> str:
    """Beside the values a template has `ui`, the words of the interface, and `own`, those of the project."""
    try:
        return look.environment.get_template(template).render(
            {**values, "ui": language.words, "own": language.own}
        )
    except template_errors.RAISED as error:
        raise look.refused(error) from None


# What the templates of all kinds of pages extend and include.
_COMMON = ("base.html", "macros.html", "foot.html")


def prepare(kinds: Iterable[str], look: Look) -> None:
    """Read the templates of some kinds of pages before the work is shared, so that each is read once.

    Raises `SidelitError` where one is not valid.
    """
    try:
        for name in (*_COMMON, *(f"{kind}.html" for kind in kinds)):
            look.environment.get_template(name)
    except template_errors.RAISED as error:
        raise look.refused(error) from None


def _asset_address(root: str, look: Look) -> Callable[[str], str]:
    def asset(name: str) -> str:
        if name not in look.assets and name not in BUNDLES:
            raise jinja2.TemplateRuntimeError(f"there is no file assets/{name}")
        return f"{root}assets/{name}"

    return asset
