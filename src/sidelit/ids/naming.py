"""# A first name for every section

> A section is named by what it is and what it says, never by where in the file it stands.

A definition is named by its qualified name, the module `module`. A comment block adds the first words of its
text, and code without commentary those of its first line, and of its other lines where that is not enough.
No id holds a digest: each can be said and printed. Reordering a file therefore changes no id.
Names given here are first proposals: once an id is published, `anchors` holds on to it through rewording and
moving.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from sidelit.source.source import Section

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
    return _counted(_in_own_words(ids, sections), sections)


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
    lines = (_code_words(line) for line in section.source.split("\n"))
    return "-".join(next(filter(None, lines), [])[:WORDS])


def _code_words(line: str) -> list[str]:
    plain = unicodedata.normalize("NFKD", line.casefold()).encode("ascii", "ignore").decode()
    return _sayable(plain)


def _sayable(plain: str) -> list[str]:
    """The words of a text but for long numbers in base 16, as those of commits, which nobody can say."""
    return [word for word in re.findall("[a-z0-9]+", plain) if not UNSAYABLE.fullmatch(word)]


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


def _counted(ids: Sequence[str], sections: Sequence[Section]) -> tuple[str, ...]:
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
