"""# Pages that are finished already

> A page is made again when anything differs that it could have shown; otherwise it is what it was.

The name under which a page is kept stands for all that every page may look at: the press itself, the
configuration, the templates, the data, the titles and ids of all pages, the version and the date of the
project; and for the words of the page. The commit is no part of it: a page is kept with a blank for that.
What a page has taken from other texts is known only once it is made. So it is kept beside the page, and
compared with the texts of today.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import fields
from functools import partial

from sidelit import assets, digests, memory
from sidelit.site import employed, identifiers, listing
from sidelit.site.beside import Picture
from sidelit.site.content import Text
from sidelit.site.edition import Edition, Page
from sidelit.site.press import Press
from sidelit.store import Store

# No page may look at these but by way of what is told of each text: `_told`, `_words`, `kept.asking`. The
# others are told of by the files that they are made from.
_APART = {"editions", "texts", "notations", "names", "employed", "uses", "math", "shelf", "figures", "report"}
# However small a site is, this much may be kept, in bytes; of a larger one, as much as it has twice.
_LEAST = 64 << 20


# What `kept.asking` calls the uses of terms, which change with every other sentence.
USES = ":uses"


class Finished:
    """The pages of earlier builds that this one may take."""

    def __init__(self, press: Press, store: Store) -> None:
        self._store = store
        self._digests = dict(_words(press)) if store.keeps else {}
        self._common = _common(press) if store.keeps else ""

    def get(self, place: str, shown: Page) -> bytes | None:
        """A page as it is today, if it was made before; `place` is where the site has it."""
        if not shown.digest or (kept := self._store.get(self._name(place, shown))) is None:
            return None
        taken, _, html = kept.partition(b"\n")
        return html if json.loads(taken) == self._taken(json.loads(taken)) else None

    def put(self, place: str, shown: Page, asked: Collection[str], html: bytes) -> None:
        """Keep a page without mistakes; `asked` are the texts and words that it was made from."""
        # Something without a name has no digest, so nobody could tell whether it is what it was.
        if shown.digest and self._store.keeps and all(self._digests.get(name) for name in asked):
            taken = json.dumps(self._taken(asked)).encode()
            self._store.put(self._name(place, shown), taken + b"\n" + html)

    def trim(self, site: int) -> None:
        """Remove the oldest pages; `site` says how many bytes all pages of today have."""
        self._store.trim(max(_LEAST, 2 * site))

    def _name(self, place: str, shown: Page) -> str:
        return digests.digest(self._common, place, shown.lang, shown.digest)

    def _taken(self, names: Collection[str]) -> dict[str, str]:
        return {name: self._digests.get(name, "") for name in sorted(names)}


def _words(press: Press) -> Iterator[tuple[str, str]]:
    """What stands for the pieces of each text and for its words in each language, by their names."""
    yield USES, digests.digest(press.uses)
    cited = [(source, listing.keys(text)) for source, text in press.texts.items()]
    yield listing.CITED, digests.digest(cited)
    for source, text in press.texts.items():
        yield source, text.digest
        yield identifiers.NOTED.format(source), press.names.digest(source)
        yield employed.NOTED.format(source), press.employed.digest(source)
    for lang, edition in press.editions.items():
        for page in edition.pages.values():
            yield f"{lang}/{page.text.item.source}", page.digest


def _common(press: Press) -> str:
    """Stands for all that every page may look at."""
    shared = [getattr(press, field.name) for field in fields(press) if field.name not in _APART]
    known = memory.program(), memory.environment(), digests.of_folder(assets.templates_folder())
    return digests.digest(known, shared, list(_told(press)), list(_labels(press)), _data(press))


def _told(press: Press) -> Iterator[object]:
    """What others may know of each text and of each page, beside the pieces and the words."""
    for text in press.texts.values():
        apart = {"pieces", "digest", "surface", "memory"}
        yield text.once("told", partial(_digest, text, apart))
    for edition in press.editions.values():
        yield _fields(edition, {"pages", "contents"})
        for output, page in edition.pages.items():
            yield output, page.once("told of a page", partial(_digest, page, {"text", "words", "digest"}))


def _digest(record: Text | Page, apart: Collection[str]) -> str:
    return digests.digest(_fields(record, apart))


def _fields(record: Text | Edition | Page, apart: Collection[str]) -> list[object]:
    return [getattr(record, each.name) for each in fields(record) if each.name not in apart]


def _labels(press: Press) -> Iterator[object]:
    """The translations of what is on no page: figures, what a reader can move, the navigation."""
    pages = {text.item.name for text in press.texts.values()}
    for (page, lang), book in (press.shelf.catalogs if press.shelf else {}).items():
        if page not in pages:
            yield page, lang, book.entries


def _data(press: Press) -> tuple[str, str]:
    """The files that a page may look at while it is made: data, drawings, templates, words, pictures."""
    config = press.config
    own = {(config.project / source).resolve() for source in press.texts}
    catalogs = {
        config.folder / "locale" / lang / f"{text.item.name}.po"
        for text in press.texts.values()
        for lang in press.editions
    }
    found = (path for path in sorted(config.folder.rglob("*")) if path.is_file())
    pictures = [each.path for each in press.pictures.known.values() if isinstance(each, Picture)]
    return digests.of_files(
        path for path in found if path not in catalogs and path.resolve() not in own
    ), digests.of_files(sorted({*pictures, *press.look.assets.values()}))
