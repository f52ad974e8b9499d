"""# The index of a search

> Names and titles load with the first use; of the words, only those that a query asks for.

A site is often read from a static host or from a disk, where nothing answers questions and a page may not
read files. So the index is a set of scripts, each of which hands its part to the page. `core.js` has every
page, every place with its name, and the synonyms; `words-N.js` has one stretch of the alphabet, each term
with the places it stands in; `text-N.js` has the words of one page, for the excerpts of the results on show.

No library fits. Those for browsers load a whole index before the first answer, or read its parts with
`fetch`, which a page on a disk may not; those that cut their index into parts are programs beside Python;
and most do not cut Chinese and Japanese at all. What is needed here is a table of terms and numbers.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from sidelit.cache import store
from sidelit.cache.records import quick
from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.config.glossary import Glossary
from sidelit.errors import SidelitError
from sidelit.site.data_pages import DataTable
from sidelit.site.edition import Edition, Page
from sidelit.site.search import places, postings, synonyms
from sidelit.site.search.tokenizer import UNSPACED, Tokenizer

# How much of the index one file of words holds, in characters.
_SHARD = 12_000
# What a reader looks for first: pages of use and lessons, then chapters and labs, then the workshop, and last
# what is in another language.
_GUIDE, _CHAPTER, _FOREIGN, _WORKSHOP, _LAB = 0, 1, 2, 3, 4
# So many pages are put together and kept: after an edit, one such stretch is put together again.
_STRETCH = 16


FOLDER = "assets/search/"


def folder(lang: str) -> str:
    """Where the index of one language lies in the site."""
    return f"{FOLDER}{lang}/"


@dataclass(frozen=True, slots=True)
class Material:
    """What the index is made of: the pages, and the tables that some of them show."""

    config: Config
    editions: Mapping[str, Edition]
    glossary: Glossary = field(default_factory=Glossary)
    tables: Mapping[str, DataTable] = field(default_factory=dict)
    vocabulary: synonyms.Vocabulary = field(default_factory=synonyms.Vocabulary)


class Index:
    """The index of every language."""

    def __init__(self, made_of: Material) -> None:
        self._made_of = made_of
        tables = store.digest(made_of.tables)
        self._readings = {lang: Reading(made_of, lang, tables) for lang in made_of.editions}

    def ahead(self, page: Page) -> None:
        """Read a page while its words are at hand."""
        self._readings[page.lang].ahead(page)

    def write(self, put: Callable[[str, bytes], object]) -> tuple[str, ...]:
        """Hand out all files, each as soon as it is made; returns their paths.

        A single page has no index, since the browser searches it. Raises `SidelitError` at keywords of a page
        or section that is not there.
        """
        for output, (row, *_) in self._made_of.vocabulary.keywords.items():
            if not any(output in edition.pages for edition in self._made_of.editions.values()):
                raise row.wrong()
        names: list[str] = []

        def kept(place: str, name: str, text: bytes) -> None:
            names.append(place + name)
            put(place + name, text)

        for lang, reading in self._readings.items():
            if len(reading.edition.pages) > 1:
                _Writing(reading, partial(kept, folder(lang))).write()
        return tuple(names)


@quick
@dataclass(frozen=True, slots=True)
class _Entry:
    """What the index says about a page, as it is written: its places, their text, and how many they are."""

    places: str
    text: str
    count: int


@quick
@dataclass(frozen=True, slots=True)
class _Stretch:
    """What it says about some pages in a row, and the terms of all of them."""

    entries: tuple[_Entry, ...]
    terms: postings.Postings


class Reading:
    """What the index of one language takes from its pages; an earlier build may have taken it."""

    def __init__(self, made_of: Material, lang: str, tables: str) -> None:
        self.made_of, self.edition = made_of, made_of.editions[lang]
        config = made_of.config
        # The language of the pages and that of the sources, which stands where a translation lacks.
        self.langs = tuple(dict.fromkeys((lang, config.source_language)))
        self.spoken = [config.language(each).search for each in self.langs]
        self.tokenizer = Tokenizer(self.spoken)
        self.tables = store.digest(tables, self.spoken)

    def ahead(self, page: Page) -> None:
        """Read a page while its words are at hand, if it is one of the index.

        Keywords of no place are told when it is written: what is wrong on the pages comes first.
        """
        if page.source.item.output in self.edition.pages:
            with suppress(SidelitError):
                self._page(page)

    def stretch(self, pages: Sequence[Page]) -> _Stretch:
        """Read some pages in a row."""
        keys = [page.key(*self._others(page)) for page in pages]
        key = tuple(itertools.chain(*keys)) if all(keys) else ()
        return pages[0].source.graph.alone("stretches", key, partial(self._together, pages))

    def _together(self, pages: Sequence[Page]) -> _Stretch:
        entries: list[_Entry] = []
        lists = postings.Lists()
        for page in pages:
            alone = self._page(page)
            entries += alone.entries
            lists.add(alone.terms, alone.entries[0].count)
        return _Stretch(tuple(entries), lists.postings())

    def _page(self, page: Page) -> _Stretch:
        return page.once_alone("entries", partial(self._read, page), *self._others(page))

    def _keywords(self, page: Page) -> tuple[synonyms.Keywords, ...]:
        return self.made_of.vocabulary.keywords.get(page.source.item.output, ())

    def _others(self, page: Page) -> tuple[str, ...]:
        """Stands for what the index of a page is made of beside the page."""
        return self.tables, store.digest([(row.at, row.of(self.langs)) for row in self._keywords(page)])

    def _read(self, page: Page) -> _Stretch:
        table = self.made_of.tables.get(page.source.item.kind)
        inside = [*places.places(page), *(table.places(page) if table else ())]
        for row in self._keywords(page):
            place = row.at.partition("#")[2] or inside[0].id
            number = next((number for number, each in enumerate(inside) if each.id == place), None)
            if number is None:
                raise row.wrong()
            keywords = f"{inside[number].keywords} {row.of(self.langs)}"
            inside[number] = replace(inside[number], keywords=keywords)
        entry = _Entry(
            _json([[place.id, place.title, place.kind + 4 * place.depth] for place in inside]),
            _json([[place.words, place.code, *[page.source_lang] * place.foreign] for place in inside]),
            len(inside),
        )
        return _Stretch((entry,), postings.postings(inside, self.tokenizer))


class _Writing:
    """The making of the index of one language; the words of a page are forgotten when they are written."""

    def __init__(self, reading: Reading, put: Callable[[str, bytes], object]) -> None:
        self._reading, self._put = reading, put
        # Parts of an older index, which a browser may still keep, must not be mixed with these.
        self._version = hashlib.sha256()

    def write(self) -> None:
        reading, tokenizer = self._reading, self._reading.tokenizer
        rows, lists = [], postings.Lists()
        pages = list(reading.edition.pages.items())
        for first in range(0, len(pages), _STRETCH):
            stretch = pages[first : first + _STRETCH]
            made = reading.stretch([page for _, page in stretch])
            lists.add(made.terms, sum(entry.count for entry in made.entries))
            for at, ((output, page), entry) in enumerate(zip(stretch, made.entries, strict=True), first):
                self._part(f"text-{at}.js", f"searching.texts[{at}]={entry.text};\n")
                rows.append(f"{_json([output, *_named(page), _rank(page)])[:-1]},{entry.places}]")
        starts = []
        for at, (start, shard) in enumerate(_shards(lists)):
            self._part(f"words-{at}.js", f"searching.words[{at}]={_json(shard)};\n")
            starts.append(start)
        words = reading.made_of.config.language(reading.edition.lang).words
        core = {
            "starts": starts,
            "unspaced": UNSPACED,
            "stops": tokenizer.stops,
            "folds": [[*each] for each in tokenizer.folds.items()],
            "endings": [[*each] for spoken in reading.spoken for each in spoken.endings],
            "synonyms": self._synonyms(lists),
            "ui": {key[7:]: word for key, word in words.items() if key.startswith("search_")},
            "version": self._version.hexdigest()[:8],
        }
        text = f'searching.core({_json(core)[:-1]},"pages":[{",".join(rows)}]}});\n'
        self._put("core.js", text.encode())

    def _synonyms(self, lists: postings.Lists) -> list[list[list[str]]]:
        """The rows that may find what a query does not say; words that stand on no page are not asked for."""
        made_of = self._reading.made_of
        terms = synonyms.of_glossary(made_of.glossary, made_of.config.source_language)
        rows = (*made_of.vocabulary.rows, *terms)
        shown = [row.shown(self._reading.langs, partial(self._stands, lists)) for row in rows]
        return [[asked, others] for asked, others in shown if asked and len(asked) + len(others) > 1]

    def _stands(self, lists: postings.Lists, word: str) -> bool:
        terms = self._reading.tokenizer.terms(word)
        return bool(terms) and all(term in lists for term in terms)

    def _part(self, name: str, text: str) -> None:
        content = text.encode()
        self._version.update(content)
        self._put(name, content)


def _named(shown: Page) -> tuple[str, str, str]:
    """A page's label, the name that a program imports it by, the language of the label if it is another."""
    return shown.label, getattr(shown.source.item, "module", ""), shown.label_lang or ""


def _rank(shown: Page) -> int:
    item = shown.source.item
    if shown.original:
        return _FOREIGN
    if isinstance(item, Chapter):
        return _WORKSHOP if item.workshop else _CHAPTER
    return _LAB if item.kind == "lab" else _GUIDE


def _shards(lists: postings.Lists) -> Iterator[tuple[str, str]]:
    """The terms in the order in which a script compares them, in stretches of about one size, each with its
    first term.
    """
    start, shard, size = "", [], 0
    for term, numbers in lists.in_order():
        start = start or term
        shard.append(f"{term} {numbers}")
        size += len(shard[-1])
        if size > _SHARD:
            yield start, "\n".join(shard)
            start, shard, size = "", [], 0
    if shard:
        yield start, "\n".join(shard)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
