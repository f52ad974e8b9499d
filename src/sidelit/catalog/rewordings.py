"""# Sentences that were reworded

> The old sentence that a new one was made from, so that its translation is at hand.

One sentence out and one in at the same place is a rewording, however thorough; elsewhere the two must be
alike. What is found is never shown to a reader, it is help for a translator. So the search may overlook
something, but must not take time for each pair: a page may have lost thousands of sentences and got others.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from sidelit.catalog.po_file import Entry

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
