"""# Citing a section

> A section has a name that lasts, so a paper can refer to the very lines it means.

A citation names the section's id, its page and the state of the project it was read in, as a sentence and
as BibTeX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from sidelit.config import Config, Lesson
from sidelit.errors import SidelitError
from sidelit.origin import Origin, fill
from sidelit.site.content import Piece, Text
from sidelit.text import markup


def cite(config: Config, texts: Sequence[Text], origin: Origin, wanted: str) -> str:
    """Return the citation of the section `wanted`: an id, or `PAGE#ID` where several pages have that id.

    What a section or its page was called before leads to it too. A lesson is cited as a whole, by its name.

    Raises `SidelitError` when no section or more than one has this name.
    """
    found = [*_matches(texts, wanted), *_lessons(texts, wanted)]
    if not found:
        raise SidelitError(
            f"there is no section {wanted!r}", hint="`sidelit sections FILE` lists the ids of a file"
        )
    if len(found) > 1:
        choices = ", ".join(f"{text.item.name}#{piece.id}" for text, piece in found[:4])
        raise SidelitError(f"several pages have a section {wanted!r}", hint=f"say which: {choices}")
    text, piece = found[0]
    title = markup.plain(opening) if (opening := markup.title_of(text.pieces[0].tokens)) else text.label
    state = [
        f"version {origin.version}" if origin.version else "",
        f"commit {origin.label}" if origin.label else "",
    ]
    section = f"section {piece.id}" if piece.id else ""
    note = ", ".join(filter(None, (text.item.source, section, *state)))
    author = f"The {config.title} authors"
    year = origin.date[:4] if origin.date else ""
    url = fill(config.source_url, origin, text.item.source, piece.first_line, piece.id) or ""
    sentence = f"{author}. “{title}”. In: {config.title}{f' ({year})' if year else ''}. {note}. {url}".strip()
    fields = {
        "author": f"{{{author}}}",
        "title": title,
        "howpublished": config.title,
        "year": year,
        "note": note,
        "url": url,
    }
    lines = "".join(f"  {name} = {{{_tex(value)}}},\n" for name, value in fields.items() if value)
    return f"{sentence}\n\n@misc{{{_key(config, text, piece)},\n{lines}}}"


def _matches(texts: Sequence[Text], wanted: str) -> Iterator[tuple[Text, Piece]]:
    page, _, name = wanted.rpartition("#")
    for text in texts:
        item = text.item
        names = {item.name, item.source, item.output, PurePosixPath(item.source).name}
        names |= {former.name for former in item.former if former.told}
        here = not page or page in names
        for piece in text.pieces if not text.prose else ():
            if (here and name in (piece.id, *piece.aliases)) or _was_at(piece, page, name):
                yield text, piece


def _lessons(texts: Sequence[Text], wanted: str) -> Iterator[tuple[Text, Piece]]:
    for text in texts:
        item = text.item
        path = PurePosixPath(item.source)
        if isinstance(item, Lesson) and wanted in (item.name, item.source, item.output, path.name, path.stem):
            yield text, text.pieces[0]


def _was_at(piece: Piece, page: str, name: str) -> bool:
    """Whether a section stood on a page before, which is called by its name or by its address."""
    places = (place.rpartition("#") for place in piece.places)
    called = (page, f"{page}.html", f"{page.rpartition('/')[2]}.html")
    return any(old == name and address in called for address, _, old in places)


def _key(config: Config, text: Text, piece: Piece) -> str:
    name = f"{config.title.lower()}:{text.item.name}:{piece.id}".removesuffix(":")
    return re.sub(r"[^A-Za-z0-9.:/-]+", "-", name)


def _tex(value: str) -> str:
    return re.sub(r"([%&#_$])", r"\\\1", value)
