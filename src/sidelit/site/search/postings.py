"""# What a page adds to the index

> Each term of a page, with the places that have it, and how much it says about each of them.

The weight of a term has eight steps, so that it takes three bits beside the number of the place. What a page
adds follows from the page alone, so it stays when another page is edited.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from sidelit.site.search.places import SearchPlace
from sidelit.site.search.tokenizer import Tokenizer

# How many weights there are; a term in code has the lowest, one in a title or a keyword the highest. What
# each is worth stands in search-rank.js.
STEPS = 8
_CODE, _TITLE = 0, STEPS - 1
# How many terms the words of a place usually have.
_USUAL = 16

Postings = Mapping[str, tuple[int, bytes, int]]
"""By term: the first place, the steps to the others as they are written, each behind a space, and the number
of the last place. A place is eight times its number, plus the weight of the term there; so is a step.
"""


def postings(inside: Sequence[SearchPlace], cut: Tokenizer) -> Postings:
    """The terms of a page."""
    made: dict[str, tuple[int, bytes, int]] = {}
    for number, place in enumerate(inside):
        for term, weight in _weights(place, cut).items():
            if term in made:
                start, steps, last = made[term]
                step = _number(STEPS * (number - last) + weight)
                made[term] = start, b"%b %b" % (steps, step), number
            else:
                made[term] = STEPS * number + weight, b"", number
    return made


class Lists:
    """The places of each term on all pages, kept as they are written; numbers take ten times the room."""

    def __init__(self) -> None:
        self._known: dict[str, bytearray] = {}
        self._last: dict[str, int] = {}
        self._first = 0

    def add(self, listed: Postings, places: int) -> None:
        """Add the next page, which has so many places."""
        first, known, ends = self._first, self._known, self._last
        for term, (start, steps, last) in listed.items():
            before = ends.get(term)
            if before is None:
                known[term] = bytearray(_number(start + STEPS * first) + steps)
            else:
                known[term] += b" " + _number(start + STEPS * (first - before)) + steps
            ends[term] = first + last
        self._first += places

    def postings(self) -> Postings:
        """All that was added, as if it were one page."""
        made = {}
        for term, known in self._known.items():
            start, space, steps = bytes(known).partition(b" ")
            made[term] = int(start, 36), space + steps, self._last[term]
        return made

    def __contains__(self, term: str) -> bool:
        return term in self._known

    def in_order(self) -> Iterator[tuple[str, str]]:
        """Each term and its places, in the order in which a script compares the terms."""
        # Letters beyond the first plane come before some of the first there.
        far = _FAR.search("".join(self._known))
        for term in sorted(self._known, key=(lambda term: term.encode("utf-16-be")) if far else None):
            yield term, self._known[term].decode()


_FAR = re.compile("[\U00010000-\U0010ffff]")


@lru_cache(2**16)
def _number(value: int) -> bytes:
    """A number as scripts read it with 36 digits, which is shorter."""
    digits = b""
    while value >= 36:
        value, last = divmod(value, 36)
        digits = _DIGITS[last : last + 1] + digits
    return _DIGITS[value : value + 1] + digits


_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"


def _weights(place: SearchPlace, cut: Tokenizer) -> dict[str, int]:
    counts = cut.counted(place.words)
    weights = dict.fromkeys(cut.counted(place.code), _CODE)
    # A word that is repeated counts for more, each time by less; in a long text, for less (as in BM25).
    long = 0.3 + counts.total() / _USUAL
    most = _TITLE - 1
    weights |= {term: 1 + int(most * times / (times + long)) for term, times in counts.items()}
    named = f"{place.title} {place.id.partition('/')[0]} {place.keywords}"
    weights |= dict.fromkeys(cut.listed(named), _TITLE)
    return weights
