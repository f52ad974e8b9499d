"""# Finding a section again

> After an edit, which section is the one that was published under an id?

A section may be reworded, its code changed, moved within its function, or carried to another one with a new
name. It is found again by likeness: the share of words, or of lines of code, that are still there in the same
order. Within one definition little is asked, since its sections are few; elsewhere more, and enough text that
likeness means something. The best pairs are taken first, so that an unchanged section is never given away to
a look-alike.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from sidelit.ids.naming import text_digest
from sidelit.source.cutting import Kind
from sidelit.source.source import Section

# Shares of words or lines that must agree: near is the same definition, far is another one.
NEAR = 0.6
FAR = 0.75
HALF = 0.5

# What a far section must hold: "Clean up." says nothing, and neither does `return x`.
FAR_WORDS = 4
FAR_LINES = 3

PIECES = ("comment", "code")


@dataclass(frozen=True, slots=True)
class Imprint:
    """What the ledger remembers of a section.

    :param words: its commentary, cut at blanks.
    :param lines: a digest of each line of its code.
    :param places: where it stood on other pages, each as `address#id`; without an id it is a whole page.
    """

    id: str
    kind: Kind
    qualname: str
    words: tuple[str, ...]
    lines: tuple[str, ...]
    aliases: tuple[str, ...] = ()
    places: tuple[str, ...] = ()


def imprint(
    section: Section, name: str, aliases: tuple[str, ...] = (), places: tuple[str, ...] = ()
) -> Imprint:
    """Take the imprint of a section that goes by `name`."""
    lines = tuple(text_digest(text, 6) for _, text in section.body if text.strip())
    words = tuple(section.commentary.split())
    return Imprint(name, section.kind, section.qualname, words, lines, aliases, places)


def match(old: Sequence[Imprint], new: Sequence[Imprint]) -> tuple[dict[int, int], dict[str, str]]:
    """Find for each old imprint the new one that is the same section, by position.

    Returns the pairs, and the new qualified name of each definition among them. Definitions come first: a
    renamed class takes its methods and their comments along.
    """
    pairs = _unchanged(old, new)
    renamed: dict[str, str] = {}
    for i, j in pairs.items():
        _follow(old[i], new[j], renamed)
    # A section of the same definition is always the better choice, and there are few of those to compare.
    for pieces, far in itertools.product((False, True), (False, True)):
        left = [i for i, each in enumerate(old) if i not in pairs and (each.kind in PIECES) == pieces]
        taken = set(pairs.values())
        right = [j for j, each in enumerate(new) if j not in taken and (each.kind in PIECES) == pieces]
        _pair_best_first(_Rating(old, new, renamed, far), left, right, pairs)
    return pairs, renamed


def alike(old: Imprint, new: Imprint) -> bool:
    """Whether two sections of different pages are the same one, judged by nothing but their text.

    Pages of one project say similar things in many places, so both the words and the code must bear it out.
    """
    words, lines = _ratio(old.words, new.words), _ratio(old.lines, new.lines)
    said = min(len(old.words), len(new.words)) >= FAR_WORDS
    done = min(len(old.lines), len(new.lines)) >= FAR_LINES
    if not (old.lines or new.lines):
        return said and words >= FAR
    if not (old.words and new.words):
        return done and lines >= FAR
    return max(words, lines) >= FAR and min(words, lines) >= HALF and (said or done)


@dataclass(frozen=True, slots=True)
class _Rating:
    """How pairs are rated: by what is known of renamings, and whether in other definitions too."""

    old: Sequence[Imprint]
    new: Sequence[Imprint]
    renamed: dict[str, str]
    far: bool

    def pairs(self, left: Sequence[int], right: Sequence[int]) -> Iterator[tuple[float, int, int]]:
        """Yield what may be the same section; the best pair is the smallest, and earlier ones come first."""
        for i in left:
            place = moved(self.old[i].qualname, self.renamed)
            for j in right:
                if (self.far or place == self.new[j].qualname) and (score := self.score(i, j)) > 0:
                    yield -score, i, j

    def score(self, i: int, j: int) -> float:
        """Rate one pair as things stand now."""
        return _score(self.old[i], self.new[j], moved(self.old[i].qualname, self.renamed))


def _pair_best_first(
    rating: _Rating, left: Sequence[int], right: Sequence[int], pairs: dict[int, int]
) -> None:
    """Add to `pairs` what is `left` of the old and `right` of the new; each may change other ratings."""
    taken: set[int] = set()
    heap = list(rating.pairs(left, right))
    heapq.heapify(heap)
    while heap:
        rank, i, j = heapq.heappop(heap)
        if i in pairs or j in taken:
            continue
        score = rating.score(i, j)
        if score != -rank:
            # A definition was found in the meantime, and this one belongs elsewhere.
            if score > 0:
                heapq.heappush(heap, (-score, i, j))
            continue
        pairs[i] = j
        taken.add(j)
        followed = _follow(rating.old[i], rating.new[j], rating.renamed)
        below = [k for k in left if k not in pairs and _is_below(rating.old[k].qualname, followed)]
        for each in rating.pairs(below, [k for k in right if k not in taken]):
            heapq.heappush(heap, each)


def _unchanged(old: Sequence[Imprint], new: Sequence[Imprint]) -> dict[int, int]:
    """Pair what is certain: definitions with the same id, pieces with the same text in the same place.

    Equal pieces keep the id they have, which is why ids are compared first.
    """
    pairs: dict[int, int] = {}
    for with_id in (True, False):
        found: dict[tuple[object, ...], list[int]] = {}
        for j in sorted(set(range(len(new))) - set(pairs.values()), reverse=True):
            found.setdefault(_key(new[j], with_id), []).append(j)
        for i, each in enumerate(old):
            if i not in pairs and (places := found.get(_key(each, with_id))):
                pairs[i] = places.pop()
    return pairs


def _key(each: Imprint, with_id: bool) -> tuple[object, ...]:
    if each.kind not in PIECES:
        return (each.id,)
    return (each.qualname, each.words, each.lines, each.id if with_id else "")


def _follow(old: Imprint, new: Imprint, renamed: dict[str, str]) -> tuple[str, ...]:
    """Note where a definition went; one that kept its last name shows where the class around it went.

    Returns the names that were noted.
    """
    if old.kind in PIECES or old.kind == "module":
        return ()
    renamed[old.qualname] = new.qualname
    before, _, last = old.qualname.rpartition(".")
    after, _, name = new.qualname.rpartition(".")
    if last == name and before and after and before not in renamed:
        renamed[before] = after
        return old.qualname, before
    return (old.qualname,)


def _is_below(qualname: str, names: Sequence[str]) -> bool:
    return any(f"{qualname}.".startswith(f"{name}.") for name in names)


def moved(qualname: str, renamed: dict[str, str]) -> str:
    """Return where a definition went: the longest part of its name that was renamed counts."""
    parts = qualname.split(".")
    for length in range(len(parts), 0, -1):
        if (known := renamed.get(".".join(parts[:length]))) is not None:
            return ".".join([known, *parts[length:]])
    return qualname


def _ratio(old: Sequence[str], new: Sequence[str]) -> float:
    """Two sections without commentary have none in common."""
    if not old or not new:
        return 0.0
    return 1.0 if old == new else SequenceMatcher(None, old, new, autojunk=False).ratio()


def _could_be(old: Sequence[str], new: Sequence[str]) -> bool:
    """Whether the ratio can reach what is asked at least; far cheaper than the ratio itself."""
    whole = len(old) + len(new)
    if not old or not new or 2 * min(len(old), len(new)) < NEAR * whole:
        return False
    return 2 * sum((_counted(old) & _counted(new)).values()) >= NEAR * whole


@functools.cache
def _counted(items: Sequence[str]) -> Counter[str]:
    return Counter(items)


def _score(old: Imprint, new: Imprint, place: str) -> float:
    """Rate a pair; 0 or less means that they are two different sections.

    What a section says counts a little more than the code beside it, which settles it when comments swap
    places.

    :param place: the name that the old one's definition has now.
    """
    if (old.kind == "module") != (new.kind == "module"):
        return 0.0
    pieces, near = old.kind in PIECES, place == new.qualname
    certain = near and (not pieces or old.id == new.id)
    if not certain and not _could_be(old.words, new.words) and not _could_be(old.lines, new.lines):
        return 0.0
    words, lines = _ratio(old.words, new.words), _ratio(old.lines, new.lines)
    # Of two that hold the same lines, the one that said nothing before is the one that says nothing now.
    total = 1.1 * words + lines + 0.01 * (old.words == new.words)
    if near:
        return 10.0 + total if certain or max(words, lines) >= NEAR else 0.0
    enough = FAR if pieces else NEAR
    same_words = words >= enough and min(len(old.words), len(new.words)) >= FAR_WORDS
    same_lines = lines >= enough and min(len(old.lines), len(new.lines)) >= FAR_LINES
    return total if same_words or same_lines else 0.0


def text_of(entry: Imprint) -> tuple[object, ...]:
    """What a section is called, says and does, without its id."""
    return entry.kind, entry.qualname, entry.words, entry.lines


def says_enough(entry: Imprint) -> bool:
    """Whether a section is more than what any page may hold."""
    return bool(entry.words) or (entry.kind not in PIECES and len(entry.lines) >= FAR_LINES)
