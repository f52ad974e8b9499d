"""# Cards of pages

> Who links to a page in a chat shows a picture of it. The picture says which page it is.

Networks take a PNG and no SVG, and only Pillow draws one with letters. So the cards are no part of a build:
`sidelit cards` draws them once, in the language that the pages are written in, into `site/cards/`, and each
build with a public address serves what is there. Letters that the press's own fonts lack need a `--font`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sidelit.config.config import Config
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.site import edition, metadata, site
from sidelit.site.navigation import Navigation

if TYPE_CHECKING:
    from PIL import Image, ImageFont


EDGE = 90
LINES = 4
# What the Latin files of the press's fonts hold, roughly: more than enough for titles.
_LATIN = re.compile(r"[\u0020-\u00ff–—‘’“”…]*")


@dataclass(frozen=True, slots=True)
class Card:
    """What a card says: the site, the title of the page, and the part that it is in."""

    output: str
    site: str
    title: str
    part: str


def draw(config: Config, font: Path | None = None) -> tuple[Path, ...]:
    """Draw the card of each page; returns the files that were written.

    :param font: a TrueType or OpenType file for all letters, in the place of the press's own.

    Raises `SidelitError` without Pillow, and when the font cannot be read or letters are missing.
    """
    if find_spec("PIL") is None:
        what, hint = "cards are drawn by Pillow, which is not installed", "pip install pillow"
        raise SidelitError(what, hint=hint)
    cards = tuple(_cards(config))
    for card in cards:
        if font is None and not _LATIN.fullmatch(f"{card.site}{card.title}{card.part}"):
            what = f"the press has no font for the letters of {card.title!r}"
            raise SidelitError(what, hint="name a file that has them with --font")
    colours = {name: _colour(name) for name in ("paper", "ink", "soft", "accent")}
    written = []
    for card in cards:
        path = config.folder / metadata.CARDS / f"{card.output.removesuffix('.html')}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        # Few colours make a small file, and no time stands in it: the same card is the same bytes.
        _picture(card, colours, font).quantize(16).save(path, optimize=True)
        written.append(path)
    return tuple(written)


def _picture(card: Card, colours: Mapping[str, str], font: Path | None) -> Image.Image:
    """The site above, the title in letters as large as they fit, and the part below."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", metadata.CARD_SIZE, colours["paper"])
    pen = ImageDraw.Draw(image)
    width, height = metadata.CARD_SIZE
    pen.rectangle((0, 0, 18, height), fill=colours["accent"])
    pen.text((EDGE, 70), card.site, font=_font("serif", 40, font), fill=colours["soft"])
    lines, size = _fitted(card.title, width - 2 * EDGE, font)
    for number, line in enumerate(lines):
        place = (EDGE, 170 + number * size * 1.15)
        pen.text(place, line, font=_font("serif", size, font), fill=colours["ink"])
    pen.text((EDGE, height - 110), card.part, font=_font("sans", 36, font), fill=colours["accent"])
    return image


def _cards(config: Config) -> Iterator[Card]:
    pages = site.texts(config)
    said = edition.edition(config, pages, site.catalogs(config, pages), config.source_language)
    for output, shown in said.pages.items():
        part = Navigation(config, said, shown).part()
        number = f"{shown.source.number} · " if shown.source.number else ""
        title = config.tagline if output == config.home and config.tagline else shown.label
        yield Card(output, config.title, title, f"{number}{part}" if part else number.removesuffix(" · "))


def _fitted(title: str, width: int, font: Path | None) -> tuple[list[str], int]:
    """The lines of a title, and the largest size in which they are few enough."""
    for size in (88, 72, 60, 48):
        lines = _broken(title, width, _font("serif", size, font))
        if len(lines) <= LINES:
            break
    return lines[:LINES], size


def _broken(title: str, width: int, face: ImageFont.FreeTypeFont) -> list[str]:
    """Lines that are no wider than `width`, in pixels; without spaces they break between letters."""
    lines = [""]
    for word in re.findall(r"\S+\s*" if " " in title else r".", title):
        if lines[-1] and face.getlength((lines[-1] + word).rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return lines


def _font(kind: str, size: int, given: Path | None) -> ImageFont.FreeTypeFont:
    from PIL import ImageFont

    names = {"serif": "source-serif-4-latin-wght-normal", "sans": "source-sans-3-latin-wght-normal"}
    own = assets.templates_folder() / "cards" / f"{names[kind]}.woff2"
    try:
        face = ImageFont.truetype(str(given or own), size)
    except OSError:
        raise SidelitError("this is no font that can be read", path=given) from None
    if given is None:
        face.set_variation_by_axes([600])
    return face


def _colour(name: str) -> str:
    """A colour of the light pages."""
    sheet = (assets.templates_folder() / "assets" / "colours.css").read_text(encoding="utf-8")
    found = re.search(rf"--{name}: light-dark\((#\w+),", sheet)
    return found[1] if found else "#000000"
