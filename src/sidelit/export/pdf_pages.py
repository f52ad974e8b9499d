"""# Binding

> Printed documents become one file, and the numbers in its contents are those of its pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sidelit.errors import SidelitError
from sidelit.export import pdf_documents
from sidelit.export.pdf_documents import SCHEME, Group, Leaf, Mark, owner
from sidelit.workers import cores

# ## Binding a book
#
# > Documents that were printed one by one become one, with ways between them.
#
# A browser writes down where the places lie that a document itself refers to. Here the places of all
# documents are gathered, links to them become ways to a page, and the outline that a reader of PDF files
# unfolds is written from the same places.
#
# The browser could also write what is a heading, a list or a table, for readers who listen. Joining that of
# several documents is not what the library that binds can do, and it doubles the size of the file, so it is
# left out: the site is what screen readers read.


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
class PdfPlace:
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

    def places(self, first: int) -> dict[str, PdfPlace]:
        """The places in it by their names, if `first` pages stand before it."""
        numbers = {
            page.indirect_reference.idnum: number
            for number, page in enumerate(self.reader.pages, start=first)
            if page.indirect_reference is not None
        }
        return {
            unquote(name.removeprefix("/")): PdfPlace(
                numbers[there.raw_get("/Page").idnum], float(there.left or 0), float(there.top or 0)
            )
            for name, there in self.reader.named_destinations.items()
        }


def bind(
    documents: Sequence[Printed],
    places: Mapping[str, PdfPlace],
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


def _lead(page: Any, pages: Sequence[Any], places: Mapping[str, PdfPlace]) -> None:
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


def _found(name: str, places: Mapping[str, PdfPlace]) -> PdfPlace | None:
    """A place, or the page that it should be on."""
    return places.get(name) or places.get(owner(name))


def _outline(writer: PdfWriter, marks: Sequence[Mark], places: Mapping[str, PdfPlace], above: Any) -> None:
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


# ## Until the numbers hold
#
# > A page says the numbers of other pages, and where those lie is known when everything is printed.
#
# So the book is printed twice. The first time shows how many pages each document has and where every place
# lies; the second time says so. A number has the same width whether it is known or not, and nothing moves. If
# something moved nevertheless, there is another round.


# How often a book is printed at most.
MOST = 5
# How many browsers print at once at most: each has up to a gigabyte.
_BROWSERS = 4


@dataclass(frozen=True, slots=True)
class Bundle:
    """The documents of a book as they were printed, and where everything lies in them."""

    documents: tuple[Printed, ...]
    places: Mapping[str, PdfPlace]


def printed(
    setting: pdf_documents.Setting,
    groups: Sequence[Group],
    leaves: Sequence[Leaf],
    print_pdf: Callable[[Path], Path],
) -> Bundle:
    """Print all documents of a book, as often as it takes for every number to be right.

    :param print_pdf: prints a document, and returns the path of what it printed.

    Raises `SidelitError` if nothing is printed, or if the numbers never settle.
    """
    volumes = list(pdf_documents.volumes(leaves))
    entries = {entry.leaf: entry for group in groups for entry in group.entries}
    wanted = frozenset[str]().union(*(leaf.wanted for leaf in leaves))
    digits = pdf_documents.digits(leaves)
    known = pdf_documents.Numbers({}, [0] * (len(volumes) + 1), digits)
    for _ in range(MOST):
        paths = [pdf_documents.front(setting, groups, known)]
        for number, held in enumerate(volumes, start=1):
            paths.append(pdf_documents.volume(setting, number, held, entries, wanted, known))
        with ThreadPoolExecutor(min(cores(), _BROWSERS)) as pool:
            bundle, firsts = _gathered(tuple(map(Printed, pool.map(print_pdf, paths))))
        pages = {name: place.page + 1 for name, place in bundle.places.items()}
        if pages == known.pages:
            return bundle
        known = pdf_documents.Numbers(pages, firsts, max(digits, len(str(max(pages.values(), default=0)))))
    raise SidelitError(f"the numbers of the pages still change after the book was printed {MOST} times")


def _gathered(made: tuple[Printed, ...]) -> tuple[Bundle, list[int]]:
    """The places of all documents, and how many pages stand before each."""
    places: dict[str, PdfPlace] = {}
    firsts, first = [], 0
    for each in made:
        firsts.append(first)
        places |= each.places(first)
        first += each.pages
    return Bundle(made, places), firsts
