"""# Catalogues

> A catalogue holds the translations of one page into one language, and each sentence is current, to be
> rechecked, stale or missing.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path

from markdown_it.token import Token

from sidelit.cache import store
from sidelit.cache.graph import Graph, LazySequence, Task
from sidelit.cache.records import Late
from sidelit.catalog import po_file
from sidelit.catalog.po_file import Entry, File
from sidelit.catalog.sync import (
    Key,
    Memory,
    PageUnits,
    State,
    digests_of,
    is_translated,
    merge,
    msgid,
    remember,
    state_of,
    unit_indices,
)
from sidelit.errors import SidelitError
from sidelit.text import markup

# ## The catalogues of a site
#
# > What the other stages ask of them: the state of a sentence, a page, a whole site.


# From best to worst: a section is as good as its worst sentence.
STATES: tuple[State, ...] = ("current", "recheck", "stale", "missing")


@dataclass(frozen=True, slots=True)
class Catalog:
    """The translations of one page into one language, matched with the page as it is now.

    `entries` are the live ones by context and English, in the page's order; `obsolete` those kept for
    reuse; `digests` the fingerprints of the code beside each sentence today.
    """

    page: str
    lang: str
    entries: Mapping[Key, Entry] = field(default_factory=dict)
    obsolete: Sequence[Entry] = ()
    digests: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)
    source: str = "en"
    """The tag of the language that it translates from."""
    digest: str = ""
    """Stands for the live entries."""
    original: bool = False
    """Whether the page does not stand in this language, so that nothing of it waits for a translator."""

    def state(self, key: Key) -> State:
        """The state of one sentence: the worst of all the places where its context has it."""
        states = [state_of(self.entries.get(key), code) for code in self.digests.get(key) or ("",)]
        return max(states, key=STATES.index)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of `sidelit status`: how many units of a page are in which state."""

    page: str
    lang: str
    current: int
    recheck: int
    stale: int
    missing: int
    optional: bool = False
    """Whether nobody owes the page a translation."""


@dataclass(frozen=True, slots=True)
class Catalogs:
    """All catalogues of a site, by page and language."""

    by_page: Mapping[tuple[str, str], Catalog]
    languages: tuple[str, ...] = ()
    """The languages translated into."""
    source: str = "en"
    """The tag of the language that everything is written in."""
    originals: frozenset[tuple[str, str]] = frozenset()
    """The pages, each with a language, that are shown there as they were written."""
    optional: frozenset[str] = frozenset()
    """The pages that nobody owes a translation."""

    def catalog(self, page: str, lang: str) -> Catalog:
        """The catalogue of a page; an empty one for a page that `load` was not given."""
        original = (page, lang) in self.originals
        known = self.by_page.get((page, lang))
        return known or Catalog(page, lang, source=self.source, original=original)

    def translation(self, page: str, lang: str) -> Catalog | None:
        """The same, but nothing in the language that the page is written in: there is nothing to look up."""
        if (page, lang) in self.originals:
            return Catalog(page, lang, source=self.source, original=True)
        return self.catalog(page, lang) if lang in self.languages else None


def shelves(pages: Sequence[PageUnits], files: Collection[str]) -> dict[str, str]:
    """The page that each catalogue belongs to, by the catalogue's name.

    A catalogue is its namesake's, or else that of the page that had this name before. Where a new page
    bears the name of an old one, the old one takes its catalogue first, for as long as it has none under
    its own name.
    """
    homes: dict[str, str] = {}
    for page in pages:
        if page.name not in files:
            homes.update(dict.fromkeys(page.former, page.name))
    for page in pages:
        homes.setdefault(page.name, page.name)
    for page in pages:
        for name in page.former:
            homes.setdefault(name, page.name)
    return {name: home for name, home in homes.items() if name in files}


def unique(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries of several catalogues as those of one; a live one goes before its obsolete double."""
    found: dict[Key, Entry] = {}
    for entry in entries:
        # An entry that is exchanged keeps its place: what stood beside a sentence tells what became of it.
        if entry.key not in found or _merit(entry) > _merit(found[entry.key]):
            found[entry.key] = entry
    return tuple(found.values())


def _merit(entry: Entry) -> tuple[bool, bool]:
    return not entry.obsolete, is_translated(entry)


def status(catalogs: Catalogs) -> tuple[Row, ...]:
    """Count the states, a row for each page and language."""
    rows = []
    for catalog in catalogs.by_page.values():
        states = [catalog.state(key) for key in catalog.digests]
        current, recheck, stale, missing = (states.count(state) for state in STATES)
        optional = catalog.page in catalogs.optional
        rows.append(Row(catalog.page, catalog.lang, current, recheck, stale, missing, optional))
    return tuple(rows)


@dataclass(frozen=True, slots=True)
class Pending:
    """A sentence that wants a translator; `str()` is a line that editors jump from."""

    path: str
    line: int
    state: State
    context: str
    msgid: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.state}: {self.context}: {self.msgid}"


def pending(catalogs: Catalogs) -> Iterator[Pending]:
    """Every sentence that is not current, with its place. Run `sync` first, or new ones have none."""
    for catalog in catalogs.by_page.values():
        for key, entry in catalog.entries.items():
            if (state := catalog.state(key)) != "current":
                yield Pending(entry.path, entry.line, state, entry.context, " ".join(entry.msgid.split()))


# ## A catalogue beside its page
#
# > What was matched once, and hung on nothing else, is matched again only when somebody reads it.
#
# Whether a sentence is translated elsewhere is asked only where its own catalogue lacks it. So a catalogue
# with nothing missing follows from itself and from its page, and their digests stand for it.


class Elsewhere(Mapping[str | tuple[str, str, str], Entry]):
    """The translations of all pages, as `remember` files them.

    Hardly any sentence that a catalogue lacks stands in another one. So a file is read only if it has the
    sentence that somebody looks for.
    """

    def __init__(self, files: Sequence[File], known: Graph) -> None:
        self._files, self._known = files, known
        self._found: dict[str, Memory] = {}

    @cached_property
    def _having(self) -> Mapping[bytes, Sequence[File]]:
        """The files that have a sentence."""
        having: dict[bytes, list[File]] = {}
        for file in self._files:
            for mark in self._known.of("sentences", file.digest, partial(_sentences, file)):
                having.setdefault(mark, []).append(file)
        return having

    def __getitem__(self, key: str | tuple[str, str, str]) -> Entry:
        sentence = key if isinstance(key, str) else key[1]
        if sentence not in self._found:
            entries = (each for file in self._having.get(_mark(sentence), ()) for each in file.read())
            self._found[sentence] = remember(each for each in entries if each.msgid == sentence)
        return self._found[sentence][key]

    def __iter__(self) -> Iterator[str | tuple[str, str, str]]:
        return iter(remember(entry for file in self._files for entry in file.read()))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _sentences(file: File) -> tuple[bytes, ...]:
    return tuple({_mark(entry.msgid) for entry in file.read()})


def _mark(sentence: str) -> bytes:
    return hashlib.blake2b(sentence.encode("utf-8", "surrogatepass"), digest_size=8).digest()


Others = Mapping[str | tuple[str, str, str], Entry]


def matched(
    page: PageUnits, stands: str, lang: str, own: Sequence[File], others: Others, source: str, known: Graph
) -> Catalog:
    """The catalogue of a page, which `stands` stands for; `own` are the files of its entries, `others` the
    translations of all pages.
    """
    looked = Late(lambda: others)
    merged = cache(partial(_merged, page, own, looked))
    key = store.digest(stands, lang, [file.digest for file in own])
    if known.knows("matched", key):
        digest, obsolete = key, known.of("matched", key, lambda: 0)
    else:
        digest, obsolete = _digest(merged()[0]), len(merged()[1])
        if not looked.made:
            digest, _ = key, known.of("matched", key, lambda: obsolete)
    return Catalog(
        page.name,
        lang,
        Late(lambda: merged()[0]),
        LazySequence(lambda: merged()[1], obsolete),
        Late(lambda: digests_of(page)),
        source,
        digest,
    )


def _merged(
    page: PageUnits, own: Sequence[File], others: Others
) -> tuple[Mapping[Key, Entry], tuple[Entry, ...]]:
    """The live entries and the obsolete ones."""
    merged = merge(page, unique(entry for file in own for entry in file.read()), others)
    live = {entry.key: entry for entry in merged if not entry.obsolete}
    return live, tuple(entry for entry in merged if entry.obsolete)


def _digest(live: Mapping[Key, Entry]) -> str:
    return store.digest(
        [
            (*entry.key, entry.msgstr, entry.digests, entry.fuzzy, entry.same, entry.path, entry.line)
            for entry in live.values()
        ]
    )


# ## Catalogues
#
# > A page in another language is the page itself with its sentences exchanged, each in one of four states.
#
# | state | meaning | the reader sees |
# |---|---|---|
# | current | translated, beside the code of today | the translation |
# | recheck | translated, but the code beside it changed, or the text came from elsewhere | the same, marked |
# | stale | the original was reworded since | the original, marked |
# | missing | nobody translated it, or somebody pasted the original | the original, marked |
#
# A part may say in which languages its pages stand; in the others they are shown as they were written,
# without any of these states, and nobody waits for a translation. A page of the workshop is shown so while
# less than half of it is translated.
#
# A site's words for building are `load`, `Catalogs.catalog` and `translate`; for translators `sync`, `status`
# and `reviewed`. All of them match catalogues with pages in memory first, so they agree with each other.


# The state of a page, in a language that it does not stand in: shown as it was written, on purpose.
ORIGINAL = "original"


@dataclass(frozen=True, slots=True)
class Translation:
    """What to show for one string: the translation, or the original where `state` is stale or missing."""

    text: str
    state: State
    path: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Translated:
    """A section's tokens in the reader's language; `state` is the worst of its units.

    An inline that was translated knows its place in the catalogue (`markup.path_of`, `markup.line_of`);
    the block around one that was not carries the language that it is written in, `class="untranslated"` and
    `data-state="stale"` or `"missing"`.
    """

    tokens: tuple[Token, ...]
    state: State


def load(
    pages: Sequence[PageUnits],
    locale_dir: Path,
    languages: Sequence[str],
    source: str = "en",
    known: Graph | None = None,
) -> Catalogs:
    """Read all catalogues below `locale_dir` and match them with the pages.

    `languages` are the languages translated into; `source` is the tag of the one that the pages are written
    in, for what stays in it. `known` is the work of earlier builds. Raises `SidelitError` at the first
    line that is not a sound catalogue, and for a folder of a language that the site does not have.
    """
    known = known or Graph()
    catalogs = {}
    stands = {page.name: store.digest(page) for page in pages}
    originals = {(page.name, lang) for page in pages for lang in languages if not page.stands_in(lang)}
    for lang, files in _read_all(locale_dir, languages, known).items():
        others = Elsewhere(tuple(files.values()), known)
        homes = shelves(pages, files)
        for page in (each for each in pages if each.stands_in(lang)):
            own = [files[name] for name in (page.name, *page.former) if homes.get(name) == page.name]
            made = catalogs[page.name, lang] = matched(
                page, stands[page.name], lang, own, others, source, known
            )
            if page.optional and _little(made, stands[page.name], known):
                originals.add((page.name, lang))
    optional = frozenset(page.name for page in pages if page.optional)
    return Catalogs(catalogs, tuple(languages), source, frozenset(originals), optional)


def _little(catalog: Catalog, page: str, known: Graph) -> bool:
    """Whether less than half of a page can be shown in the language of its catalogue."""

    def counted() -> bool:
        states = [catalog.state(key) for key in catalog.digests]
        return 2 * sum(state in ("current", "recheck") for state in states) < len(states)

    return known.of("little", (catalog.digest, page), counted)


def _read_all(locale_dir: Path, languages: Sequence[str], known: Graph) -> dict[str, dict[str, po_file.File]]:
    """The entries of every file, by language and page, whether the site still has that page or not."""
    _check_folders(locale_dir, languages)
    return {lang: dict(_read_language(locale_dir, lang, known)) for lang in languages}


def _read_language(locale_dir: Path, lang: str, known: Graph) -> Iterator[tuple[str, po_file.File]]:
    for page, path in _files(locale_dir / lang):
        yield page, po_file.opened(path, lang, _shown(path, locale_dir), known)


def files_read(locale_dir: Path, lang: str) -> Iterator[Task[tuple[po_file.Entry, ...]]]:
    """The catalogues of a language that can be found; each task reads one."""
    for _, path in _files(locale_dir / lang):
        with suppress(SidelitError):
            yield po_file.reading(path, lang, _shown(path, locale_dir))


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    """The catalogues of a language by page; what an editor keeps beside one has a name with a dot first."""
    for path in sorted(folder.rglob("*.po")):
        if not path.name.startswith("."):
            yield path.relative_to(folder).as_posix().removesuffix(".po"), path


def _check_folders(locale_dir: Path, languages: Sequence[str]) -> None:
    for folder in sorted(locale_dir.iterdir()) if locale_dir.is_dir() else ():
        if folder.is_dir() and folder.name not in languages:
            raise SidelitError(
                f"the site has no language {folder.name!r} (it is translated into {', '.join(languages)})",
                path=_shown(folder, locale_dir),
                hint="name the language in sidelit.toml or remove the folder",
            )


def _shown(path: Path, locale_dir: Path) -> str:
    """The path as messages print it: from the folder that holds `site/locale`."""
    return path.relative_to(locale_dir.parent.parent).as_posix()


def sync(pages: Sequence[PageUnits], locale_dir: Path, languages: Sequence[str]) -> tuple[Path, ...]:
    """Bring the catalogue files up to date with the pages; returns those that were written.

    The catalogue of a page that was renamed goes to its new name. That of a page that is gone keeps its
    translations as obsolete ones, so that a page that comes back under another name finds them.
    """
    catalogs = load(pages, locale_dir, languages)
    moved = [path for lang in languages for path in _moved(pages, locale_dir / lang)]
    orphans = [PageUnits(name, ()) for name in _orphans(pages, locale_dir, languages)]
    lost = load(orphans, locale_dir, languages)
    written = []
    for catalog in (*catalogs.by_page.values(), *lost.by_page.values()):
        if (catalog.entries or catalog.obsolete) and _write(catalog, locale_dir):
            written.append(_file(catalog, locale_dir))
    for path in moved:
        path.unlink()
    return tuple(written)


def _moved(pages: Sequence[PageUnits], folder: Path) -> Iterator[Path]:
    """The files of a language whose entries are in the catalogue of another page now."""
    files = dict(_files(folder))
    current = {page.name for page in pages}
    yield from (files[name] for name in shelves(pages, files) if name not in current)


def _orphans(pages: Sequence[PageUnits], locale_dir: Path, languages: Sequence[str]) -> list[str]:
    known = {name for page in pages for name in (page.name, *page.former)}
    found = {page for lang in languages for page, _ in _files(locale_dir / lang)}
    return sorted(found - known)


def _file(catalog: Catalog, locale_dir: Path) -> Path:
    return locale_dir / catalog.lang / f"{catalog.page}.po"


def _write(catalog: Catalog, locale_dir: Path) -> bool:
    entries = (*catalog.entries.values(), *catalog.obsolete)
    return po_file.write(_file(catalog, locale_dir), po_file.render(entries, catalog.lang))


def reviewed(
    pages: Sequence[PageUnits],
    locale_dir: Path,
    languages: Sequence[str],
    *,
    page: str,
    lang: str | None = None,
    context: str | None = None,
) -> int:
    """Say that somebody read the translations beside the code of today: clears `recheck`.

    It covers a page in all languages, or in one, or one context of it. Returns how many sentences it
    cleared.
    """
    _check_known("page", page, [known.name for known in pages])
    _check_known("language", lang, languages)
    contexts = {section.context for known in pages if known.name == page for section in known.sections}
    _check_known("context", context, sorted(contexts))
    catalogs = load(pages, locale_dir, languages)
    cleared = 0
    for name in languages if lang is None else (lang,):
        catalog = catalogs.catalog(page, name)
        if catalog.original:
            continue
        keys = [
            key
            for key in catalog.entries
            if catalog.state(key) == "recheck" and context in (None, catalog.entries[key].context)
        ]
        judged = {key: replace(catalog.entries[key], digests=catalog.digests[key]) for key in keys}
        _write(replace(catalog, entries={**catalog.entries, **judged}), locale_dir)
        cleared += len(keys)
    return cleared


def _check_known(kind: str, name: str | None, known: Sequence[str]) -> None:
    if name is not None and name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.4) or known[:5]
        raise SidelitError(
            f"there is no {kind} {name!r}", hint=f"there is {', '.join(close) or 'none at all'}"
        )


def translate(tokens: Sequence[Token], catalog: Catalog, context: str, code_digest: str = "") -> Translated:
    """Put the translations into a section's tokens. The tokens given stay as they are."""
    out = list(tokens)
    states: list[State] = ["current"]
    for index in unit_indices(tokens):
        if catalog.original:
            mark = {"lang": catalog.source, "data-state": ORIGINAL}
            out[index - 1], out[index + 1] = _marked(tokens[index - 1], tokens[index + 1], mark)
            continue
        found = text(msgid(tokens[index]), catalog, context, code_digest)
        states.append(found.state)
        if found.state in ("current", "recheck"):
            out[index] = markup.reinline(tokens[index], found.text, path=found.path, line=found.line)
        else:
            out[index - 1], out[index + 1] = _untranslated(
                tokens[index - 1], tokens[index + 1], found.state, catalog.source
            )
    return Translated(tuple(out), max(states, key=STATES.index))


def text(msgid: str, catalog: Catalog, context: str, code_digest: str = "") -> Translation:
    """Translate one plain string, such as a label of the navigation."""
    entry = catalog.entries.get((context, msgid))
    state = state_of(entry, code_digest)
    if entry is None or state not in ("current", "recheck"):
        return Translation(msgid, state)
    return Translation(entry.msgstr, state, entry.path, entry.line)


def _untranslated(opening: Token, closing: Token, state: State, source: str) -> tuple[Token, Token]:
    """Mark a block that stays as it was written: browsers read it out, hyphenate and translate it as such."""
    names = f"{opening.attrs.get('class', '')} untranslated".strip()
    return _marked(opening, closing, {"lang": source, "class": names, "data-state": state})


def _marked(opening: Token, closing: Token, marks: Mapping[str, str]) -> tuple[Token, Token]:
    attrs = {**opening.attrs, **marks}
    if not opening.hidden:
        return opening.copy(attrs=attrs), closing
    # The paragraph of a tight list item prints no tag that could carry the mark.
    return opening.copy(attrs=attrs, tag="span", hidden=False), closing.copy(tag="span", hidden=False)
