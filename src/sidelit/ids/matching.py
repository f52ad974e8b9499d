"""# Naming a section and finding it again

> A section is named by what it says, and by the same measure it is found in a later text.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
import itertools
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Literal

from sidelit.source.decoding import CODING
from sidelit.source.source import Kind, Section

# ## A first name for every section
#
# > A section is named by what it is and what it says, never by where in the file it stands.
#
# A definition is named by its qualified name, the module `module`. A comment block adds the first words of
# its text, and code without commentary those of its first line, and of its other lines where that is not
# enough. No id holds a digest: each can be said and printed. Reordering a file therefore changes no id. Names
# given here are first proposals: once an id is published, `anchors` holds on to it through rewording and
# moving.


WORDS = 5


def propose(sections: Sequence[Section]) -> tuple[str, ...]:
    """Return an id for each section; no two are equal, and their order has no influence.

    Where sections claim one name, what tells them apart is added: their decorator or the condition around
    them. Where that is not enough, code adds its other lines, and all else words that not all of them hold.
    What has no such word is counted, in the order of the texts.
    """
    ids = [_base(section) for section in sections]
    for tell in (_traits, _other_lines):
        ids = _told_apart(ids, sections, tell)
    return _numbered(_in_own_words(ids, sections), sections)


def piece(qualname: str, words: str) -> str:
    """Return the id of a piece of code or commentary inside a definition, or directly in the module."""
    return f"{qualname or 'module'}/{words}"


def slug(text: str, words: int = WORDS) -> str:
    """Turn the first words of a text into ASCII that can stand in an address; empty if it has none.

    Formulas and markup are left out, the words of code spans and links stay.
    """
    for pattern, replacement in MARKUP:
        text = pattern.sub(replacement, text)
    plain = unicodedata.normalize("NFKD", text.casefold()).encode("ascii", "ignore").decode()
    found: list[str] = []
    for sentence in SENTENCE.split(plain):
        found += _sayable(sentence)
        if len(found) > 1:
            break
    return "-".join(found[:words])


def numbered(name: str) -> Iterator[str]:
    """A name, and then the same with a number, from 2 on; none is an id that a page has of its own."""
    base = f"{name}-heading" if PAGES_OWN.fullmatch(f"{name}-2") else name
    named = itertools.chain((name,), (f"{base}-{number}" for number in itertools.count(2)))
    return (each for each in named if not PAGES_OWN.fullmatch(each))


# The ids that templates and footnotes have on a page, and the numbers that `numbered` adds.
PAGES_OWN = re.compile(r"main-text|note-\d+|(?:title-|lede-)?ref-\d+-\d+")
NUMBERS = re.compile(r"(?:(?:-heading)?-\d+)+$")

# What is dropped or unwrapped before words are counted, in this order.
MARKUP: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^(?:```|~~~).*?^(?:```|~~~)", re.MULTILINE | re.DOTALL), " "),
    (re.compile(r"\$\$.*?\$\$|\$[^$\n]+\$", re.DOTALL), " "),
    (re.compile(r'^(?:!!! ?\w+ *"?|#+ +)([^"\n]*)"?$', re.MULTILINE), "\\1\n\n"),
    (re.compile(r"^:\w+(?: [^:\n]*)?:|\[\^[^\]]*\]:?", re.MULTILINE), " "),
    (re.compile(r"!?\[([^\]]*)\](?:\([^)]*\)|\[[^\]]*\])"), r"\1"),
    (re.compile(r"<[^<>\n]*>|&\w+;|\\[a-zA-Z]+"), " "),
    (re.compile("(?<=[A-Za-z])['’](?=[A-Za-z])"), ""),
)
SENTENCE = re.compile(r"[.!?;:](?:\s|$)|\n\s*\n")


def text_digest(text: str, length: int = 8) -> str:
    """Return a digest of a text that does not see changes of spacing."""
    return hashlib.sha256(" ".join(text.split()).encode("utf-8", "surrogatepass")).hexdigest()[:length]


def _base(section: Section) -> str:
    """Return the name a section has before doubles are told apart."""
    if section.kind == "module":
        return "module"
    if section.kind in ("class", "function"):
        return section.qualname
    return piece(section.qualname, slug(section.commentary) or _first_line(section) or section.kind)


def _first_line(section: Section) -> str:
    """The words of the first line of code that has some."""
    lines = (
        _code_words(line)
        for line in section.source.split("\n")
        if not (section.commentary and _FOR_TOOLS.match(line))
    )
    return "-".join(next(filter(None, lines), [])[:WORDS])


_FOR_TOOLS = re.compile(rf"#!|{CODING.pattern}")


def _code_words(line: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", line.casefold()).encode("ascii", "ignore").decode()
    return _sayable(plain)


def _sayable(plain: str) -> list[str]:
    """The words of a text but for long numbers in base 16, as those of commits, which nobody can say.

    Of a word that is data, such as a picture written down in letters, only the beginning stands in an id.
    """
    return [word[:LETTERS] for word in re.findall("[a-z0-9]+", plain) if not UNSAYABLE.fullmatch(word)]


LETTERS = 40
UNSAYABLE = re.compile("0x[0-9a-f]{5,}|(?=[0-9]*[a-f])(?=[a-f]*[0-9])[0-9a-f]{7,}")


# ## Telling doubles apart


def _told_apart(ids: Sequence[str], sections: Sequence[Section], tell: Callable[[Section], str]) -> list[str]:
    """Add to each id that is claimed more than once what `tell` knows of its section."""
    claims = _claims(ids)
    return [
        f"{name}@{word}" if len(claims[name]) > 1 and (word := tell(section)) else name
        for name, section in zip(ids, sections, strict=True)
    ]


def _in_own_words(ids: Sequence[str], sections: Sequence[Section]) -> list[str]:
    """Add to each id that is claimed more than once the first words that not all who claim it hold.

    The word before them goes along: `f@return-2` says more than `f@2`.
    """
    told = list(ids)
    for name, places in _claims(ids).items():
        words = {place: _code_words(sections[place].source) for place in places if len(places) > 1}
        holders = Counter(word for found in words.values() for word in set(found))
        for place, found in words.items():
            first = next((at for at, word in enumerate(found) if holders[word] < len(places)), None)
            # The module keeps its name.
            if first is not None and sections[place].kind != "module":
                told[place] = f"{name}@{'-'.join(found[max(first - 1, 0) : first - 1 + WORDS])}"
    return told


def _numbered(ids: Sequence[str], sections: Sequence[Section]) -> tuple[str, ...]:
    """Number the ids that are still equal: their sections say much the same, so any of them will do.

    Unequal ones are numbered by their texts, whichever of them comes first in the file.
    """
    counted = list(ids)
    for name, places in _claims(ids).items():
        places.sort(key=lambda place: (sections[place].kind != "module", sections[place].source.split()))
        for count, place in enumerate(places[1:], start=2):
            counted[place] = f"{name}-{count}"
    return tuple(counted)


def _claims(ids: Sequence[str]) -> dict[str, list[int]]:
    claims: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(ids):
        claims[name].append(place)
    return claims


def _traits(section: Section) -> str:
    """Put a decorator or a condition into words."""
    text = " ".join(section.traits)
    for sign, word in SIGNS:
        text = text.replace(sign, f" {word} ")
    return slug(text.replace(".", " "), words=8)


# Two conditions often differ in the comparison alone. The longer signs come first, since they hold the
# shorter ones.
SIGNS = ((">=", "ge"), ("<=", "le"), ("==", "eq"), ("!=", "ne"), ("<", "lt"), (">", "gt"))


def _other_lines(section: Section) -> str:
    """The words of code without commentary behind those of its name, as many as an address may have."""
    if section.kind not in ("comment", "code") or slug(section.commentary):
        return ""
    return "-".join(_code_words(section.source)[WORDS : 4 * WORDS])


# ## Finding a section again
#
# > After an edit, which section is the one that was published under an id?
#
# A section may be reworded, its code changed, moved within its function, or carried to another one with a new
# name. It is found again by likeness: the share of words, or of lines of code, that are still there in the
# same order. Within one definition little is asked, since its sections are few; elsewhere more, and enough
# text that likeness means something. The best pairs are taken first, so that an unchanged section is never
# given away to a look-alike.


# Shares of words or lines that must agree: near is the same definition, far is another one.
NEAR = 0.6
FAR = 0.75
HALF = 0.5

# What a far section must hold: "Clean up." says nothing, and neither does `return x`.
FAR_WORDS = 4
FAR_LINES = 3

HEADING: Literal["heading"] = "heading"
PIECES = ("comment", "code", HEADING)


@dataclass(frozen=True, slots=True)
class Imprint:
    """What the ledger remembers of a section, or of a heading of a page of Markdown.

    :param words: its commentary, cut at blanks; of a heading its own words.
    :param lines: a digest of each line of its code; of a heading one of each sentence below it.
    :param places: where it stood on other pages, each as `address#id`; without an id it is a whole page.
    """

    id: str
    kind: Kind | Literal["heading"]
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
    return (each.qualname, each.words, each.lines, each.kind == HEADING, each.id if with_id else "")


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
    if (old.kind == "module") != (new.kind == "module") or (old.kind == HEADING) != (new.kind == HEADING):
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
    if entry.kind == HEADING:
        return bool(entry.lines)
    return bool(entry.words) or (entry.kind not in PIECES and len(entry.lines) >= FAR_LINES)
