"""# Pages made from data

> The glossary and the bibliography are tables that somebody keeps; a page only shows them.

A work has a key, and every link `bib:KEY` of the site leads to its entry. An entry with a field that nobody
knows is refused, so that a slip of the pen cannot make a title vanish.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from sidelit import glossary as glossary_file
from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.glossary import Glossary
from sidelit.kept import as_one
from sidelit.languages import Language
from sidelit.site.content import Text
from sidelit.site.edition import Edition
from sidelit.site.link_views import Link
from sidelit.site.links import fragment
from sidelit.site.list_views import Term, Word, Work
from sidelit.site.uses import Use
from sidelit.tables import read_toml
from sidelit.text import markup
from sidelit.text.dialect import is_cjk

_TEXTS = ("title", "venue", "url", "arxiv", "note", "lang")
FIELDS = {"authors": list, "year": int, **dict.fromkeys(_TEXTS, str)}
# What `kept.asking` calls the works that pages refer to.
CITED = ":cited"
NEEDED = ("authors", "title", "year")


def works(path: Path, shown: str, lang: str) -> tuple[Work, ...]:
    """Read the bibliography: one table a work, its key as the table's name; no file means no works.

    A work is in the language of the tag `lang` unless its entry names another one.

    Raises `SidelitError` at the entry that is wrong.
    """
    if not path.is_file():
        return ()
    text = path.read_text(encoding="utf-8")
    entries = read_toml(path, shown)
    made = {key: _work(key, entry, lang, shown, text) for key, entry in entries.items()}
    return tuple(made[key] for key in sorted(made, key=lambda key: _order(entries[key])))


def terms(glossary: Glossary, config: Config, lang: str, to: Callable[[str, int], Link]) -> tuple[Term, ...]:
    """The rows of the glossary, with the remarks and meanings in one language.

    `to` makes a link of what a row says under `see`, and of the line where it says so.
    """
    spoken = [config.language(code) for code in config.languages]
    return tuple(_term(term, spoken, lang, to) for term in glossary.terms)


def used(uses: Sequence[Use], edition: Edition, to: Callable[[str], str]) -> tuple[Link, ...]:
    """Links to the sections that use a term; `to` gives the address of a page."""
    pages = ((use, edition.pages[use.output]) for use in uses)
    return tuple(
        Link(page.label, to(use.output) + (f"#{fragment(use.id)}" if use.id else ""), lang=page.label_lang)
        for use, page in pages
    )


def term_id(term: glossary_file.Term) -> str:
    """The id of a term's row, the same in every language."""
    return f"term-{markup.heading_slug(term.name, words=20)}"


def key_of(work: Work) -> str:
    """The key that links use."""
    return work.id.removeprefix("bib-")


def cited(works: Sequence[Work], edition: Edition, to: Callable[[str], str]) -> tuple[Work, ...]:
    """The works, each with the pages that refer to it; `to` gives the address of a page."""
    used: dict[str, list[Link]] = {}
    for output, page in edition.pages.items():
        for key in keys(page.text):
            used.setdefault(key, []).append(Link(page.label, to(output), lang=page.label_lang))
    return tuple(replace(work, used=tuple(used.get(key_of(work), ()))) for work in works)


def keys(text: Text) -> tuple[str, ...]:
    """The keys of the works a page refers to, each once."""
    with as_one(CITED):
        return text.once("cited", partial(_cited, text))


def _cited(text: Text) -> tuple[str, ...]:
    hrefs = (
        str(child.attrGet("href"))
        for token in text.tokens
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


def _term(
    term: glossary_file.Term, spoken: Sequence[Language], lang: str, to: Callable[[str, int], Link]
) -> Term:
    words = {spoken[0].code: term.name, **term.text}
    return Term(
        id=term_id(term),
        name=term.name,
        words=tuple(Word(words[each.code], each.tag, each.name) for each in spoken),
        never=tuple(Word(word, _tag_of(word, spoken)) for word in (*term.never, *term.wrong)),
        note=(term.note or {}).get(lang, ""),
        meaning=(term.meaning or {}).get(lang, ""),
        see=tuple(to(href, term.line) for href in term.see),
    )


def _tag_of(word: str, spoken: Sequence[Language]) -> str:
    """The tag of the language that a word is in, as far as its letters betray it.

    The list of wrong words is one for all languages. Ideographs beside kana are Japanese, and others most
    likely not; where one other language is left, it is that.
    """
    ideographs = any(map(is_cjk, word))
    left = [each for each in spoken[1:] if each.cjk == ideographs]
    if ideographs and len(left) > 1:
        kana = any("\u3041" <= char <= "\u30ff" and char != "・" for char in word)
        left = [each for each in left if (each.code.partition("-")[0] == "ja") == kana]
    return left[0].tag if len(left) == 1 else ""
