"""# Finding a section again

> After an edit, which section is the one that was published under an id?

A section may be reworded, its code changed, moved within its function, or carried to another one with a new
name. It is found again by likeness: the share of words, or of lines of code, that are still there in the same
order. Within one definition little is asked, since its sections are few; elsewhere more, and enough text that
likeness means something. The best pairs are taken first, so that an unchanged section is never given away to
a look-alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from sidelit.naming import digest
from sidelit.source import Kind, Section

# Shares of words or lines that must agree: near is the same definition, far is another one.
NEAR = 0.6
FAR = 0.75

# What a far section must hold: "Clean up." says nothing, and neither does `return x`.
FAR_WORDS = 4
FAR_LINES = 3

PIECES = ("comment", "code")


@dataclass(frozen=True, slots=True)
class Imprint:
    """What the ledger remembers of a section.

    :param words: its commentary, cut at blanks.
    :param lines: a digest of each line of its code.
    """

    id: str
    kind: Kind
    qualname: str
    words: tuple[str, ...]
    lines: tuple[str, ...]
    aliases: tuple[str, ...] = ()


def imprint(section: Section, name: str, aliases: tuple[str, ...] = ()) -> Imprint:
    """Take the imprint of a section that goes by `name`."""
    lines = tuple(digest(text, 6) for _, text in section.code if text.strip())
    words = tuple(section.commentary.split())
    return Imprint(name, section.kind, section.qualname, words, lines, aliases)


def match(old: Sequence[Imprint], new: Sequence[Imprint]) -> tuple[dict[int, int], dict[str, str]]:
    """Find for each old imprint the new one that is the same section, by position.

    Returns the pairs, and the new qualified name of each definition among them. Definitions come first: a
    renamed
    class takes its methods and their comments along.
    """
    pairs = _unchanged(old, new)
    renamed: dict[str, str] = {}
    for i, j in pairs.items():
        _follow(old[i], new[j], renamed)
    for pieces in (False, True):
        left = [i for i, each in enumerate(old) if i not in pairs and (each.kind in PIECES) == pieces]
        taken = set(pairs.values())
        right = [j for j, each in enumerate(new) if j not in taken and (each.kind in PIECES) == pieces]
        likeness = {(i, j): _likeness(old[i], new[j]) for i in left for j in right}
        while likeness:
            scores = {(i, j): _score(old[i], new[j], likeness[i, j], renamed) for i, j in likeness}
            i, j = max(scores, key=lambda pair: scores[pair])
            if scores[i, j] <= 0:
                break
            pairs[i] = j
            _follow(old[i], new[j], renamed)
            likeness = {pair: each for pair, each in likeness.items() if pair[0] != i and pair[1] != j}
    return pairs, renamed


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


def _follow(old: Imprint, new: Imprint, renamed: dict[str, str]) -> None:
    """Note where a definition went; one that kept its last name shows where the class around it went."""
    if old.kind in PIECES or old.kind == "module":
        return
    renamed[old.qualname] = new.qualname
    before, _, last = old.qualname.rpartition(".")
    after, _, name = new.qualname.rpartition(".")
    if last == name and before and after:
        renamed.setdefault(before, after)


def moved(qualname: str, renamed: dict[str, str]) -> str:
    """Return where a definition went: the longest part of its name that was renamed counts."""
    parts = qualname.split(".")
    for length in range(len(parts), 0, -1):
        if (known := renamed.get(".".join(parts[:length]))) is not None:
            return ".".join([known, *parts[length:]])
    return qualname


@dataclass(frozen=True, slots=True)
class _Likeness:
    """How much of the words and of the code of one section is in another: 0 to 1 each."""

    words: float
    lines: float


def _likeness(old: Imprint, new: Imprint) -> _Likeness:
    return _Likeness(_ratio(old.words, new.words), _ratio(old.lines, new.lines))


def _ratio(old: Sequence[str], new: Sequence[str]) -> float:
    """Two sections without commentary have none in common."""
    if not old or not new:
        return 0.0
    return 1.0 if old == new else SequenceMatcher(None, old, new, autojunk=False).ratio()


def _score(old: Imprint, new: Imprint, likeness: _Likeness, renamed: dict[str, str]) -> float:
    """Rate a pair; 0 or less means that they are two different sections.

    What a section says counts a little more than the code beside it, which settles it when comments swap
    places.
    """
    if (old.kind == "module") != (new.kind == "module"):
        return 0.0
    # Of two that hold the same lines, the one that said nothing before is the one that says nothing now.
    total = 1.1 * likeness.words + likeness.lines + 0.01 * (old.words == new.words)
    pieces = old.kind in PIECES
    if moved(old.qualname, renamed) == new.qualname:
        certain = not pieces or old.id == new.id or max(likeness.words, likeness.lines) >= NEAR
        return 10.0 + total if certain else 0.0
    enough = FAR if pieces else NEAR
    words = likeness.words >= enough and min(len(old.words), len(new.words)) >= FAR_WORDS
    lines = likeness.lines >= enough and min(len(old.lines), len(new.lines)) >= FAR_LINES
    return total if words or lines else 0.0
