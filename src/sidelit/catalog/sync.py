"""# Translations follow the text

> A page is cut into sentences, and the old translation of each is found again after the text has changed.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from typing import Literal

from markdown_it.token import Token

from sidelit.cache.records import Late, quick
from sidelit.catalog.po_file import MOVED, NO_CODE, Entry
from sidelit.text import markup

# ## What is translated
#
# > A page is cut into sentences that can be judged one at a time.
#
# A page is translated in units, and a unit is what Markdown calls an inline: one paragraph, one list item,
# one heading, one table cell, one footnote, the text of one `:param:`, the title of an admonition. It is
# small enough to judge at a glance and large enough to be a thought; code spans and formulas stay inside
# it, since the sentence around them decides where they stand.
#
# Units are filed under the qualified name of what they describe. Nothing is numbered, so a paragraph may
# move within its section, and a section within its page, without touching a single catalogue entry.


@quick
@dataclass(frozen=True, slots=True)
class SectionUnits:
    """The sentences of one section, and the fingerprint of the code they stand beside."""

    context: str
    msgids: tuple[str, ...]
    code_digest: str = ""


@dataclass(frozen=True, slots=True)
class PageUnits:
    """The sections of one page, in source order.

    `name` is its catalogue's path below the language, `former` are the paths at which older catalogues may
    lie. `languages` are those it stands in; empty for all those of the site. With `optional` nobody owes it
    a translation.
    """

    name: str
    sections: tuple[SectionUnits, ...]
    former: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    optional: bool = False

    def stands_in(self, lang: str) -> bool:
        """Whether the page has a catalogue in a language."""
        return not self.languages or lang in self.languages


def extract(context: str, tokens: Sequence[Token], code_digest: str = "") -> SectionUnits:
    """Collect the units of one section's Markdown.

    `context` is the section's qualified name, or `module`; for prose, the slugs of the headings above it.
    """
    return SectionUnits(context, tuple(msgid(tokens[index]) for index in unit_indices(tokens)), code_digest)


def unit_indices(tokens: Sequence[Token]) -> list[int]:
    """The positions of the inline tokens that a translator has to see."""
    return [
        index
        for index, token in enumerate(tokens)
        if token.type == "inline" and has_words(token.children or [])
    ]


def has_words(children: Iterable[Token]) -> bool:
    """Whether an inline says anything in words.

    A heading that is one code span, or a table cell that is one formula or number, reads the same in every
    language: to ask for its translation would only invite a slip.
    """
    return any(_has_letter(child.content) for child in children if child.type in ("text", "image"))


def _has_letter(text: str) -> bool:
    return any(unicodedata.category(char).startswith("L") for char in text)


def msgid(token: Token) -> str:
    """The text of a unit as the catalogue files it."""
    return unwrap(token.content)


def unwrap(content: str) -> str:
    """Join the lines of a paragraph: wrapping the source anew must not make a translation stale.

    A line break that Markdown keeps (two spaces or a backslash before it) is kept.
    """
    joined = re.sub(r"(?<!\\)(?<!  )\n[ \t]*", " ", content.strip())
    return re.sub(r"(\\|(?<! ) {2,})\n[ \t]*", lambda match: match[1][:2] + "\n", joined)


def code_digest(lines: Iterable[str]) -> str:
    """Fingerprint the code beside a section; `""` when there is none.

    Indentation shared by all lines, trailing spaces and blank lines do not count: to move a method into
    another class is no reason to doubt its translation.
    """
    block = textwrap.dedent("\n".join(line.rstrip() for line in lines if line.strip()))
    return hashlib.sha256(block.encode()).hexdigest()[:12] if block else ""


def split_prose(tokens: Sequence[Token]) -> tuple[tuple[str, tuple[Token, ...]], ...]:
    """Cut the tokens of a prose page into sections, each under the slugs of its headings.

    The title and what follows it is `page`: a page may be renamed without unsettling its text. Footnotes
    gather at the end of a page wherever they were written, so they get a context of their own.
    """
    cuts: list[tuple[str, list[Token]]] = [("page", [])]
    path: dict[int, str] = {}
    for index, token in enumerate(tokens):
        if token.level == 0 and token.type == "footnote_block_open":
            cuts.append(("footnotes", []))
        if token.level == 0 and token.type == "heading_open":
            depth = int(token.tag[1:])
            path = {level: slug for level, slug in path.items() if level < depth}
            if depth > 1:
                path[depth] = markup.ascii_slug(markup.plain(tokens[index + 1])) or "section"
            cuts.append(("/".join(path.values()) or "page", []))
        cuts[-1][1].append(token)
    return tuple((context, tuple(body)) for context, body in cuts if body)


# ## Sentences that were reworded
#
# > The old sentence that a new one was made from, so that its translation is at hand.
#
# One sentence out and one in at the same place is a rewording, however thorough; elsewhere the two must be
# alike. What is found is never shown to a reader, it is help for a translator. So the search may overlook
# something, but must not take time for each pair: a page may have lost thousands of sentences and got others.


Key = tuple[str, str]

# Below these a pair of English sentences has little more in common than the language.
ALIKE = 0.5
ALIKE_ELSEWHERE = 0.65

# What so many places share tells none of them from another.
_COMMON = 50
# How many sentences are compared with one letter by letter, and up to which length: that takes milliseconds.
_COMPARED = 10
_LENGTH = 2000


class Shared:
    """Finds the sets that have most in common with another one, without a look at each."""

    def __init__(self, sets: Iterable[Iterable[Hashable]]) -> None:
        self._owners: dict[Hashable, list[int]] = {}
        for number, members in enumerate(sets):
            for member in dict.fromkeys(members):
                self._owners.setdefault(member, []).append(number)

    def most(self, members: Iterable[Hashable], count: int) -> list[int]:
        """The numbers of at most `count` sets, the one that shares most with `members` first."""
        found: Counter[int] = Counter()
        for member in dict.fromkeys(members):
            owners = self._owners.get(member, ())
            found.update(owners if len(owners) <= _COMMON else ())
        return sorted(found, key=lambda number: (-found[number], number))[:count]


class _Sentences:
    """Old sentences among which the closest to a new one is looked for."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = entries

    @cached_property
    def _index(self) -> Shared:
        return Shared(_words(entry.msgid) for entry in self.entries)

    def closest(self, msgid: str, threshold: float) -> Entry | None:
        """The most alike of the sentences, if it is alike enough."""
        near = self.entries
        if len(near) > _COMPARED:
            near = [self.entries[number] for number in self._index.most(_words(msgid), _COMPARED)]
        best, likeness = None, 0.0
        matcher = difflib.SequenceMatcher(None, autojunk=False)
        matcher.set_seq2(msgid[:_LENGTH])
        for entry in near:
            matcher.set_seq1(entry.msgid[:_LENGTH])
            least = max(threshold, likeness)
            if matcher.real_quick_ratio() < least or matcher.quick_ratio() < least:
                continue
            if (ratio := matcher.ratio()) >= threshold and ratio > likeness:
                best, likeness = entry, ratio
        return best


class Rewordings:
    """Finds the old sentence that a new one was made from, on one page."""

    def __init__(self, wanted: Mapping[Key, object], old: Sequence[Entry]) -> None:
        self._new = _by_context((context, msgid) for context, msgid in wanted)
        live = [entry for entry in old if not entry.obsolete]
        self._old = _by_context(entry.key for entry in live)
        self._live = _entries_by_context(live)
        gone = [entry for entry in old if entry.key not in wanted and entry.msgstr]
        self._gone = {name: _Sentences(each) for name, each in _entries_by_context(gone).items()}
        self._vanished = [name for name in self._old if name not in self._new]
        self._said = Shared(self._old[name] for name in self._vanished)
        self._elsewhere = _Sentences([entry for entry in gone if entry.context not in self._new])
        self._origins = {context: self._origin(context) for context in self._new}
        self._in_place = self._same_place()

    def guess(self, context: str, msgid: str) -> Entry | None:
        """The old translation, fuzzy, in the place of the new sentence."""
        found = self._in_place.get((context, msgid)) or self._alike(context, msgid)
        if found is None:
            return None
        previous = found.previous if found.fuzzy and found.previous else found.msgid
        return replace(found, context=context, msgid=msgid, fuzzy=True, previous=previous, obsolete=False)

    def _origin(self, context: str) -> str:
        """What a context was called before: a renamed function or heading takes most sentences along."""
        if context in self._old:
            return context
        best = self._said.most(self._new[context], 1)
        return self._vanished[best[0]] if best else context

    def _alike(self, context: str, msgid: str) -> Entry | None:
        origin = self._origins[context]
        best = self._gone[origin].closest(msgid, ALIKE) if origin in self._gone else None
        if best is None and origin not in self._old:
            best = self._elsewhere.closest(msgid, ALIKE_ELSEWHERE)
        return best

    def _same_place(self) -> dict[Key, Entry]:
        found: dict[Key, Entry] = {}
        for context, after in self._new.items():
            before = self._live.get(self._origins[context], [])
            for start, new_start in _single_changes([entry.msgid for entry in before], after):
                if before[start].msgstr:
                    found[context, after[new_start]] = before[start]
        return found


def _single_changes(before: Sequence[str], after: Sequence[str]) -> Iterable[tuple[int, int]]:
    """The places, in both lists, at which one sentence stands for another one."""
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for kind, start, end, new_start, new_end in matcher.get_opcodes():
        if kind == "replace" and (end - start, new_end - new_start) == (1, 1):
            yield start, new_start


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def _by_context(keys: Iterable[Key]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for context, msgid in keys:
        found.setdefault(context, []).append(msgid)
    return found


def _entries_by_context(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.context, []).append(entry)
    return found


# ## Matching old translations with a changed page
#
# > No translation is thrown away with the sentence it was made for, and none is shown for another.
#
# A page changes every day and its translations must not be thrown away with it, nor be shown where they
# have become false. For each sentence of the page as it is now, the first of these that applies decides:
#
# 1. The catalogue has it: it stays, whatever its place on the page.
# 2. It was deleted once: its old translation comes back.
# 3. The same sentence is translated in another context or on another page: that text is carried over, to be
#    rechecked, since a sentence may mean something else beside other code. A definition that went to another
#    page with its code as it was takes its translations along as they were judged. One word or two, as in the
#    cell of a table, may be a verb here and a noun there: they are carried over only from a context that the
#    page has no more.
# 4. It resembles a sentence that has just gone: the old translation is kept at hand, fuzzy, and is never
#    shown. Two widely used tools would have shown "do not free" for a sentence that had just lost its "not".
# 5. It is new, and waits for a translator.
#
# Sentences that went leave their translation in the catalogue as obsolete, for rule 2. Doing all this a
# second time changes nothing, and it happens in memory at every build, so that a build tells the truth
# whether or not somebody ran `sidelit sync`.


State = Literal["current", "recheck", "stale", "missing"]
Memory = Mapping[str | tuple[str, str, str], Entry]
Find = Callable[[str | tuple[str, str, str]], Entry | None]


def state_of(entry: Entry | None, code_digest: str) -> State:
    """Judge an entry beside the code as it is now."""
    if entry is None or entry.obsolete or not entry.msgstr:
        return "missing"
    if entry.fuzzy:
        return "stale"
    if is_copy(entry):
        return "missing"
    return "current" if (code_digest or NO_CODE) in (entry.digests or (NO_CODE,)) else "recheck"


def is_copy(entry: Entry) -> bool:
    """Whether a translation only repeats the English, give or take its punctuation, without saying `same`."""
    if entry.same or (entry.msgid.isascii() and _IDEOGRAPH.search(entry.msgstr)):
        return False
    return _letters(entry.msgid) == _letters(entry.msgstr)


# No form of such a letter is ASCII, and there are many letters to compare otherwise.
_IDEOGRAPH = re.compile("[\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff]")


def _letters(text: str) -> str:
    return re.sub(r"\W", "", unicodedata.normalize("NFKC", text).casefold())


def is_translated(entry: Entry) -> bool:
    """Whether somebody translated this very English, be it in need of a recheck."""
    return bool(entry.msgstr) and not entry.fuzzy and not is_copy(entry)


def remember(entries: Iterable[Entry]) -> Memory:
    """The translations for sentences that turn up elsewhere; live ones win.

    They are filed under their English, and under their context, their English and the code beside it too.
    """
    memory: dict[str | tuple[str, str, str], Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.obsolete):
        if is_translated(entry):
            memory.setdefault(entry.msgid, entry)
            for code in entry.digests:
                memory.setdefault((entry.context, entry.msgid, code), entry)
    return memory


def merge(page: PageUnits, old: Sequence[Entry], memory: Memory) -> tuple[Entry, ...]:
    """Match a page with its catalogue: live entries in the page's order, then the obsolete ones.

    `memory` holds the translations of the other pages. It is not looked into where nothing is missing.
    """
    wanted = digests_of(page)
    known = {entry.key: entry for entry in old}
    gone = Late(lambda: remember(entry for entry in old if entry.key not in wanted))
    own = Late(lambda: remember(old))

    def known_elsewhere(key: str | tuple[str, str, str]) -> Entry | None:
        found: Entry | None = own.get(key) or memory.get(key)
        return found

    rewordings = cache(partial(Rewordings, wanted, old))
    live = []
    for (context, msgid), digests in wanted.items():
        entry = known.get((context, msgid))
        if entry is None or not entry.msgstr:
            moved = _moved(context, msgid, digests, known_elsewhere)
            entry = moved or _carried(context, msgid, entry, gone.get) or entry
        if entry is None or not entry.msgstr:
            entry = _carried(context, msgid, entry, known_elsewhere, short=False) or entry
        if entry is None:
            entry = rewordings().guess(context, msgid) or Entry(context, msgid)
        # A translator works beside the code of the day; only what is done remembers the code it was done for.
        entry = entry if is_translated(entry) else replace(entry, digests=digests)
        live.append(replace(entry, obsolete=False) if entry.obsolete else entry)
    return (*live, *_left_over(old, wanted, live))


def digests_of(page: PageUnits) -> dict[Key, tuple[str, ...]]:
    """The page's units in order, each with the code digests of the sections of its context that hold it."""
    wanted: dict[Key, list[str]] = {}
    for section in page.sections:
        for msgid in section.msgids:
            beside = wanted.setdefault((section.context, msgid), [])
            if (section.code_digest or NO_CODE) not in beside:
                beside.append(section.code_digest or NO_CODE)
    return {key: () if beside == [NO_CODE] else tuple(beside) for key, beside in wanted.items()}


def _moved(context: str, msgid: str, digests: tuple[str, ...], find: Find) -> Entry | None:
    """A translation that went to another page together with the code it was judged beside."""
    judged = [find((context, msgid, code)) for code in digests]
    if judged and judged[0] and all(judged):
        return replace(judged[0], digests=digests, previous="", obsolete=False)
    return None


def _carried(context: str, msgid: str, empty: Entry | None, find: Find, short: bool = True) -> Entry | None:
    """A translation from elsewhere, to be rechecked; `short` ones are those of one word or two."""
    found = find(msgid)
    if found is None or not (short or found.same or not is_short(msgid)):
        return None
    # A remark may be about the place it stood in. What is allowed is allowed for the words.
    allowed = tuple(note for note in found.notes if note.startswith("allow: "))
    notes = (*(empty.notes if empty else ()), *allowed)
    return replace(found, context=context, digests=(MOVED,), notes=notes, previous="", obsolete=False)


# Where words are not set apart by spaces, two characters are about one of them.
_WORD = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]{1,2}|[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]+"
)
_NO_WORDS = re.compile(r"`[^`]*`|\$[^$]*\$")


def is_short(msgid: str) -> bool:
    """Whether a text has two words at most, apart from code and formulas."""
    return len(_WORD.findall(_NO_WORDS.sub(" ", msgid))) <= 2


def _left_over(old: Sequence[Entry], wanted: Mapping[Key, object], live: Sequence[Entry]) -> list[Entry]:
    """What the page no longer says; empty entries and guesses kept elsewhere are dropped."""
    gone = [replace(entry, obsolete=True) for entry in old if entry.key not in wanted and entry.msgstr]
    kept = {entry.msgstr for entry in (*live, *gone) if not entry.obsolete or not entry.fuzzy}
    gone = [entry for entry in gone if not entry.fuzzy or entry.msgstr not in kept]
    before = {entry.key for entry in old if entry.obsolete}
    return sorted(gone, key=lambda entry: entry.key not in before)
