"""# Outputs of a lab

> What the cells have printed is recorded in each language, and numbers are drawn as plots.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from xml.etree import ElementTree

from sidelit.config.config import Config
from sidelit.config.prose import Prose
from sidelit.errors import SidelitError
from sidelit.figures import figure
from sidelit.figures.figure import Recording

# ## What the cells of a lab printed
#
# > A recording of one run in each language, so that a lab can be read without running it.
#
# `site/recorded/labs/LANG/NAME.json` is a recording like any other; its `data` has for each cell, by its
# name, a list of what it showed: `{"text": …}` or `{"svg": …}`.


FOLDER = "recorded/labs"
KINDS = ("text", "svg")


@dataclass(frozen=True, slots=True)
class Output:
    """One thing that a cell showed: `text`, or a drawing as SVG."""

    kind: str
    content: str


@dataclass(frozen=True, slots=True)
class Run:
    """What the cells of a lab showed in one language, by their names, and where they ran."""

    lang: str = ""
    recording: Recording | None = None
    outputs: Mapping[str, Sequence[Output]] = field(default_factory=dict)


def read(config: Config, item: Prose, lang: str) -> Run:
    """The run of a lab in a language, or in that of the sources; one without outputs if nobody recorded it.

    :raises SidelitError: if the recording is none
    """
    for each in dict.fromkeys((lang, config.source_language)):
        path = config.folder / FOLDER / each / f"{item.stem}.json"
        if path.is_file():
            shown = config.shown(path)
            found = figure.read_recording(path, shown)
            return Run(each, found, _outputs(found.data, shown))
    return Run()


def _outputs(data: object, shown: str) -> dict[str, tuple[Output, ...]]:
    if not isinstance(data, dict) or not all(isinstance(each, list) for each in data.values()):
        raise SidelitError("the outputs of a lab are lists, by the names of its cells", path=shown, line=1)
    return {name: tuple(_output(each, shown) for each in given) for name, given in data.items()}


def _output(given: object, shown: str) -> Output:
    if isinstance(given, dict) and len(given) == 1:
        ((kind, content),) = given.items()
        if kind in KINDS and isinstance(content, str):
            return Output(kind, content)
    what = f"an output is an object with one key, {' or '.join(KINDS)}"
    raise SidelitError(what, path=shown, line=1, hint="record it again")


# ## Plots
#
# > An SVG that a program drew becomes part of the page: its colours follow the theme, its letters are those
# > of the page.
#
# Only what draws is kept, element by element and attribute by attribute: a recording is a file like any
# other, and a script in it must not run. A colour that the stylesheet names, as it is on paper, becomes that
# name, so it is another one at night. Ids get the name of the plot before them, since a page may show several
# plots.


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
