"""# A page in one language

> The same sections in the same order under the same ids; only the words are exchanged.

A section whose words could not all be exchanged keeps the original for those and says so. The title and the
lede are cut off here, because they are wanted in many places: at the top, in the navigation, in the list of
a search engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from markdown_it.token import Token

from sidelit.cache import store
from sidelit.cache.graph import LazySequence, Noted, Task, as_one, note
from sidelit.catalog import catalog
from sidelit.config.config import SITE, Config
from sidelit.site.content import PageSection, SourcePage
from sidelit.site.model import NavGroup
from sidelit.text import markup

SUMMARY = 200
# What a task notes that reads a page or its label, by the language and the place of the page.
READ = "page:{}/{}"
# What a page notes that shows a section of another one.
SAID = "said:{}/{}\t{}"
LABEL = "label:{}/{}"
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class SectionText:
    """A section's tokens in one language; `state` is None where there is nothing to say about them.

    `fold` is the line above the depth that the section is part of, with its own state.
    """

    title: tuple[Token, ...]
    tokens: tuple[Token, ...]
    state: str | None
    fold: tuple[Token, ...] = ()
    fold_state: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A source page in one language: its title, its lede, and the words of each of its sections."""

    source: SourcePage
    lang: str
    title: tuple[Token, ...]
    title_state: str | None
    lede: tuple[Token, ...]
    lede_state: str | None
    words: Sequence[SectionText]
    source_lang: str = "en"
    """The tag of the language that the page was written in."""
    label: str = ""
    """The title in plain words."""
    summary: str = ""
    """What the page is about, in plain words: its lede, or its first paragraph."""
    digest: str = ""
    """Stands for everything that the words were made from; empty if nobody knows."""

    def once(self, kind: str, make: Callable[[], Value], *others: str) -> Value:
        """What `make` finds in this page; it may look at what the digests of `others` stand for, too."""
        note(_name(self.source, self.lang))
        return self.source.graph.of(kind, self.key(*others), make)

    def once_alone(self, kind: str, make: Callable[[], Value], *others: str) -> Value:
        """The same for what is large."""
        note(_name(self.source, self.lang))
        return self.source.graph.alone(kind, self.key(*others), make)

    def key(self, *others: str) -> tuple[str, ...]:
        """Stands for all that the page was made from, and for what `others` do; empty if nobody knows."""
        return (self.digest, self.lang, *others) if self.digest else ()

    def section_digest(self, anchor: str) -> str:
        """Stands for the words of one section."""

        def made() -> dict[str, str]:
            places = zip(self.source.sections, self.words, strict=True)
            return {each.id: store.digest(words) for each, words in places}

        return self.once_alone("digests of words", made)[anchor]

    @property
    def label_lang(self) -> str | None:
        """The language of the title where it is not the page's."""
        return None if self.title_state in (None, "recheck") else self.source_lang

    @property
    def original(self) -> bool:
        """Whether it does not stand in its language, and so shows what was written."""
        return self.title_state == catalog.ORIGINAL


@dataclass(frozen=True, slots=True)
class Edition:
    """The whole site in one language."""

    lang: str
    pages: Mapping[str, Page]
    """By their place in the site; who looks one up reads all of it."""
    parts: tuple[tuple[str, str | None], ...]
    """The label of each part, and its language where that is not the edition's."""
    tagline: str
    licence_note: str
    courses: tuple[tuple[str, str | None], ...] = ()
    """The same of the course, and of the labs."""
    questions: tuple[tuple[str, str | None], ...] = ()
    """The same of the question of each part."""
    groups: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    """The same of the groups of lessons and chapters, by their labels as they were written."""
    back: tuple[str, str | None] = ("", None)
    """The same of the pages behind the chapters."""
    contents: dict[str, tuple[NavGroup, ...]] = field(default_factory=dict, repr=False, compare=False)
    """What all pages of one folder have in common: links to every page, made when the first asks for them."""

    def section(self, output: str, anchor: str) -> tuple[Page, SectionText]:
        """A page, and the words of one of its sections, for another page that shows that section alone."""
        with as_one(SAID.format(self.lang, output, anchor)):
            page = self.pages[output]
            places = zip(page.source.sections, page.words, strict=True)
            (words,) = (words for each, words in places if each.id == anchor)
        return page, words

    def label(self, output: str) -> tuple[str, str | None]:
        """What a page is called, and in which language where that is not the edition's."""
        with as_one(LABEL.format(self.lang, output)):
            page = self.pages[output]
        return page.label, page.label_lang


def edition(
    config: Config, source_pages: Sequence[SourcePage], catalogs: catalog.Catalogs, lang: str
) -> Edition:
    """Put every page of the site into one language."""
    book = catalogs.translation(SITE, lang)
    parts = tuple(_label(part.label, book, "nav") for part in config.parts)
    questions = tuple(_label(part.question, book, "nav") for part in config.parts)
    tagline, _ = _label(config.tagline, book, "site")
    licence_note, _ = _label(config.licence_note, book, "site")
    pages = {
        source_page.item.output: page(source_page, catalogs.translation(source_page.item.name, lang), lang)
        for source_page in source_pages
    }
    courses = tuple(_label(course.label, book, "nav") for course in config.courses)
    groups = {group: _label(group, book, "nav") for group in config.groups}
    back = _label(config.back_label, book, "nav")
    noted = Noted(pages, READ.format(lang, "{}"))
    return Edition(lang, noted, parts, tagline, licence_note, courses, questions, groups, back)


def ahead(
    config: Config, source_pages: Sequence[SourcePage], catalogs: catalog.Catalogs
) -> Iterator[Task[None]]:
    """What `edition` does for each page, in all languages."""
    for source_page in source_pages:
        books = {lang: catalogs.translation(source_page.item.name, lang) for lang in config.languages}
        key = tuple(_digest(source_page, book) for book in books.values())
        yield Task("pages of a text", key if all(key) else "", partial(_pages, source_page, books))


def _pages(source_page: SourcePage, books: Mapping[str, catalog.Catalog | None]) -> None:
    for lang, book in books.items():
        page(source_page, book, lang)


def page(source_page: SourcePage, book: catalog.Catalog | None, lang: str) -> Page:
    """Put one page into one language; without a catalogue its words stay as they were written."""
    source = book.source if book else lang
    if not source_page.sections:
        return Page(source_page, lang, (), None, (), None, (), source, source_page.label)
    # Other pages ask for the title and the lede; the words are wanted when the page itself is made.
    words = LazySequence(
        partial(_words, source_page, book), len(source_page.sections), _name(source_page, lang)
    )
    shown = Page(source_page, lang, (), None, (), None, words, source, digest=_digest(source_page, book))
    opening, title_state = shown.once("openings", lambda: _opening(source_page.sections[0], book))
    title = () if opening.title is None else (opening.title,)
    lede_state = next((_state(token) for token in opening.lede if _state(token)), None)
    if book and book.original:
        # Said once, at the top, and of a page without a title, too.
        title_state = lede_state = catalog.ORIGINAL
    return replace(
        shown,
        title=title,
        title_state=title_state,
        lede=opening.lede,
        lede_state=lede_state,
        label=markup.plain(title) or source_page.label,
        summary=_summary(opening),
    )


def _opening(section: PageSection, book: catalog.Catalog | None) -> tuple[markup.Opening, str | None]:
    """What a page opens with, without the rest of its first section; and the state of the title."""
    tokens = _translated(section, book).tokens
    opening = markup.opening(tokens)
    first = next((token for token in opening.rest if token.type == "inline"), None)
    state = _state(tokens[0]) if opening.title is not None else None
    return replace(opening, rest=() if first is None else (first,)), state


def _digest(source_page: SourcePage, book: catalog.Catalog | None) -> str:
    said = book and (book.digest, book.source, book.original)
    return store.digest(source_page.digest, said) if source_page.digest else ""


def _name(source_page: SourcePage, lang: str) -> str:
    return READ.format(lang, source_page.item.output)


def _words(source_page: SourcePage, book: catalog.Catalog | None) -> tuple[SectionText, ...]:
    first, *others = (_translated(section, book) for section in source_page.sections)
    first = replace(first, tokens=markup.opening(first.tokens).rest)
    return (first, *(_headed(source_page, words) for words in others))


def _summary(opening: markup.Opening) -> str:
    if opening.lede:
        return markup.plain(opening.lede)
    first = next((token for token in opening.rest if token.type == "inline"), None)
    return markup.plain(first) if first and len(first.content) <= SUMMARY else ""


def _translated(section: PageSection, book: catalog.Catalog | None) -> SectionText:
    tokens, state = _said(section.tokens, book, section.context, section.code_digest)
    fold = _said(section.fold.tokens, book, section.fold.context) if section.fold else ()
    return SectionText((), tokens, state, *fold)


def _said(
    tokens: tuple[Token, ...], book: catalog.Catalog | None, context: str, code_digest: str = ""
) -> tuple[tuple[Token, ...], str | None]:
    if book is None:
        return tokens, None
    done = catalog.translate(tokens, book, context, code_digest)
    return done.tokens, None if done.state == "current" else done.state


def _headed(source_page: SourcePage, words: SectionText) -> SectionText:
    """Split off the heading that a section's commentary starts with; in prose, headings stay in the text."""
    if source_page.prose or not words.tokens or words.tokens[0].type != "heading_open":
        return words
    return replace(words, title=(words.tokens[1],), tokens=words.tokens[3:])


def _state(token: Token) -> str | None:
    state = token.attrGet("data-state")
    return None if state is None else str(state)


def _label(label: str, book: catalog.Catalog | None, context: str) -> tuple[str, str | None]:
    if book is None or not label:
        return label, None
    done = catalog.text(label, book, context)
    return done.text, None if done.state in ("current", "recheck") else book.source
