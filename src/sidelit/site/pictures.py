"""# Pictures

> A picture keeps its size and its place, and a drawing that is a program is not run.
"""

from __future__ import annotations

import codecs
import html
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from markdown_it.token import Token

from sidelit.config.config import Config
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.site.content import SourcePage

# ## Programs in drawings
#
# > An SVG shown by `<img>` runs nothing; opened by its own address it is a page, and runs what is in it.
#
# A drawing that could run something is refused, and the press has one list of what that is. A drawing says
# its program as an element, as a handler, as an address, or through what XML adds by declarations and
# stylesheets. HTML may stand in a drawing, since programs for diagrams write their labels so, but no element
# of it that runs or loads something.


# What XML has between quotes only is no handler without them: a label may well say `one = 1`.
_PROGRAM = re.compile(
    r"<\s*(?:[\w.-]+:)?(?:script|handler|listener|iframe|frame|embed|object|meta|base|form)\b"
    r"|[\s\"'/](?:[\w.-]+:)?on\w+\s*=\s*[\"']"
    r"|(?:java|vb)\s*script\s*:|\bdata:\s*text/html"
    r"|<!\s*(?:ENTITY|ATTLIST)|<\?\s*xml-stylesheet",
    re.IGNORECASE,
)
_WIDE = {
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
    b"<\0": "utf-16-le",
    b"\0<": "utf-16-be",
}


def runs(content: bytes) -> bool:
    """Whether a browser may run something that is in this SVG; rather too often than too seldom."""
    text = content.decode(_WIDE.get(content[:2], "utf-8"), "replace")
    # `java&#115;cript:` is an address, too, and a browser takes tabs and ends of lines out of one.
    return any(_PROGRAM.search(each) for each in (text, re.sub(r"[\t\r\n]", "", html.unescape(text))))


# ## How large a picture is
#
# > A page that knows it keeps the room, so that nothing below moves when the picture arrives.
#
# Only the head of a file is read: an SVG says its size itself, or by the box that it shows, a PNG and a GIF
# by the numbers behind their signatures, and a JPEG in one of the segments before its first line. Of any
# other picture the size stays unknown.


# What cameras write into a JPEG before its size may be long.
_HEAD = 65_536
_PNG = b"\x89PNG\r\n\x1a\n"
_NUMBER = r"\s*([\d.]+)(?:px)?\s*"


def size(path: Path) -> tuple[int, int] | None:
    """The width and height of a picture in pixels; `None` where the file is missing or does not say it."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return None
    if head.startswith(_PNG) and len(head) >= 24:
        width, height = struct.unpack(">II", head[16:24])
        return width, height
    if head[:6] in (b"GIF87a", b"GIF89a") and len(head) >= 10:
        width, height = struct.unpack("<HH", head[6:10])
        return width, height
    if head.startswith(b"\xff\xd8"):
        return _jpeg(head)
    return _svg(head[:2048].decode("utf-8", "replace"))


def _jpeg(head: bytes) -> tuple[int, int] | None:
    """Go from segment to segment, to the one that begins a frame and says how large it is."""
    at = 2
    while at + 9 <= len(head) and head[at] == 0xFF:
        kind, length = head[at + 1], int.from_bytes(head[at + 2 : at + 4], "big")
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", head[at + 5 : at + 9])
            return width, height
        at += 2 + length
    return None


def _svg(text: str) -> tuple[int, int] | None:
    opening = re.search(r"<svg\b[^>]*>", text)
    if opening is None:
        return None
    said = [re.search(rf'\s{name}="{_NUMBER}"', opening[0]) for name in ("width", "height")]
    if all(said):
        width, height = (float(found[1]) for found in said if found)
    elif box := re.search(rf'\sviewBox="{_NUMBER}[\s,]{_NUMBER}[\s,]{_NUMBER}[\s,]{_NUMBER}"', opening[0]):
        width, height = float(box[3]), float(box[4])
    else:
        return None
    return round(width), round(height)


# ## Pictures beside sources
#
# > A docstring shows a picture of its project, and the site carries it along.
#
# A picture lies where the docstring says: from the folder of its file, or from that of the project. Where
# neither has it, the folders are searched that the configuration names. Below such a folder pictures may lie
# as the sources do, so `nets/gan/style.py` finds its `block.svg` in `docs/nets/gan/`, in `docs/gan/` and in
# `docs/`. A picture outside of the project is refused, and so is a drawing with a program in it: whoever
# opens that by its own address would run it.


# What browsers show as a picture.
_KINDS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".avif", ".svg")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
FOLDER = "assets/pictures"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the project, and where the site has it."""

    path: Path
    output: str


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures that sources show, each by the source and its target; or why one is not shown."""

    known: Mapping[tuple[str, str], Picture | SidelitError] = field(default_factory=dict)

    def find(self, source: str, target: str) -> Picture | None:
        """A picture; `None` if no such file lies there.

        Raises `SidelitError` if it may not be shown.
        """
        found = self.known.get((source, target))
        if isinstance(found, SidelitError):
            raise found
        return found

    def files(self) -> dict[str, bytes]:
        """The pictures by their places in the site."""
        found = {each.output: each.path for each in self.known.values() if isinstance(each, Picture)}
        return {output: assets.data(path) for output, path in sorted(found.items())}


def pictures(config: Config, pages: Iterable[SourcePage]) -> Pictures:
    """The pictures of chapters."""
    known: dict[tuple[str, str], Picture | SidelitError] = {}
    project = config.project.resolve()
    for page in pages:
        if page.prose:
            continue
        # The sources of a site are below its folder; others are where they were said to be.
        own = config.project / page.item.source
        folder = (own if own.is_file() else Path(page.item.source)).resolve().parent
        for target in page.once("pictures", partial(_shown, page)):
            try:
                if found := _picture(project, places(project, folder, config.pictures), target):
                    known[page.item.source, target] = found
            except SidelitError as error:
                known[page.item.source, target] = error
    return Pictures(known)


def _shown(page: SourcePage) -> tuple[str, ...]:
    """The targets of the pictures of a page."""
    return tuple(_targets(page.tokens))


def _targets(tokens: Iterable[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type == "image" and not _SCHEME.match(str(token.attrs["src"])):
            yield unquote(str(token.attrs["src"]))
        yield from _targets(token.children or ())


def places(project: Path, folder: Path, named: Iterable[str] = ()) -> Iterator[Path]:
    """The folders where a picture may lie that a source in a folder shows; the project has `named` some."""
    yield from (folder, project)
    below = folder.relative_to(project).parts if folder.is_relative_to(project) else ()
    for name in named:
        yield from (Path(project, name, *below[start:]) for start in range(len(below) + 1))


def _picture(project: Path, folders: Iterable[Path], target: str) -> Picture | None:
    try:
        found = [path for each in folders if (path := (each / target.lstrip("/")).resolve()).is_file()]
        inside = [path for path in found if path.is_relative_to(project)]
        if not found:
            return None
        if not inside:
            what = f"the picture {target} lies outside of the project"
            raise SidelitError(what, hint="put it into the project's folder")
        path = inside[0]
        if path.suffix.lower() not in _KINDS:
            raise SidelitError(f"the file {target} is no picture", hint=f"use {', '.join(_KINDS)}")
        if path.suffix.lower() == ".svg" and runs(assets.data(path)):
            raise SidelitError(f"the picture {target} holds a program", hint="remove it from the drawing")
    except (OSError, ValueError):
        # A name that no file can have.
        return None
    return Picture(path, f"{FOLDER}/{path.relative_to(project).as_posix()}")
