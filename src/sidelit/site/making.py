"""# Making the pages

> Each page is rendered in each language, unless an earlier build has made the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path

from sidelit import workers
from sidelit.cache import records, store
from sidelit.cache.store import Store
from sidelit.config.chapters import Chapter
from sidelit.errors import SidelitError
from sidelit.files import assets
from sidelit.site import assemble, context, identifiers, listing, static, usage
from sidelit.site.content import Text
from sidelit.site.context import BuildContext
from sidelit.site.edition import Edition, Page
from sidelit.site.pictures import Picture

# ## Pages that are finished already
#
# > A page is made again when anything differs that it could have shown; otherwise it is what it was.
#
# The name under which a page is kept stands for all that every page may look at: the press itself, the
# configuration, the templates, the data, the titles and ids of all pages, the version and the date of the
# project; and for the words of the page. The commit is no part of it: a page is kept with a blank for that.
# What a page has taken from other texts is known only once it is made. So it is kept beside the page, and
# compared with the texts of today.


# No page may look at these but by way of what is told of each text: `_told`, `_words`, `kept.asking`. The
# others are told of by the files that they are made from.
_APART = {
    "editions",
    "texts",
    "notations",
    "names",
    "backlinks",
    "uses",
    "math",
    "shelf",
    "figures",
    "report",
}
# However small a site is, this much may be kept, in bytes; of a larger one, as much as it has twice.
_LEAST = 64 << 20


# What `kept.asking` calls the uses of terms, which change with every other sentence.
USES = ":uses"


class FinishedPages:
    """The pages of earlier builds that this one may take."""

    def __init__(self, build: BuildContext, store: Store) -> None:
        self._store = store
        self._digests = dict(_words(build)) if store.keeps else {}
        self._common = _common(build) if store.keeps else ""

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
        return store.digest(self._common, place, shown.lang, shown.digest)

    def _taken(self, names: Collection[str]) -> dict[str, str]:
        return {name: self._digests.get(name, "") for name in sorted(names)}


def _words(build: BuildContext) -> Iterator[tuple[str, str]]:
    """What stands for the pieces of each text and for its words in each language, by their names."""
    yield USES, store.digest(build.uses)
    cited = [(source, listing.keys(text)) for source, text in build.texts.items()]
    yield listing.CITED, store.digest(cited)
    for source, text in build.texts.items():
        yield source, text.digest
        yield identifiers.NOTED.format(source), build.names.digest(source)
        yield usage.NOTED.format(source), build.backlinks.digest(source)
    for lang, edition in build.editions.items():
        for page in edition.pages.values():
            yield f"{lang}/{page.text.item.source}", page.digest


def _common(build: BuildContext) -> str:
    """Stands for all that every page may look at."""
    shared = [getattr(build, field.name) for field in fields(build) if field.name not in _APART]
    known = store.program(), store.environment(), store.of_folder(assets.templates_folder())
    return store.digest(known, shared, list(_told(build)), list(_labels(build)), _data(build))


def _told(build: BuildContext) -> Iterator[object]:
    """What others may know of each text and of each page, beside the pieces and the words."""
    for text in build.texts.values():
        apart = {"pieces", "digest", "surface", "memory"}
        yield text.once("told", partial(_digest, text, apart))
    for edition in build.editions.values():
        yield _fields(edition, {"pages", "contents"})
        for output, page in edition.pages.items():
            yield output, page.once("told of a page", partial(_digest, page, {"text", "words", "digest"}))


def _digest(record: Text | Page, apart: Collection[str]) -> str:
    return store.digest(_fields(record, apart))


def _fields(record: Text | Edition | Page, apart: Collection[str]) -> list[object]:
    return [getattr(record, each.name) for each in fields(record) if each.name not in apart]


def _labels(build: BuildContext) -> Iterator[object]:
    """The translations of what is on no page: figures, what a reader can move, the navigation."""
    pages = {text.item.name for text in build.texts.values()}
    for (page, lang), book in (build.shelf.catalogs if build.shelf else {}).items():
        if page not in pages:
            yield page, lang, book.entries


def _data(build: BuildContext) -> tuple[str, str]:
    """The files that a page may look at while it is made: data, drawings, templates, words, pictures."""
    config = build.config
    own = {(config.project / source).resolve() for source in build.texts}
    catalogs = {
        config.folder / "locale" / lang / f"{text.item.name}.po"
        for text in build.texts.values()
        for lang in build.editions
    }
    found = (path for path in sorted(config.folder.rglob("*")) if path.is_file())
    pictures = [each.path for each in build.pictures.known.values() if isinstance(each, Picture)]
    return store.of_files(
        path for path in found if path not in catalogs and path.resolve() not in own
    ), store.of_files(sorted({*pictures, *build.theme.assets.values()}))


# ## Making the pages
#
# > All that a page needs was read before: so pages are made side by side, each written as soon as it is done.
#
# No page is kept: a site may have any number of them. They are written into a folder that nobody reads yet,
# and whoever called decides, when all mistakes are known, whether it becomes the site.


@dataclass(frozen=True, slots=True)
class Order:
    """A page to make, and its place in the site."""

    name: str
    shown: Page

    @property
    def files(self) -> tuple[str, ...]:
        """What is written for it: the page, and the cards of its names beside it."""
        has_cards = isinstance(self.shown.text.item, Chapter)
        return (self.name, static.address(self.name)) if has_cards else (self.name,)


def clashes(orders: Iterable[Order]) -> Iterator[SidelitError]:
    """The pages of which a disk or an archive keeps one alone where capitals do not count."""
    taken: dict[str, str] = {}
    for order in orders:
        other = taken.setdefault(order.name.casefold(), order.name)
        if other != order.name:
            what = f"its page {order.name} and {other} are one file on a disk that tells no capitals apart"
            yield SidelitError(what, path=order.shown.text.item.source, hint="give one of them another name")


def write(
    build: BuildContext,
    orders: Sequence[Sequence[Order]],
    folder: Path,
    jobs: int | None = None,
    done: FinishedPages | None = None,
    filled: Callable[[bytes], bytes] = bytes,
) -> None:
    """Write pages into a folder; those of one text in all languages are made by one process.

    Those that are `done` are taken from there, and the others are put there, before they are `filled`.
    Mistakes go to `press.report`, language by language in the order of the texts.
    """
    nothing = FinishedPages(build, Store(None))

    def make(group: Sequence[Order]) -> list[list[SidelitError]]:
        return [_written(build, order, folder, done or nothing, filled) for order in group]

    context.prepare(sorted({assemble.kind(order.shown) for group in orders for order in group}), build.theme)
    told = list(workers.shared(make, orders, jobs))
    for of_a_language in zip_longest(*told, fillvalue=()):
        for errors in of_a_language:
            for error in errors:
                build.report(error)
    if done is not None:
        names = (name for group in orders for order in group for name in order.files)
        done.trim(sum((folder / name).stat().st_size for name in names))


def _written(
    build: BuildContext, order: Order, folder: Path, done: FinishedPages, filled: Callable[[bytes], bytes]
) -> list[SidelitError]:
    """Write one page and what lies beside it; returns its mistakes."""
    errors: list[SidelitError] = []
    for name, make in zip(order.files, (_made, _cards), strict=False):
        content = done.get(name, order.shown)
        if content is None:
            with records.asking() as asked:
                content = make(replace(build, report=errors.append), order.shown)
            # A mistake is told by every build, so its page is made by every build.
            if not errors:
                done.put(name, order.shown, asked, content)
        put(folder, name, filled(content))
    return errors


def _made(build: BuildContext, shown: Page) -> bytes:
    return context.render(assemble.view(build, shown), build.theme).encode()


def _cards(build: BuildContext, shown: Page) -> bytes:
    return static.script(shown)


def put(folder: Path, name: str, content: bytes) -> None:
    """Write a file of the site; nothing outside its folder, whoever gave the name."""
    if not assets.stays_inside(name):
        raise SidelitError(f"{name!r} would be written outside the site", path=folder)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
