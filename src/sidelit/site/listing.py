"""# Pages made from data

> The glossary, the bibliography and their uses, and the index of all that a link may name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from sidelit.cache import store
from sidelit.cache.graph import Graph, as_one
from sidelit.cache.records import Ids
from sidelit.config import glossary
from sidelit.config import glossary as glossary_file
from sidelit.config.config import Config
from sidelit.config.glossary import Finder, Glossary
from sidelit.config.languages import Language
from sidelit.config.prose import Prose
from sidelit.config.toml import read_toml
from sidelit.errors import SidelitError
from sidelit.site import commands, content, links
from sidelit.site.content import Piece, Text
from sidelit.site.edition import Edition
from sidelit.site.links import fragment
from sidelit.site.model import Link, Program, Term, Word, Work
from sidelit.text import markup
from sidelit.text.everyday import CJK

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


def uses(
    glossary: Glossary, texts: Collection[Text], graph: Graph | None = None, jobs: int | None = None
) -> Mapping[str, tuple[Use, ...]]:
    """The uses of each term, by its name, found by `jobs` processes; nothing is read where no page shows
    them.
    """
    if not any(_shows(text) for text in texts):
        return {}
    finder, words = Finder(glossary), store.digest(glossary)
    graph = graph or Graph()
    weighed: dict[str, list[tuple[int, Use]]] = {}
    said = [text for text in texts if not (isinstance(text.item, Prose) and text.item.append)]
    tasks = [text.task("uses", partial(_in_page, finder, text), words) for text in said]
    graph.ahead(tasks, jobs)
    for text, task in zip(said, tasks, strict=True):
        for term, (weight, section) in graph.do(task).items():
            weighed.setdefault(term, []).append((weight, Use(text.item.output, section)))
    # The sort keeps the order of the book among pages of one weight.
    return {
        term: tuple(use for _, use in sorted(found, key=lambda each: -each[0]))
        for term, found in weighed.items()
    }


def _shows(text: Text) -> bool:
    return isinstance(text.item, Prose) and text.item.append == "glossary"


def _in_page(finder: Finder, text: Text) -> dict[str, tuple[int, str]]:
    """Each term of a page, with its weight there and the section in which it weighs most."""
    total: Counter[str] = Counter()
    best: dict[str, tuple[int, str]] = {}
    for piece in text.pieces:
        here: Counter[str] = Counter()
        for words, weight in _words(piece):
            for _, term in finder.find(words):
                here[term.name] += weight
        total.update(here)
        for name, weight in here.items():
            if weight > best.get(name, (0, ""))[0]:
                best[name] = (weight, _place(piece))
    return {term: (weight, best[term][1]) for term, weight in total.items()}


def _place(piece: Piece) -> str:
    """Where a section of a source begins, or a stretch of prose under its heading; the title is no place."""
    headings = (token for token in piece.tokens if token.type == "heading_open" and token.tag != "h1")
    return piece.id or next((str(token.meta.get("slug", "")) for token in headings), "")


def _words(piece: Piece) -> Iterator[tuple[str, int]]:
    """The sentences of a section, each with what a term in it counts."""
    headed = False
    for token in piece.tokens:
        if token.type == "inline":
            yield markup.plain(token.children or ()), _HEADING if headed else 1
            headed = False
        headed = headed or token.type in ("heading_open", "blockquote_open")


# ## Pages made from data
#
# > The glossary and the bibliography are tables that somebody keeps; a page only shows them.
#
# A work has a key, and every link `bib:KEY` of the site leads to its entry. An entry with a field that nobody
# knows is refused, so that a slip of the pen cannot make a title vanish.


_TEXTS = ("title", "venue", "url", "arxiv", "note", "lang")
FIELDS = {"authors": list, "year": int, **dict.fromkeys(_TEXTS, str)}
# What tasks note that read which terms pages use, and which works they refer to.
USES = "uses:{}"
CITED = "cited:{}"
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
    labels = ((use, *edition.label(use.output)) for use in uses)
    return tuple(
        Link(label, to(use.output) + (f"#{fragment(use.id)}" if use.id else ""), lang=lang)
        for use, label, lang in labels
    )


def term_id(term: glossary_file.Term) -> str:
    """The id of a term's row, the same in every language."""
    slug = markup.ascii_slug(term.name, words=20) or markup.heading_slug(term.name, words=20)
    return f"term-{slug}"


def key_of(work: Work) -> str:
    """The key that links use."""
    return work.id.removeprefix("bib-")


def cited(works: Sequence[Work], edition: Edition, to: Callable[[str], str]) -> tuple[Work, ...]:
    """The works, each with the pages that refer to it; `to` gives the address of a page."""
    used: dict[str, list[Link]] = {}
    with as_one(CITED.format(edition.lang)):
        for output, page in edition.pages.items():
            for key in keys(page.text):
                used.setdefault(key, []).append(Link(page.label, to(output), lang=page.label_lang))
    return tuple(replace(work, used=tuple(used.get(key_of(work), ()))) for work in works)


def keys(text: Text) -> tuple[str, ...]:
    """The keys of the works a page refers to, each once."""
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
    written: Sequence[content.Text],
    leads: links.Leads,
    terms: glossary.Glossary,
    works: Sequence[Work],
    programs: tuple[Program, ...] = (),
) -> links.Index:
    """Collect every page with its ids, every work and every file beside the pages."""
    made = {
        "glossary": {term_id(term) for term in terms.terms},
        "bibliography": {work.id for work in works},
        commands.KIND: {*commands.ids(programs)},
    }
    targets = {}
    home = None
    for text in written:
        append = text.item.append if isinstance(text.item, Prose) else None
        home = text.item.output if append == "bibliography" else home
        ids = Ids((*text.ids, *made[append])) if append in made else text.ids
        gone = links.departed(leads, text)
        target = links.Target(text.item.source, text.item.name, text.item.output, ids, gone)
        targets[text.item.source] = target
    return links.Index(
        targets=targets,
        works={key_of(work): home for work in works} if home else {},
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
