"""# What a page adds to the index

> Each term of a page, with the places that have it, and how much it says about each of them.

The weight of a term has four steps, so that it takes two bits beside the number of the place. What a page
adds follows from the page and from the usual length of a place, so it stays when another page is edited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sidelit.site.search.places import Place
from sidelit.site.search.terms import listed

# A term in a title says more than one in the text: these are the lowest and the highest weight.
_CODE, _TITLE = 0, 3

Postings = Mapping[str, tuple[int, list[int], int]]
"""By term: the first place, the steps to the others, and the number of the last place. A place is four times
its number, plus the weight of the term there; a step is counted so as well."""


def lengths(inside: Sequence[Place]) -> list[int]:
    """How many terms the words of each place have."""
    return [len(listed(place.words)) for place in inside]


def usual(found: Iterable[int]) -> int:
    """The length that places usually have: their mean, as a power of two, which few edits change."""
    counted = list(found)
    mean = sum(counted) // max(1, len(counted))
    return 1 << max(0, mean.bit_length() - 1)


def postings(inside: Sequence[Place], more: Mapping[str, str], usual: int) -> Postings:
    """The terms of a page; `more` are words that places are found under, by their ids."""
    made: dict[str, tuple[int, list[int], int]] = {}
    for number, place in enumerate(inside):
        for term, weight in _weights(place, more.get(place.id, ""), usual).items():
            if term in made:
                start, steps, last = made[term]
                steps.append(4 * (number - last) + weight)
                made[term] = start, steps, number
            else:
                made[term] = 4 * number + weight, [], number
    return made


def _weights(place: Place, more: str, usual: int) -> dict[str, int]:
    counts = Counter(listed(place.words))
    weights = dict.fromkeys(listed(f"{place.code} {more}"), _CODE)
    # A word that is repeated counts for more, each time by less; in a long text, for less (as in BM25).
    long = 0.3 + 0.9 * counts.total() / usual
    weights |= {term: int(3 * times / (times + long)) for term, times in counts.items()}
    weights |= dict.fromkeys(listed(f"{place.title} {place.id.partition('/')[0]}"), _TITLE)
    return weights
