"""# Plots

> An SVG that a program drew becomes part of the page: its colours follow the theme, its letters are those of
> the page.

Only what draws is kept, element by element and attribute by attribute: a recording is a file like any other,
and a script in it must not run. A colour that the stylesheet names, as it is on paper, becomes that name, so
it is another one at night. Ids get the name of the plot before them, since a page may show several plots.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from xml.etree import ElementTree

_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_NAMES = "svg g defs path rect circle ellipse line polyline polygon text tspan use clipPath"
_SAID = """
    id d x y x1 y1 x2 y2 cx cy r rx ry dx dy width height viewBox points transform fill stroke stroke-width
    stroke-dasharray stroke-dashoffset stroke-linejoin stroke-linecap stroke-miterlimit opacity fill-opacity
    stroke-opacity fill-rule clip-path clip-rule clipPathUnits text-anchor font-size font-weight
    preserveAspectRatio
"""
_ELEMENTS, _ATTRIBUTES = frozenset(_NAMES.split()), frozenset(_SAID.split())
_COLOURED = ("fill", "stroke")
# What nobody chose follows the theme, too.
_USUAL = {"#000000": "ink", "#ffffff": "paper", "black": "ink", "white": "paper"}
_FONT = re.compile(r"(?:^|\s)(?:(bold|[1-9]00)\s+)?(\d+(?:\.\d+)?)px\b")
_URL = re.compile(r"url\(#([^)\s]+)\)")
_NAMED = re.compile(r"--([\w-]+):\s*light-dark\((#[0-9a-fA-F]{6}),")


def colours(stylesheet: str) -> dict[str, str]:
    """The names of the colours that a stylesheet gives as `--NAME: light-dark(#RRGGBB, …)`."""
    found: dict[str, str] = {}
    for name, light in _NAMED.findall(stylesheet):
        found.setdefault(light.lower(), name)
    return found


def inline(svg: str, name: str, known: Mapping[str, str]) -> str:
    """The drawing as it may stand in a page; `known` are the names of its colours.

    :param name: comes before each of its ids.
    :raises ValueError: if it is not an SVG
    """
    try:
        root = ElementTree.fromstring(svg)
    except ElementTree.ParseError as error:
        raise ValueError(f"the SVG cannot be read: {error}") from None
    if root.tag != f"{_SVG}svg":
        raise ValueError("a plot is an SVG, and this is none")
    return "".join(_written(root, name, known))


def words(svg: str) -> str:
    """What the drawing says in letters, for whoever cannot see it."""
    said = ("".join(text.itertext()) for text in ElementTree.fromstring(svg).iter(f"{_SVG}text"))
    return ", ".join(dict.fromkeys(" ".join(each.split()) for each in said if each.strip()))


def _written(element: ElementTree.Element, name: str, known: Mapping[str, str]) -> Iterator[str]:
    tag = element.tag.removeprefix(_SVG) if isinstance(element.tag, str) else ""
    if tag not in _ELEMENTS:
        return
    given = {
        key: value for key, value in _attributes(element, name, known) if not (tag == "svg" and key in _SIZE)
    }
    said = "".join(f' {key}="{escape(value)}"' for key, value in given.items())
    yield f"<{tag}{said}>"
    yield escape(element.text or "", quote=False) if tag in ("text", "tspan") else ""
    for child in element:
        yield from _written(child, name, known)
        yield escape(child.tail or "", quote=False) if tag in ("text", "tspan") else ""
    yield f"</{tag}>"


# The page gives the drawing its width.
_SIZE = ("width", "height")


def _attributes(
    element: ElementTree.Element, name: str, known: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """What an element says in its attributes and in its style, which a page may not have."""
    style = (pair.partition(":") for pair in element.get("style", "").split(";"))
    said = {**element.attrib, **{key.strip(): value.strip() for key, _, value in style if value.strip()}}
    if (font := _FONT.search(said.get("font", ""))) is not None:
        said["font-size"] = f"{font[2]}px"
        said.update({"font-weight": font[1]} if font[1] else {})
    target = said.get(f"{_XLINK}href", said.get("href", ""))
    if target.startswith("#"):
        yield "href", f"#{name}-{target[1:]}"
    for key, value in said.items():
        if key not in _ATTRIBUTES:
            continue
        if key == "id":
            value = f"{name}-{value}"
        elif key in _COLOURED:
            value = _coloured(value, known)
        if "url(" in value:
            found = _URL.fullmatch(value)
            value = f"url(#{name}-{found[1]})" if found else "none"
        yield key, value


def _coloured(value: str, known: Mapping[str, str]) -> str:
    own = _USUAL.get(value.lower()) or known.get(value.lower())
    return f"var(--{own})" if own else value
