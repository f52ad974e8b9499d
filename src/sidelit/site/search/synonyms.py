"""# Synonyms and keywords

> People ask in other words than a page uses: a project lists which words mean one thing, and by which others
> a page is found.

The file `search.toml`, beside the configuration, is optional. A row has words of any language, and those of
the site's languages count:

    [[synonyms]]
    en = ["out of memory", "OOM", "CUDA out of memory"]
    ja = ["メモリ不足"]
    zh = ["显存不足", "爆显存"]
    also.en = ["OutOfMemoryError"]

Whoever asks for one of them finds the pages that say another. The terms of the glossary are such rows, too: a
page is found by what its terms are called in each language. A query is compared with all words of a row, and
it asks for those that pages of its language may have: its own ones and those of the sources. With the words
of `also` somebody may ask on pages of their language, and they are never asked for: a message of another
program, the name of its option, everyday words.

A page is also found by its keywords, which say in words of readers what it is about:

    [[keywords]]
    at = "offload.html"
    en = ["save GPU memory"]

They count as its title does. An address with `#` is that of a section.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sidelit.config.config import Config
from sidelit.config.glossary import Glossary
from sidelit.config.languages import CODE
from sidelit.config.toml import Table, read_table
from sidelit.errors import SidelitError

FILE = "search.toml"


@dataclass(frozen=True, slots=True)
class Row:
    """Words that mean one thing, by language."""

    words: Mapping[str, tuple[str, ...]]
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def shown(self, langs: Sequence[str], stands: Callable[[str], bool]) -> tuple[list[str], list[str]]:
        """What a query of a page asks for, words of these languages that stand somewhere, and what else
        calls for them.
        """
        asked = dict.fromkeys(word for lang in langs for word in self.words.get(lang, ()) if stands(word))
        known = itertools.chain(*self.words.values(), *(self.also.get(lang, ()) for lang in langs))
        others = dict.fromkeys(word for word in known if word not in asked)
        return [*asked], [*others]


@dataclass(frozen=True, slots=True)
class Keywords:
    """What else a place is found by, in each language, and where that is written."""

    at: str
    words: Mapping[str, tuple[str, ...]]
    table: Table

    def of(self, langs: Sequence[str]) -> str:
        """Those of some languages, as a text."""
        return ", ".join(word for lang in langs for word in self.words.get(lang, ()))

    def wrong(self) -> SidelitError:
        """That there is no such place."""
        return self.table.error(f"there is no place {self.at} to find by keywords", "at")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The words of a site's readers: its synonyms, and keywords by the page."""

    rows: tuple[Row, ...] = ()
    keywords: Mapping[str, tuple[Keywords, ...]] = field(default_factory=dict)


def of_site(config: Config) -> Vocabulary:
    """The words of a site's readers."""
    path = config.folder / FILE
    return read(path, config.shown(path), config.languages)


def read(path: Path, shown: str, languages: Sequence[str]) -> Vocabulary:
    """Read the words of readers in `languages`; no file means none.

    `shown` is the path that messages name. Raises `SidelitError` at the row that is wrong.
    """
    if not path.is_file():
        return Vocabulary()
    top = read_table(path, shown)
    rows = tuple(_row(table, languages) for table in top.tables("synonyms"))
    keywords: dict[str, tuple[Keywords, ...]] = {}
    for table in top.tables("keywords"):
        each = _keywords(table)
        page = each.at.partition("#")[0]
        keywords[page] = (*keywords.get(page, ()), each)
    top.finish()
    return Vocabulary(rows, keywords)


def _keywords(table: Table) -> Keywords:
    at = table.take("at", str)
    words = _words(table)
    table.finish()
    return Keywords(at, words, table)


def _words(table: Table) -> dict[str, tuple[str, ...]]:
    # Like a glossary, it may serve more languages than one site shows.
    words = {lang: table.strings(lang) for lang in [*table.data] if CODE.fullmatch(lang)}
    for lang, each in words.items():
        if not all(word.strip() for word in each):
            raise table.error("a word is empty", lang)
    return words


def _row(table: Table, languages: Sequence[str]) -> Row:
    inside = table.table("also")
    words, also = _words(table), _words(inside) if inside else {}
    for each in filter(None, (inside, table)):
        each.finish()
    if sum(len(each) for each in (*words.values(), *also.values())) < 2:
        raise table.error(
            "a row joins two words or more", hint='write them as in en = ["OOM", "out of memory"]'
        )
    return Row({lang: words.get(lang, ()) for lang in languages}, also)


def of_glossary(glossary: Glossary, source: str) -> Iterator[Row]:
    """The terms of a glossary, which name one thing in several languages."""
    for term in glossary.terms:
        said = {
            lang: tuple(dict.fromkeys((word, *term.accept.get(lang, ())))) for lang, word in term.text.items()
        }
        yield Row({source: (term.name, *(form for form in term.match if form != term.name)), **said})
