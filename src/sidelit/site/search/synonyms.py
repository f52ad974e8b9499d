"""# Synonyms

> People ask in other words than a page uses: a project lists which words mean one thing.

The file `search.toml`, beside the configuration, is optional. A row has words of any language, and those of
the site's languages count:

    [[synonyms]]
    en = ["out of memory", "OOM", "CUDA out of memory"]
    ja = ["メモリ不足"]
    zh = ["显存不足", "爆显存"]

Whoever asks for one of them finds the pages that say another. The terms of the glossary are such rows, too:
a page is found by what its terms are called in each language. A query is compared with all words of a row,
and it asks for those that pages of its language may have: its own ones and those of the sources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sidelit.config.config import Config
from sidelit.config.glossary import Glossary
from sidelit.config.languages import CODE
from sidelit.config.toml import Table, read_table

FILE = "search.toml"


@dataclass(frozen=True, slots=True)
class Row:
    """Words that mean one thing, by language."""

    words: Mapping[str, tuple[str, ...]]

    def shown(self, langs: Sequence[str], stands: Callable[[str], bool]) -> tuple[list[str], list[str]]:
        """What a query of a page asks for, words of these languages that stand somewhere, and what else
        calls for them.
        """
        asked = dict.fromkeys(word for lang in langs for word in self.words.get(lang, ()) if stands(word))
        others = dict.fromkeys(word for each in self.words.values() for word in each if word not in asked)
        return [*asked], [*others]


def of_site(config: Config) -> tuple[Row, ...]:
    """The synonyms of a site."""
    path = config.folder / FILE
    return read(path, config.shown(path), config.languages)


def read(path: Path, shown: str, languages: Sequence[str]) -> tuple[Row, ...]:
    """Read the synonyms of a site in `languages`; no file means none.

    `shown` is the path that messages name. Raises `SidelitError` at the row that is wrong.
    """
    if not path.is_file():
        return ()
    top = read_table(path, shown)
    rows = tuple(_row(table, languages) for table in top.tables("synonyms"))
    top.finish()
    return rows


def _row(table: Table, languages: Sequence[str]) -> Row:
    # Like a glossary, it may serve more languages than one site shows.
    words = {lang: table.strings(lang) for lang in [*table.data] if CODE.fullmatch(lang)}
    table.finish()
    for lang, each in words.items():
        if not all(word.strip() for word in each):
            raise table.error("a word is empty", lang)
    if sum(map(len, words.values())) < 2:
        raise table.error(
            "a row joins two words or more", hint='write them as in en = ["OOM", "out of memory"]'
        )
    return Row({lang: words.get(lang, ()) for lang in languages})


def of_glossary(glossary: Glossary, source: str) -> Iterator[Row]:
    """The terms of a glossary, which name one thing in several languages."""
    for term in glossary.terms:
        said = {
            lang: tuple(dict.fromkeys((word, *term.accept.get(lang, ())))) for lang, word in term.text.items()
        }
        yield Row({source: (term.name, *(form for form in term.match if form != term.name)), **said})
