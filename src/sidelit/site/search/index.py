"""# The index of a search

> Names and titles load with the first use; of the words, only those that a query asks for.

A site is often read from a static host or from a disk, where nothing answers questions and a page may not
read files. So the index is a set of scripts, each of which hands its part to the page. `core.js` has every
page, and every place with its name; `words-N.js` has one stretch of the alphabet, each term with the places
it stands in; `text-N.js` has the words of one page, for the excerpts of the results that are on show.

No library fits. Those for browsers load a whole index before the first answer, or read its parts with
`fetch`, which a page on a disk may not; those that cut their index into parts are programs beside Python;
and most do not cut Chinese and Japanese at all. What is needed here is a table of terms and numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sidelit import digests
from sidelit.config import Config
from sidelit.glossary import Glossary
from sidelit.site.edition import Edition, Page
from sidelit.site.list_views import Work
from sidelit.site.search import places, postings
from sidelit.site.search.places import Place
from sidelit.site.search.terms import UNSPACED
from sidelit.site.uses import Use

# How much of the index one file of words holds, in characters.
_SHARD = 48_000


def folder(lang: str) -> str:
    """Where the index of one language lies in the site."""
    return f"assets/search/{lang}/"


@dataclass(frozen=True, slots=True)
class Material:
    """What the index is made of: the pages, and the tables that some of them show."""

    config: Config
    editions: Mapping[str, Edition]
    glossary: Glossary = field(default_factory=Glossary)
    works: tuple[Work, ...] = ()
    uses: Mapping[str, tuple[Use, ...]] = field(default_factory=dict)


def files(made_of: Material) -> dict[str, bytes]:
    """The index of every language, by path; a single page needs none, since the browser searches it."""
    made: dict[str, bytes] = {}
    for lang, edition in made_of.editions.items():
        if len(edition.pages) > 1:
            for name, text in _files(made_of, edition).items():
                made[folder(lang) + name] = text.encode()
    return made


def _files(made_of: Material, edition: Edition) -> dict[str, str]:
    pages = list(edition.pages.values())
    tables = digests.digest(made_of.glossary, made_of.works)
    found = [
        each.once("places", partial(places.places, each, made_of.glossary, made_of.works), tables)
        for each in pages
    ]
    shards = list(_shards(_postings(pages, found, _originals(made_of, edition), tables)))
    texts = [
        [[place.words, place.code, *[each.source_lang] * place.foreign] for place in inside]
        for each, inside in zip(pages, found, strict=True)
    ]
    made = {f"words-{at}.js": f"searching.words[{at}]={_json(shard)};\n" for at, shard in enumerate(shards)}
    made |= {f"text-{at}.js": f"searching.texts[{at}]={_json(text)};\n" for at, text in enumerate(texts)}
    words = made_of.config.language(edition.lang).words
    core = {
        "pages": [
            [output, *_named(each), [[place.id, place.title, place.kind] for place in inside]]
            for output, each, inside in zip(edition.pages, pages, found, strict=True)
        ],
        "starts": [shard[0][0] for shard in shards],
        "unspaced": UNSPACED,
        "ui": {key[7:]: word for key, word in words.items() if key.startswith("search_")},
        # Parts of an older index, which a browser may still keep, must not be mixed with these.
        "version": hashlib.sha256("".join(made.values()).encode()).hexdigest()[:8],
    }
    return {"core.js": f"searching.core({_json(core)});\n", **made}


def _named(shown: Page) -> tuple[str, str, str]:
    """A page's label, the name that a program imports it by, the language of the label if it is another."""
    return shown.label, getattr(shown.text.item, "module", ""), shown.label_lang or ""


def _originals(made_of: Material, edition: Edition) -> Mapping[str, Mapping[str, str]]:
    """By page and section, the original of the terms that it uses: a translation is found by it, too."""
    if edition.lang == made_of.config.languages[0]:
        return {}
    said: dict[str, dict[str, str]] = {}
    for term, uses in made_of.uses.items():
        for use in uses:
            known = said.setdefault(use.output, {})
            known[use.id] = f"{known[use.id]} {term}" if use.id in known else term
    return said


def _postings(
    pages: Sequence[Page],
    found: Sequence[tuple[Place, ...]],
    originals: Mapping[str, Mapping[str, str]],
    tables: str,
) -> dict[str, list[int]]:
    """Each term with the places that have it: four times the step from the place before, plus its weight."""
    lengths = [
        each.once("lengths", partial(postings.lengths, inside), tables)
        for each, inside in zip(pages, found, strict=True)
    ]
    usual = postings.usual(length for inside in lengths for length in inside)
    lists: dict[str, list[int]] = {}
    before: dict[str, int] = {}
    first = 0
    for page, inside in zip(pages, found, strict=True):
        more = originals.get(page.text.item.output, {})
        make = partial(postings.postings, inside, more, usual)
        listed = page.once("postings", make, tables, digests.digest(more, usual))
        for term, (start, steps, last) in listed.items():
            if term in lists:
                lists[term].append(start + 4 * (first - before[term]))
                lists[term] += steps
            else:
                lists[term] = [start + 4 * first, *steps]
            before[term] = first + last
        first += len(inside)
    return lists


def _shards(lists: Mapping[str, list[int]]) -> Iterator[list[list[object]]]:
    """The terms in the order in which a script compares them, in stretches of about one size."""
    shard: list[list[object]] = []
    size = 0
    for term in sorted(lists, key=lambda term: term.encode("utf-16-be")):
        shard.append([term, lists[term]])
        size += len(term) + 4 * len(lists[term])
        if size > _SHARD:
            yield shard
            shard, size = [], 0
    if shard:
        yield shard


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
