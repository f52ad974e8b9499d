"""# Matching old translations with a changed page

> No translation is thrown away with the sentence it was made for, and none is shown for another.

A page changes every day and its translations must not be thrown away with it, nor be shown where they
have become false. For each sentence of the page as it is now, the first of these that applies decides:

1. The catalogue has it: it stays, whatever its place on the page.
2. It was deleted once: its old translation comes back.
3. The same sentence is translated in another context or on another page: that text is carried over, to be
   rechecked, since a sentence may mean something else beside other code. A definition that went to another
   page with its code as it was takes its translations along as they were judged. One word or two, as in the
   cell of a table, may be a verb here and a noun there: they are carried over only from a context that the
   page has no more.
4. It resembles a sentence that has just gone: the old translation is kept at hand, fuzzy, and is never
   shown. Two widely used tools would have shown "do not free" for a sentence that had just lost its "not".
5. It is new, and waits for a translator.

Sentences that went leave their translation in the catalogue as obsolete, for rule 2. Doing all this a
second time changes nothing, and it happens in memory at every build, so that a build tells the truth
whether or not somebody ran `sidelit sync`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Literal

from sidelit.catalog.po_file import MOVED, NO_CODE, Entry
from sidelit.catalog.rewordings import Key, Rewordings
from sidelit.catalog.units import PageUnits
from sidelit.kept import Late

State = Literal["current", "recheck", "stale", "missing"]
Memory = Mapping[str | tuple[str, str, str], Entry]


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
    memory = Late(partial(_both, memory, old))
    rewordings = cache(partial(Rewordings, wanted, old))
    live = []
    for (context, msgid), digests in wanted.items():
        entry = known.get((context, msgid))
        if entry is None or not entry.msgstr:
            entry = _moved(context, msgid, digests, memory) or _carried(context, msgid, entry, gone) or entry
        if entry is None or not entry.msgstr:
            entry = _carried(context, msgid, entry, memory, short=False) or entry
        if entry is None:
            entry = rewordings().guess(context, msgid) or Entry(context, msgid)
        # A translator works beside the code of the day; only what is done remembers the code it was done for.
        entry = entry if is_translated(entry) else replace(entry, digests=digests)
        live.append(replace(entry, obsolete=False) if entry.obsolete else entry)
    return (*live, *_left_over(old, wanted, live))


def _both(memory: Memory, own: Sequence[Entry]) -> Memory:
    return {**memory, **remember(own)}


def digests_of(page: PageUnits) -> dict[Key, tuple[str, ...]]:
    """The page's units in order, each with the code digests of the sections of its context that hold it."""
    wanted: dict[Key, list[str]] = {}
    for section in page.sections:
        for msgid in section.msgids:
            beside = wanted.setdefault((section.context, msgid), [])
            if (section.code_digest or NO_CODE) not in beside:
                beside.append(section.code_digest or NO_CODE)
    return {key: () if beside == [NO_CODE] else tuple(beside) for key, beside in wanted.items()}


def _moved(context: str, msgid: str, digests: tuple[str, ...], memory: Memory) -> Entry | None:
    """A translation that went to another page together with the code it was judged beside."""
    judged = [memory.get((context, msgid, code)) for code in digests]
    if judged and judged[0] and all(judged):
        return replace(judged[0], digests=digests, previous="", obsolete=False)
    return None


def _carried(
    context: str, msgid: str, empty: Entry | None, memory: Memory, short: bool = True
) -> Entry | None:
    """A translation from elsewhere, to be rechecked; `short` ones are those of one word or two."""
    found = memory.get(msgid)
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
