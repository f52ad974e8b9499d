"""# Binding a book

> Documents that were printed one by one become one, with ways between them.

A browser writes down where the places lie that a document itself refers to. Here the places of all documents
are gathered, links to them become ways to a page, and the outline that a reader of PDF files unfolds is
written from the same places.

The browser could also write what is a heading, a list or a table, for readers who listen. Joining that of
several documents is not what the library that binds can do, and it doubles the size of the file, so it is
left out: the site is what screen readers read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sidelit.book.contents import Mark
from sidelit.book.leaves import SCHEME, owner
from sidelit.errors import SidelitError

try:
    from pypdf import PdfReader, PdfWriter
    from pypdf.generic import (
        ArrayObject,
        BooleanObject,
        DictionaryObject,
        Fit,
        FloatObject,
        NameObject,
        NullObject,
        TextStringObject,
    )
except ModuleNotFoundError as error:
    what = f"the package {error.name} is not installed, and it binds the pages of a book"
    raise SidelitError(what, hint="`pip install pypdf`") from None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a place lies: the page, counted from 0, and how far from its left and lower edge, in points."""

    page: int
    left: float
    top: float


class Printed:
    """A document that the browser printed."""

    def __init__(self, path: Path) -> None:
        self.reader = PdfReader(path)

    @property
    def pages(self) -> int:
        """How many pages it has."""
        return len(self.reader.pages)

    def places(self, first: int) -> dict[str, Place]:
        """The places in it by their names, if `first` pages stand before it."""
        numbers = {
            page.indirect_reference.idnum: number
            for number, page in enumerate(self.reader.pages, start=first)
            if page.indirect_reference is not None
        }
        return {
            unquote(name.removeprefix("/")): Place(
                numbers[there.raw_get("/Page").idnum], float(there.left or 0), float(there.top or 0)
            )
            for name, there in self.reader.named_destinations.items()
        }


def bind(
    documents: Sequence[Printed],
    places: Mapping[str, Place],
    marks: Sequence[Mark],
    about: Mapping[str, str],
    lang: str,
    out: Path,
) -> None:
    """Write one file of several documents.

    :param places: those of all documents.
    :param about: what the file says of itself, by the names of PDF: `/Title`, `/Author`.
    :param lang: the tag of its language.
    """
    writer = PdfWriter()
    for each in documents:
        writer.append(each.reader, import_outline=False)
    pages = [page.indirect_reference for page in writer.pages]
    for page in writer.pages:
        _lead(page, pages, places)
    _outline(writer, marks, places, None)
    writer.add_metadata(dict(about))
    root = writer.root_object
    root[NameObject("/Lang")] = TextStringObject(lang)
    root[NameObject("/PageMode")] = NameObject("/UseOutlines")
    # A window of the reader is called after the title, not after the file.
    root[NameObject("/ViewerPreferences")] = DictionaryObject(
        {NameObject("/DisplayDocTitle"): BooleanObject(True)}
    )
    with out.open("wb") as file:
        writer.write(file)


def _lead(page: Any, pages: Sequence[Any], places: Mapping[str, Place]) -> None:
    """Turn the links of a page to places of the book into ways; one to no place goes."""
    kept = ArrayObject()
    for reference in page.get("/Annots", ()):
        link: DictionaryObject = reference.get_object()
        address = link.get("/A", {}).get("/URI", "")
        if not address.startswith(SCHEME):
            kept.append(reference)
        elif there := _found(unquote(address.removeprefix(SCHEME)), places):
            del link["/A"]
            left, top = FloatObject(there.left), FloatObject(there.top)
            way = ArrayObject([pages[there.page], NameObject("/XYZ"), left, top, NullObject()])
            link[NameObject("/Dest")] = way
            kept.append(reference)
    if kept:
        page[NameObject("/Annots")] = kept
    elif "/Annots" in page:
        del page["/Annots"]


def _found(name: str, places: Mapping[str, Place]) -> Place | None:
    """A place, or the page that it should be on."""
    return places.get(name) or places.get(owner(name))


def _outline(writer: PdfWriter, marks: Sequence[Mark], places: Mapping[str, Place], above: Any) -> None:
    for mark in marks:
        there = _found(mark.place, places)
        if there is None:
            continue
        line = writer.add_outline_item(
            title=mark.label,
            page_number=there.page,
            parent=above,
            fit=Fit.xyz(left=there.left, top=there.top),
            is_open=False,
        )
        _outline(writer, mark.below, places, line)
