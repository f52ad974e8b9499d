"""# The finished sheet

> What a template drew is held to a few rules, so that every drawing follows its page.

A drawing has no colour, no size of letters and no id of its own: the stylesheet of the page has them, in
light and in dark. Every word in it comes from the catalogue. What breaks a rule is refused with the line of
the template, or, where only the result shows it, with the piece in question.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import jinja2
from markupsafe import Markup

from sidelit.errors import SidelitError

ELEMENTS = frozenset(
    ("svg", "g", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text", "tspan")
)
# What the stylesheet says, and what would be said twice on a page or run on it.
FORBIDDEN = frozenset(
    ("id", "style", "color", "font", "font-size", "font-family", "stroke", "opacity", "href")
)
_NAMESPACE = "{http://www.w3.org/2000/svg}"
_HATCH = re.compile(r"none|url\(#hatch-\d\)")


def check_literals(environment: jinja2.Environment, path: Path, shown: str) -> None:
    """Refuse words that are typed into a template: no translator would see them."""
    source = path.read_text(encoding="utf-8")
    # Expressions go and every line break stays, so that a place in the rest is a place in the file.
    kept = [
        value if kind == "data" else re.sub(r"[^\n]", "", value) for _, kind, value in environment.lex(source)
    ]
    bare = re.sub(
        r"<!--.*?-->|<[^>]*>", lambda tag: "\n" * tag[0].count("\n"), "".join(kept), flags=re.DOTALL
    )
    if found := re.search(r"[^\W\d_][^\n<]*", bare):
        line = bare.count("\n", 0, found.start()) + 1
        what, hint = f"{found[0].strip()!r} is typed into the drawing", "make it a word of the figure's table"
        raise SidelitError(what, path=shown, line=line, hint=hint)


def checked(text: str, shown: str, width: int) -> Markup:
    """The drawing as it goes on the page.

    Raises `SidelitError` for what is no drawing, or breaks a rule.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        line = text.splitlines()[error.position[0] - 1].strip()
        where = f", near {line[max(0, error.position[1] - 40) :][:80]!r}"
        raise SidelitError(f"what it draws is not well-formed{where}", path=shown, line=1) from None
    box = root.get("viewBox", "").split()
    if root.tag.removeprefix(_NAMESPACE) != "svg" or box[:3] != ["0", "0", str(width)] or len(box) != 4:
        what = f'the drawing begins with <svg viewBox="0 0 {width} HEIGHT">'
        raise SidelitError(what, path=shown, line=1, hint="{{ width }} is its width")
    for element in root.iter():
        _check(element, shown)
    return Markup(re.sub(r">\s*\n\s*<", "><", text.strip()))


def _check(element: ElementTree.Element, shown: str) -> None:
    name = element.tag.removeprefix(_NAMESPACE)
    if name not in ELEMENTS:
        raise SidelitError(f"<{name}> has no place in a drawing", path=shown, line=1)
    for key, value in element.attrib.items():
        if key in FORBIDDEN or key.startswith("on") or (key == "fill" and not _HATCH.fullmatch(value)):
            what = f'<{name} {key}="{value}"> does not follow the page'
            raise SidelitError(what, path=shown, line=1, hint="give it a class of the stylesheet")
