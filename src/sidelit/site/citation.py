"""# Citing a section

> A section has a name that lasts, so a paper can refer to the very lines it means.

`sidelit cite` and the box on a page say the same, because both are written from the same record by the same
forms. A page carries them twice: once for itself, and once with blanks, which a script fills in for the
section whose "cite" was pressed. What stands in a blank is told by `BLANKS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from urllib.parse import quote

from sidelit.cite import forms
from sidelit.cite.authors import Credits
from sidelit.cite.record import Place, Record
from sidelit.config import Config, Prose
from sidelit.errors import SidelitError
from sidelit.origin import Origin, fill
from sidelit.site import edition, ways
from sidelit.site.content import Piece, Text
from sidelit.site.feed import Release
from sidelit.site.links import fragment
from sidelit.site.statements import Citation, Form
from sidelit.text import markup

# Signs that hardly any text has, for the id, the number, the label and the address of a section.
BLANKS = Place("◰", "◱", "◲")
ADDRESS = "◳"


@dataclass(frozen=True, slots=True)
class Project:
    """What is cited: a site, the state of it, and who wrote it."""

    config: Config
    origin: Origin
    credits: Credits
    releases: tuple[Release, ...] = ()


def find(texts: Sequence[Text], wanted: str) -> tuple[Text, Piece | None]:
    """The section `wanted`: an id or a number, or `PAGE#ID` where several pages have that id.

    What a section or its page was called before leads to it too, and the name of a page to the whole of it.

    Raises `SidelitError` when no section or more than one has this name.
    """
    found = list(_matches(texts, wanted)) or [(text, None) for text in texts if wanted in _names(text)]
    if not found:
        hint = "`sidelit sections FILE` lists the ids of a file"
        raise SidelitError(f"there is no section {wanted!r}", hint=hint)
    if len(found) > 1:
        choices = ", ".join(f"{text.item.name}{f'#{piece.id}' if piece else ''}" for text, piece in found[:4])
        raise SidelitError(f"several pages have a section {wanted!r}", hint=f"say which: {choices}")
    return found[0]


def record(project: Project, shown: edition.Page, piece: Piece | None = None) -> Record:
    """What is said of a page, or of one of its sections; the section that opens a page is the page.

    A section of prose is what stands under a heading.
    """
    item, origin, credits = shown.text.item, project.origin, project.credits
    place = Place(number=str(shown.text.number or ""))
    if piece is None or piece.kind == "module":
        piece = None
    elif shown.text.prose:
        place = Place(_heading(piece), "", _heading_said(shown, _heading(piece)))
    else:
        (words,) = (
            words for each, words in zip(shown.text.pieces, shown.words, strict=True) if each is piece
        )
        place = Place(piece.id, piece.number, markup.plain(words.title))
    return Record(
        book=project.config.title,
        page=shown.label,
        name=item.name,
        place=place,
        source=item.source,
        authors=credits.authors,
        language=shown.source_lang if shown.original else project.config.language(shown.lang).tag,
        version=origin.version or credits.version,
        commit=origin.label or "",
        date=origin.date or credits.date,
        url=_address(project, shown, place.id, piece),
        doi=credits.doi,
    )


def of_page(project: Project | None, shown: edition.Page) -> Citation | None:
    """What the box of a page says; without a project the page is nobody's to cite."""
    if project is None or forwards(shown):
        return None
    words = project.config.language(shown.lang).words
    whole = record(project, shown)
    place = replace(BLANKS, number="") if shown.text.prose else BLANKS
    blank = replace(whole, place=place, url=ADDRESS if whole.url else "")
    public = _public(project.config, shown)
    return Citation(
        url=whole.url,
        base=f"{public}#" if public else "",
        forms=tuple(_forms(whole, words)),
        blank=tuple(_forms(blank, words)),
    )


def forwards(shown: edition.Page) -> bool:
    """Whether a page only leads on, from an address that another one had."""
    item = shown.text.item
    return isinstance(item, Prose) and item.append == "forward"


def _forms(record: Record, words: Mapping[str, str]) -> Iterator[Form]:
    for form, called in forms.FORMS.items():
        yield Form(form, called, forms.written(record, form, words))


def _address(project: Project, shown: edition.Page, section: str, piece: Piece | None) -> str:
    """Where a reader finds what is cited: on the site if it is public, else in the repository."""
    if public := _public(project.config, shown):
        return f"{public}#{fragment(section)}" if section else public
    # A heading of prose has no lines of its own.
    piece = None if shown.text.prose else piece
    line = 1 if piece is None else piece.lines[0][0] if piece.lines else piece.first_line
    pattern, source = project.config.public.source_url, shown.text.item.source
    return fill(pattern, project.origin, source, line, piece.id if piece else "") or ""


def _public(config: Config, shown: edition.Page) -> str:
    """The address at which this text stays: that of the release, if it is one."""
    output = ways.address(config, shown.text.item.output, shown.lang)
    return f"{config.public.lasting}{quote(output)}" if config.public.lasting else ""


def _matches(texts: Sequence[Text], wanted: str) -> Iterator[tuple[Text, Piece | None]]:
    place, _, name = wanted.rpartition("#")
    for text in texts:
        here = not place or place in _names(text)
        for piece in text.pieces:
            called = (
                here and name and name in ((_heading(piece),) if text.prose else (piece.id, *piece.aliases))
            )
            if called or wanted == piece.number or _was_at(piece, place, name):
                yield text, piece


def _heading(piece: Piece) -> str:
    """The id of the heading that a stretch of prose stands under."""
    first = piece.tokens[0] if piece.tokens else None
    told = first is not None and first.type == "heading_open" and first.tag in ("h2", "h3")
    return str(first.meta.get("slug", "")) if told and first else ""


def _heading_said(shown: edition.Page, section: str) -> str:
    """A heading of a page in its language."""
    return next((each.label for each in ways.headings(shown) if each.id == section), "")


def _names(text: Text) -> set[str]:
    """What a page may be called."""
    item = text.item
    path, output = PurePosixPath(item.source), item.output
    names = {item.name, item.source, output, output.removesuffix(".html"), path.name, path.stem}
    return names | {former.name for former in item.former if former.told}


def _was_at(piece: Piece, page: str, name: str) -> bool:
    """Whether a section stood on a page before, which is called by its name or by its address."""
    places = (place.rpartition("#") for place in piece.places)
    called = (page, f"{page}.html", f"{page.rpartition('/')[2]}.html")
    return any(old == name and address in called for address, _, old in places)
