"""# Pages made from data

> The glossary, the bibliography and their uses, and the index of all that a link may name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sidelit.cache import store
from sidelit.cache.graph import Task, as_one
from sidelit.cache.records import Ids
from sidelit.config import glossary
from sidelit.config.config import Config
from sidelit.config.glossary import Finder, Glossary
from sidelit.config.languages import Language
from sidelit.config.prose import Prose
from sidelit.config.toml import read_toml
from sidelit.errors import SidelitError
from sidelit.site import content, links
from sidelit.site.content import PageSection, SourcePage
from sidelit.site.edition import Edition, Page
from sidelit.site.links import fragment
from sidelit.site.model import Link, TocEntry
from sidelit.site.search.places import TERM, WORK, SearchPlace
from sidelit.text import markup
from sidelit.text.inline_syntax import CJK

# ## Where the terms of the glossary are used
#
# > A definition says little to a reader who cannot go and see the word at work.
#
# Each term has the pages that use it, those first that are about it: a term in a heading counts for more than
# one in a sentence. Of each page it has the section that uses it most. All of it is read from the original,
# once a build, so that every language lists the same sections.


# How many times a term in a heading or in the sentence below the title counts.
_HEADING = 8


@dataclass(frozen=True, slots=True)
class Use:
    """A page that uses a term: its place in the site, and its section that does so most."""

    output: str
    id: str


def uses(glossary: Glossary, pages: Collection[SourcePage]) -> Mapping[str, tuple[Use, ...]]:
    """The uses of each term, by its name; nothing is read where no page shows them."""
    weighed: dict[str, list[tuple[int, Use]]] = {}
    for page, found in ((page, page.graph.do(task)) for page, task in _reading(glossary, pages)):
        for term, (weight, section) in found.items():
            weighed.setdefault(term, []).append((weight, Use(page.item.output, section)))
    # The sort keeps the order of the book among pages of one weight.
    return {
        term: tuple(use for _, use in sorted(found, key=lambda each: -each[0]))
        for term, found in weighed.items()
    }


def ahead(glossary: Glossary, pages: Collection[SourcePage]) -> Iterator[Task[Any]]:
    """What `uses` does for each page."""
    return (task for _, task in _reading(glossary, pages))


def _reading(
    glossary: Glossary, pages: Collection[SourcePage]
) -> Iterator[tuple[SourcePage, Task[dict[str, tuple[int, str]]]]]:
    finder, words = Finder(glossary), store.digest(glossary)
    for page in pages if any(_shows(page) for page in pages) else ():
        if not (isinstance(page.item, Prose) and page.item.append):
            yield page, page.task("uses", partial(_in_page, finder, page), words)


def _shows(page: SourcePage) -> bool:
    return page.item.kind == "glossary"


def _in_page(finder: Finder, page: SourcePage) -> dict[str, tuple[int, str]]:
    """Each term of a page, with its weight there and the section in which it weighs most."""
    total: Counter[str] = Counter()
    best: dict[str, tuple[int, str]] = {}
    for section in page.sections:
        here: Counter[str] = Counter()
        for words, weight in _words(section):
            for _, term in finder.find(words):
                here[term.name] += weight
        total.update(here)
        for name, weight in here.items():
            if weight > best.get(name, (0, ""))[0]:
                best[name] = (weight, _place(section))
    return {term: (weight, best[term][1]) for term, weight in total.items()}


def _place(section: PageSection) -> str:
    """Where a section of a source begins, or a stretch of prose under its heading; the title is no place."""
    headings = (token for token in section.tokens if token.type == "heading_open" and token.tag != "h1")
    return section.id or next((str(token.meta.get("slug", "")) for token in headings), "")


def _words(section: PageSection) -> Iterator[tuple[str, int]]:
    """The sentences of a section, each with what a term in it counts."""
    headed = False
    for token in section.tokens:
        if token.type == "inline":
            yield markup.plain(token.children or ()), _HEADING if headed else 1
            headed = False
        headed = headed or token.type in ("heading_open", "blockquote_open")


# ## Tables that a page shows
#
# > What is made from data has rows for the template of its page, ids for links, and places for the search.


# What tasks note that read which terms pages use, and which works they refer to.
USES = "uses:{}"
CITED = "cited:{}"


@dataclass(frozen=True, slots=True)
class Around:
    """The page that shows a table.

    :param to: the address of another page.
    :param see: makes a link of what a row refers to; it is told which file says so, and in which line.
    :param uses: the uses of each term, by its name.
    """

    edition: Edition
    to: Callable[[str], str]
    see: Callable[[str, str, int], Link]
    uses: Mapping[str, tuple[Use, ...]]


@dataclass(frozen=True)
class DataTable:
    """What a page shows that is made from data: a record of it, whose digest stands for it in the cache.

    This one is empty, for a kind of page that has nothing but a template of its own.
    """

    def ids(self) -> Iterable[str]:
        """What a link to the page may end in, beside the ids of its headings."""
        return ()

    def entries(self, around: Around) -> Iterable[object]:
        """What the template prints, a record a row."""
        return ()

    def places(self, shown: Page) -> Iterable[SearchPlace]:
        """What a search can find in it."""
        return ()

    def toc(self) -> Iterable[TocEntry]:
        """What it adds to the contents of the page."""
        return ()


# ## The glossary
#
# > The words of all languages side by side, what they mean, and where they are explained and used.


@dataclass(frozen=True, slots=True)
class Word:
    """A word in the language of a tag, which is empty where nobody can tell; `language` is its name."""

    text: str
    lang: str = ""
    language: str = ""


@dataclass(frozen=True, slots=True)
class Term:
    """One row of the glossary."""

    id: str
    name: str
    words: tuple[Word, ...]
    """What it is called in each language of the site; the table is the same in all of them."""
    never: tuple[Word, ...]
    note: str
    meaning: str = ""
    """What the term means, in the language of the page."""
    see: tuple[Link, ...] = ()
    """The pages that explain it."""
    uses: tuple[Link, ...] = ()
    """To the sections that use it, those first that are about it."""


@dataclass(frozen=True, slots=True)
class Terms(DataTable):
    """The glossary in the languages of a site; `shown` is what messages call its file."""

    glossary: Glossary
    spoken: tuple[Language, ...]
    shown: str

    def ids(self) -> Iterator[str]:
        """One for each term, the same in every language."""
        return map(term_id, self.glossary.terms)

    def entries(self, around: Around) -> Iterator[Term]:
        """The terms, with the remarks and meanings in the language of the page."""
        for term in self.glossary.terms:
            words = {self.spoken[0].code: term.name, **term.text}
            lang = around.edition.lang
            yield Term(
                id=term_id(term),
                name=term.name,
                words=tuple(Word(words[each.code], each.tag, each.name) for each in self.spoken),
                never=tuple(Word(word, _tag_of(word, self.spoken)) for word in (*term.never, *term.wrong)),
                note=(term.note or {}).get(lang, ""),
                meaning=(term.meaning or {}).get(lang, ""),
                see=tuple(around.see(href, self.shown, term.line) for href in term.see),
                uses=tuple(_used(around.uses.get(term.name, ()), around)),
            )

    def places(self, shown: Page) -> Iterator[SearchPlace]:
        """The terms by their names in all languages."""
        for term in self.glossary.terms:
            names = dict.fromkeys((term.text.get(shown.lang, term.name), term.name, *term.text.values()))
            meaning = (term.meaning or {}).get(shown.lang, "") or (term.note or {}).get(shown.lang, "")
            yield SearchPlace(term_id(term), " · ".join(names), TERM, meaning.replace("`", ""))


def terms(config: Config, glossary: Glossary) -> Terms:
    """The glossary as a page shows it."""
    spoken = tuple(config.language(code) for code in config.languages)
    return Terms(glossary, spoken, config.shown(config.folder / "glossary.toml"))


def _used(uses: Sequence[Use], around: Around) -> Iterator[Link]:
    """Links to the sections that use a term."""
    for use in uses:
        label, lang = around.edition.label(use.output)
        yield Link(label, around.to(use.output) + (f"#{fragment(use.id)}" if use.id else ""), lang=lang)


def term_id(term: glossary.Term) -> str:
    """The id of a term's row, the same in every language."""
    slug = markup.ascii_slug(term.name, words=20) or markup.heading_slug(term.name, words=20)
    return f"term-{slug}"


# ## The bibliography
#
# > A work has a key, and every link `bib:KEY` of the site leads to its entry.
#
# An entry with a field that nobody knows is refused, so that a slip of the pen cannot make a title vanish.


_TEXTS = ("title", "venue", "url", "arxiv", "note", "lang")
FIELDS = {"authors": list, "year": int, **dict.fromkeys(_TEXTS, str)}
NEEDED = ("authors", "title", "year")


@dataclass(frozen=True, slots=True)
class Work:
    """One entry of the bibliography and the pages that refer to it."""

    id: str
    authors: str
    title: str
    year: str
    where: str
    url: str
    note: str
    lang: str
    """The tag of the language of its title."""
    used: tuple[Link, ...]


@dataclass(frozen=True, slots=True)
class Works(DataTable):
    """The works of the bibliography, in the order of the page."""

    works: tuple[Work, ...] = ()

    def ids(self) -> Iterator[str]:
        """One for each work."""
        return (work.id for work in self.works)

    def entries(self, around: Around) -> Iterator[Work]:
        """The works, each with the pages that refer to it."""
        used: dict[str, list[Link]] = {}
        with as_one(CITED.format(around.edition.lang)):
            for output, page in around.edition.pages.items():
                for key in keys(page.source):
                    used.setdefault(key, []).append(Link(page.label, around.to(output), lang=page.label_lang))
        return (replace(work, used=tuple(used.get(_key(work.id), ()))) for work in self.works)

    def places(self, shown: Page) -> Iterator[SearchPlace]:
        """The works by their titles."""
        for work in self.works:
            said = f"{work.authors} {work.year} {work.where} {work.note}"
            yield SearchPlace(work.id, work.title, WORK, " ".join(said.split()))


def works(config: Config) -> Works:
    """Read the bibliography: one table a work, its key as the table's name; no file means no works.

    A work is in the language of the sources unless its entry names another one.

    Raises `SidelitError` at the entry that is wrong.
    """
    path, lang = config.folder / "bibliography.toml", config.language(config.source_language).tag
    if not path.is_file():
        return Works()
    text, shown = path.read_text(encoding="utf-8"), config.shown(path)
    entries = read_toml(path, shown)
    made = {key: _work(key, entry, lang, shown, text) for key, entry in entries.items()}
    return Works(tuple(made[key] for key in sorted(made, key=lambda key: _order(entries[key]))))


def _key(id: str) -> str:
    """The key that links use."""
    return id.removeprefix("bib-")


def keys(page: SourcePage) -> tuple[str, ...]:
    """The keys of the works a page refers to, each once."""
    return page.once("cited", partial(_cited, page))


def _cited(page: SourcePage) -> tuple[str, ...]:
    hrefs = (
        str(child.attrGet("href"))
        for token in page.tokens
        for child in token.children or ()
        if child.attrGet("href")
    )
    return tuple(dict.fromkeys(href[4:] for href in hrefs if href.startswith("bib:")))


def _work(key: str, entry: Any, lang: str, shown: str, text: str) -> Work:
    if not isinstance(entry, dict):
        raise SidelitError(f"`{key}` must be a table", path=shown, line=_line(text, key))
    for name, value in entry.items():
        if name not in FIELDS or not isinstance(value, FIELDS[name]):
            what = f"the work {key!r} has an unknown or malformed field `{name}`"
            raise SidelitError(what, path=shown, line=_line(text, key), hint=f"there is {', '.join(FIELDS)}")
    if fault := _fault(entry):
        raise SidelitError(f"the work {key!r} {fault}", path=shown, line=_line(text, key))
    arxiv = entry.get("arxiv")
    return Work(
        id=f"bib-{key}",
        authors=_authors([str(author) for author in entry["authors"]]),
        title=entry["title"],
        year=str(entry["year"]),
        where=entry.get("venue", f"arXiv {arxiv}" if arxiv else ""),
        url=entry.get("url", f"https://arxiv.org/abs/{arxiv}" if arxiv else ""),
        note=entry.get("note", ""),
        lang=entry.get("lang", lang),
        used=(),
    )


def _fault(entry: dict[str, Any]) -> str:
    """What an entry of known fields lacks, or an empty string."""
    for name in NEEDED:
        if name not in entry:
            return f"has no `{name}`"
    names = entry["authors"]
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        return "needs names in `authors`"
    return "" if re.match(r"https?://|$", entry.get("url", "")) else "has a `url` that is no web address"


def _order(entry: dict[str, Any]) -> tuple[str, int]:
    """Works stand by the first author's family name, then by year."""
    return entry["authors"][0].split()[-1].casefold(), entry["year"]


def _authors(names: list[str]) -> str:
    # A list of eighteen names hides the title; the entry's address has them all.
    return ", ".join(names) if len(names) <= 6 else f"{', '.join(names[:3])} et al."


def _line(text: str, key: str) -> int:
    found = re.search(rf"(?m)^\[\"?{re.escape(key)}\"?\]", text)
    return text.count("\n", 0, found.start()) + 1 if found else 1


def _tag_of(word: str, spoken: Sequence[Language]) -> str:
    """The tag of the language that a word is in, as far as its letters betray it.

    The list of wrong words is one for all languages. Ideographs beside kana are Japanese, and others most
    likely not; where one other language is left, it is that.
    """
    ideographs = CJK.search(word) is not None
    left = [each for each in spoken[1:] if each.cjk == ideographs]
    if ideographs and len(left) > 1:
        kana = any("\u3041" <= char <= "\u30ff" and char != "・" for char in word)
        left = [each for each in left if (each.code.partition("-")[0] == "ja") == kana]
    return left[0].tag if len(left) == 1 else ""


# ## What can be linked to
#
# > Pages by their files, their names and the names they had, each with its ids; works by their keys; files.


def index(
    config: Config,
    written: Sequence[content.SourcePage],
    leads: links.Leads,
    tables: Mapping[str, DataTable],
) -> links.Index:
    """Collect every page with its ids, every work and every file beside the pages."""
    made = {name: tuple(table.ids()) for name, table in tables.items()}
    targets = {}
    works: dict[str, str] = {}
    for page in written:
        if page.item.kind == "bibliography":
            works = {_key(id): page.item.output for id in made["bibliography"]}
        ids = Ids((*page.ids, *made[page.item.kind])) if page.item.kind in made else page.ids
        gone = links.departed(leads, page)
        target = links.Target(page.item.source, page.item.name, page.item.output, ids, gone)
        targets[page.item.source] = target
    return links.Index(
        targets=targets,
        works=works,
        files=frozenset(pictures(config)),
        source_root=config.source_root,
        pages=links.pages_folder(config),
        names=tuple(_by_end(named) for named in _names(targets, leads)),
    )


def _names(
    targets: Mapping[str, links.Target], leads: links.Leads
) -> Iterator[list[tuple[str, links.Target]]]:
    """The paths by which authors may call each page: its file's, its name's, its old names'."""
    by_output = {target.output: target for target in targets.values()}
    yield list(targets.items())
    yield [
        (_called(name, target), target)
        for target in targets.values()
        for name in (target.name, target.output)
    ]
    old = [(address, there, by_output[there[""].output]) for address, there in leads.items()]
    yield [
        (_called(address, target), replace(target, moved=there, address=address))
        for address, there, target in old
        if address not in by_output
    ]


def _called(name: str, target: links.Target) -> str:
    """What the file of a page would be called, if it were called as the page is."""
    return name.removesuffix(".html") + Path(target.source).suffix


def _by_end(named: Sequence[tuple[str, links.Target]]) -> dict[str, tuple[links.Target, ...]]:
    found: dict[str, tuple[links.Target, ...]] = {}
    for path, target in named:
        for end in links.ends(path):
            found[end] = (*found.get(end, ()), target)
    return found


def pictures(config: Config) -> tuple[str, ...]:
    """What lies beside the prose and is not prose: pictures and other files that pages refer to."""
    folder = config.folder / "pages"
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return tuple(sorted(name for name in names if not name.endswith(".md") and "/." not in f"/{name}"))
