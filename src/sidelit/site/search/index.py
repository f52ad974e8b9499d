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
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sidelit.config import Config
from sidelit.glossary import Glossary
from sidelit.site.edition import Edition, Page
from sidelit.site.search import places
from sidelit.site.search.places import Place
from sidelit.site.search.terms import UNSPACED, listed
from sidelit.site.uses import Use
from sidelit.site.views import Work

# How much of the index one file of words holds, in characters.
_SHARD = 48_000
# A term in a title says more than one in the text: these are the four weights of a term at a place.
_CODE, _TITLE = 0, 3


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
    found = [places.places(each, made_of.glossary, made_of.works) for each in pages]
    originals = _originals(made_of, edition)
    numbered = [
        (place, originals.get((output, place.id), ""))
        for output, inside in zip(edition.pages, found, strict=True)
        for place in inside
    ]
    shards = list(_shards(postings(numbered)))
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


def _originals(made_of: Material, edition: Edition) -> Mapping[tuple[str, str], str]:
    """The original of the terms that sections use, so that readers of a translation find them by it, too."""
    if edition.lang == made_of.config.languages[0]:
        return {}
    said: dict[tuple[str, str], list[str]] = {}
    for term, uses in made_of.uses.items():
        for use in uses:
            said.setdefault((use.output, use.id), []).append(term)
    return {place: " ".join(words) for place, words in said.items()}


def postings(found: Sequence[tuple[Place, str]]) -> dict[str, list[int]]:
    """Each term with the places that have it: four times the step from the place before, plus its weight.

    Beside each place stand more words that it is found under.
    """
    counted = [Counter(listed(place.words)) for place, _ in found]
    mean = sum(counts.total() for counts in counted) / max(1, len(counted)) or 1.0
    lists: dict[str, list[int]] = {}
    before: dict[str, int] = {}
    for number, ((place, more), counts) in enumerate(zip(found, counted, strict=True)):
        weights = dict.fromkeys(listed(f"{place.code} {more}"), _CODE)
        # A word that is repeated counts for more, each time by less; in a long text, for less (as in BM25).
        long = 0.3 + 0.9 * counts.total() / mean
        weights |= {term: int(3 * times / (times + long)) for term, times in counts.items()}
        weights |= dict.fromkeys(listed(f"{place.title} {place.id.partition('/')[0]}"), _TITLE)
        for term, weight in weights.items():
            lists.setdefault(term, []).append(4 * (number - before.get(term, 0)) + weight)
            before[term] = number
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
