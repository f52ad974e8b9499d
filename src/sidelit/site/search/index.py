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
import os
import pickle
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO

from sidelit.cache import store
from sidelit.config.chapters import Chapter
from sidelit.config.config import Config
from sidelit.config.glossary import Glossary
from sidelit.site.edition import Edition, Page
from sidelit.site.model import Program, Work
from sidelit.site.search import places, postings, synonyms
from sidelit.site.search.places import Place
from sidelit.site.search.tokenizer import UNSPACED, Tokenizer

# How much of the index one file of words holds, in characters.
_SHARD = 12_000
# What a reader looks for first: pages of use and lessons, then chapters, then the workshop, and last what is
# in another language.
_GUIDE, _CHAPTER, _FOREIGN, _WORKSHOP = 0, 1, 2, 3
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
    works: tuple[Work, ...] = ()
    programs: tuple[Program, ...] = ()
    synonyms: tuple[synonyms.Row, ...] = ()


def write(made_of: Material, put: Callable[[str, bytes], None]) -> tuple[str, ...]:
    """Hand out the files of the index of every language, each as soon as it is made; returns their paths.

    A single page has no index, since the browser searches it.
    """
    names: list[str] = []

    def kept(place: str, name: str, text: bytes) -> None:
        names.append(place + name)
        put(place + name, text)

    for lang, edition in made_of.editions.items():
        if len(edition.pages) > 1:
            # Such a file has no name, so nothing is left of it wherever the build is stopped.
            with tempfile.TemporaryFile() as aside:
                _Writing(made_of, edition, partial(kept, folder(lang)), aside).write()
    return tuple(names)


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the index says about a page, as it is written: its places, their text, how long that is."""

    places: str
    text: str
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    """A page and the number of its places; its postings are made from it and from what `others` stand for."""

    page: Page
    make: Callable[[], postings.Postings]
    others: tuple[str, ...]
    places: int


class _Writing:
    """The making of the index of one language; the words of a page are forgotten when they are written."""

    def __init__(
        self, made_of: Material, edition: Edition, put: Callable[[str, bytes], None], aside: IO[bytes]
    ) -> None:
        self._made_of = made_of
        self._edition = edition
        self._put = put
        # The places of a page are needed once more when the lengths of all are known.
        self._aside = aside
        self._found: dict[str, int] = {}
        # The language of the pages and that of the sources, which stands where a translation lacks.
        self._langs = tuple(dict.fromkeys((edition.lang, made_of.config.source_language)))
        self._spoken = [made_of.config.language(lang).search for lang in self._langs]
        self._tokenizer = Tokenizer(self._spoken)
        self._tables = store.digest(made_of.glossary, made_of.works, made_of.programs, self._spoken)
        # Parts of an older index, which a browser may still keep, must not be mixed with these.
        self._version = hashlib.sha256()

    def write(self) -> None:
        rows, lengths = [], []
        for at, (output, page) in enumerate(self._edition.pages.items()):
            entry = page.once_alone("entries", partial(self._entry, page), self._tables)
            self._part(f"text-{at}.js", f"searching.texts[{at}]={entry.text};\n")
            rows.append(f"{_json([output, *_named(page), _rank(page)])[:-1]},{entry.places}]")
            lengths.append(entry.lengths)
        starts = []
        lists = self._lists(lengths)
        for at, (start, shard) in enumerate(_shards(lists)):
            self._part(f"words-{at}.js", f"searching.words[{at}]={_json(shard)};\n")
            starts.append(start)
        words = self._made_of.config.language(self._edition.lang).words
        core = {
            "starts": starts,
            "unspaced": UNSPACED,
            "stops": self._tokenizer.stops,
            "folds": [[*each] for each in self._tokenizer.folds.items()],
            "endings": [[*each] for spoken in self._spoken for each in spoken.endings],
            "synonyms": self._synonyms(lists),
            "ui": {key[7:]: word for key, word in words.items() if key.startswith("search_")},
            "version": self._version.hexdigest()[:8],
        }
        text = f'searching.core({_json(core)[:-1]},"pages":[{",".join(rows)}]}});\n'
        self._put("core.js", text.encode())

    def _synonyms(self, lists: postings.Lists) -> list[list[list[str]]]:
        """The rows that may find what a query does not say; words that stand on no page are not asked for."""
        terms = synonyms.of_glossary(self._made_of.glossary, self._made_of.config.source_language)
        rows = (*self._made_of.synonyms, *terms)
        shown = [row.shown(self._langs, partial(self._stands, lists)) for row in rows]
        return [[asked, others] for asked, others in shown if asked and len(asked) + len(others) > 1]

    def _stands(self, lists: postings.Lists, word: str) -> bool:
        terms = self._tokenizer.terms(word)
        return bool(terms) and all(term in lists for term in terms)

    def _part(self, name: str, text: str) -> None:
        content = text.encode()
        self._version.update(content)
        self._put(name, content)

    def _places(self, page: Page) -> Sequence[Place]:
        made_of = self._made_of
        return places.places(page, made_of.glossary, made_of.works, made_of.programs)

    def _entry(self, page: Page) -> _Entry:
        inside = self._places(page)
        self._found[page.text.item.output] = self._aside.seek(0, os.SEEK_END)
        pickle.dump(inside, self._aside, protocol=pickle.HIGHEST_PROTOCOL)
        return _Entry(
            _json([[place.id, place.title, place.kind + 4 * place.depth] for place in inside]),
            _json([[place.words, place.code, *[page.source_lang] * place.foreign] for place in inside]),
            postings.lengths(inside, self._tokenizer),
        )

    def _postings(self, page: Page, usual: int) -> postings.Postings:
        if (place := self._found.get(page.text.item.output)) is None:
            return postings.postings(self._places(page), self._tokenizer, usual)
        self._aside.seek(place)
        return postings.postings(pickle.load(self._aside), self._tokenizer, usual)

    def _lists(self, lengths: Sequence[tuple[int, ...]]) -> postings.Lists:
        """Each term of the index with its places."""
        usual = postings.usual(length for inside in lengths for length in inside)
        lists = postings.Lists()
        rows = []
        for page, inside in zip(self._edition.pages.values(), lengths, strict=True):
            others = self._tables, store.digest(usual)
            rows.append(_Row(page, partial(self._postings, page, usual), others, len(inside)))
        for start in range(0, len(rows), _STRETCH):
            stretch = rows[start : start + _STRETCH]
            keys = [row.page.key(*row.others) for row in stretch]
            key = tuple(itertools.chain(*keys)) if all(keys) else ()
            graph = stretch[0].page.text.graph
            if key and graph.keeps:
                made = graph.alone("postings", key, partial(_together, stretch))
                lists.add(made, sum(row.places for row in stretch))
            else:
                _add(lists, stretch)
        return lists


def _together(stretch: Sequence[_Row]) -> postings.Postings:
    lists = postings.Lists()
    _add(lists, stretch)
    return lists.postings()


def _add(lists: postings.Lists, rows: Sequence[_Row]) -> None:
    for row in rows:
        lists.add(row.page.once_alone("postings of a page", row.make, *row.others), row.places)


def _named(shown: Page) -> tuple[str, str, str]:
    """A page's label, the name that a program imports it by, the language of the label if it is another."""
    return shown.label, getattr(shown.text.item, "module", ""), shown.label_lang or ""


def _rank(shown: Page) -> int:
    item = shown.text.item
    if shown.original:
        return _FOREIGN
    if isinstance(item, Chapter):
        return _WORKSHOP if item.workshop else _CHAPTER
    return _GUIDE


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
