"""# A catalogue beside its page

> What was matched once, and hung on nothing else, is matched again only when somebody reads it.

Whether a sentence is translated elsewhere is asked only where its own catalogue lacks it. So a catalogue with
nothing missing follows from itself and from its page, and their digests stand for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial

from sidelit import digests
from sidelit.catalog.po_file import Entry, File
from sidelit.catalog.rewordings import Key
from sidelit.catalog.shelf import Catalog, unique
from sidelit.catalog.sync import digests_of, merge
from sidelit.catalog.units import PageUnits
from sidelit.kept import Kept, Late
from sidelit.memory import Memory

Others = Late[str | tuple[str, str, str], Entry]


def matched(
    page: PageUnits, lang: str, own: Sequence[File], others: Others, source: str, known: Memory
) -> Catalog:
    """The catalogue of a page; `own` are the files of its entries, `others` the translations of all pages."""
    looked = Late(lambda: others)
    merged = cache(partial(_merged, page, own, looked))
    key = digests.digest(page, lang, [file.digest for file in own])
    if known.knows("matched", key):
        digest, obsolete = key, known.of("matched", key, lambda: 0)
    else:
        digest, obsolete = _digest(merged()[0]), len(merged()[1])
        if not looked.made:
            digest, _ = key, known.of("matched", key, lambda: obsolete)
    return Catalog(
        page.name,
        lang,
        Late(lambda: merged()[0]),
        Kept(lambda: merged()[1], obsolete),
        Late(lambda: digests_of(page)),
        source,
        digest,
    )


def _merged(
    page: PageUnits, own: Sequence[File], others: Others
) -> tuple[Mapping[Key, Entry], tuple[Entry, ...]]:
    """The live entries and the obsolete ones."""
    merged = merge(page, unique(entry for file in own for entry in file.read()), others)
    live = {entry.key: entry for entry in merged if not entry.obsolete}
    return live, tuple(entry for entry in merged if entry.obsolete)


def _digest(live: Mapping[Key, Entry]) -> str:
    return digests.digest(
        [
            (*entry.key, entry.msgstr, entry.digests, entry.fuzzy, entry.same, entry.path, entry.line)
            for entry in live.values()
        ]
    )
