"""# Until the numbers hold

> A page says the numbers of other pages, and where those lie is known when everything is printed.

So the book is printed twice. The first time shows how many pages each document has and where every place
lies; the second time says so. A number has the same width whether it is known or not, and nothing moves. If
something moved nevertheless, there is another round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sidelit.book import documents
from sidelit.book.binding import Place, Printed
from sidelit.book.contents import Group
from sidelit.book.leaves import Leaf
from sidelit.errors import SidelitError
from sidelit.workers import cores

# How often a book is printed at most.
MOST = 5
# How many browsers print at once at most: each has up to a gigabyte.
_BROWSERS = 4


@dataclass(frozen=True, slots=True)
class Bundle:
    """The documents of a book as they were printed, and where everything lies in them."""

    documents: tuple[Printed, ...]
    places: Mapping[str, Place]


def printed(
    setting: documents.Setting,
    groups: Sequence[Group],
    leaves: Sequence[Leaf],
    print_pdf: Callable[[Path], Path],
) -> Bundle:
    """Print all documents of a book, as often as it takes for every number to be right.

    :param print_pdf: prints a document, and returns the path of what it printed.

    Raises `SidelitError` if nothing is printed, or if the numbers never settle.
    """
    volumes = list(documents.volumes(leaves))
    entries = {entry.leaf: entry for group in groups for entry in group.entries}
    wanted = frozenset[str]().union(*(leaf.wanted for leaf in leaves))
    digits = documents.digits(leaves)
    known = documents.Numbers({}, [0] * (len(volumes) + 1), digits)
    for _ in range(MOST):
        paths = [documents.front(setting, groups, known)]
        for number, held in enumerate(volumes, start=1):
            paths.append(documents.volume(setting, number, held, entries, wanted, known))
        with ThreadPoolExecutor(min(cores(), _BROWSERS)) as pool:
            bundle, firsts = _gathered(tuple(map(Printed, pool.map(print_pdf, paths))))
        pages = {name: place.page + 1 for name, place in bundle.places.items()}
        if pages == known.pages:
            return bundle
        known = documents.Numbers(pages, firsts, max(digits, len(str(max(pages.values(), default=0)))))
    raise SidelitError(f"the numbers of the pages still change after the book was printed {MOST} times")


def _gathered(made: tuple[Printed, ...]) -> tuple[Bundle, list[int]]:
    """The places of all documents, and how many pages stand before each."""
    places: dict[str, Place] = {}
    firsts, first = [], 0
    for each in made:
        firsts.append(first)
        places |= each.places(first)
        first += each.pages
    return Bundle(made, places), firsts
