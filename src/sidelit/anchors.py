"""# Names that last

> A link to a section still leads to it after the next release, or the build fails.

The ledger (`anchors.json`) holds the ids that readers may have kept, with an imprint of each section. Only a
release writes it (`sidelit publish`). Every build reads it, finds the published sections again, and gives
each its old id. An id changes only where the qualified name changes; the old one then stays as an alias. A
published id that would lead nowhere stops the build.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidelit.errors import SidelitError
from sidelit.matching import PIECES, Imprint, imprint, match, moved
from sidelit.naming import piece, propose
from sidelit.source import Document

Page = tuple[Imprint, ...]
Ledger = dict[str, Page]


@dataclass(frozen=True, slots=True)
class Anchor:
    """The id of a section, and the ids that once led to it."""

    id: str
    aliases: tuple[str, ...] = ()


def assign(
    document: Document, published: Page | None = None, *, redirects: Mapping[str, str] | None = None
) -> tuple[Anchor, ...]:
    """Return an anchor for each section, in the order of the sections.

    :param published: what the ledger holds about this page.
    :param redirects: published ids whose sections are gone on purpose, each with the id its readers should
        find.
    :raises SidelitError: a published id would lead nowhere.
    """
    return _Page(document, published or ()).anchors(redirects or {})


def load(path: Path) -> Ledger:
    """Read the ledger; a site that was never published has none.

    :raises SidelitError: the file is not a ledger.
    """
    if not path.exists():
        return {}
    hint = "only `sidelit publish` writes this file: bring back the version that it wrote"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {page: tuple(_read(*item) for item in entries.items()) for page, entries in data.items()}
    except json.JSONDecodeError as error:
        raise SidelitError(f"not valid JSON: {error.msg}", path=path, line=error.lineno, hint=hint) from None
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError):
        raise SidelitError("not a ledger of ids", path=path, line=1, hint=hint) from None


def publish(
    path: Path,
    documents: Mapping[str, Document],
    *,
    redirects: Mapping[str, Mapping[str, str]] | None = None,
) -> Ledger:
    """Fix the ids of all pages and write them to the ledger.

    :param documents: the documents by the names of their pages.
    :param redirects: by page, what `assign` takes.
    :raises SidelitError: a published id or page would lead nowhere.
    """
    before = load(path)
    check_pages(before, documents, path)
    after = {
        name: imprints(document, assign(document, before.get(name), redirects=(redirects or {}).get(name)))
        for name, document in documents.items()
    }
    data = {name: {each.id: _entry(each) for each in page} for name, page in after.items()}
    written = path.with_name(path.name + ".new")
    text = json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    # Half a surrogate pair, which a docstring can evaluate to, is written as JSON's own escape.
    written.write_bytes(text.encode("utf-8", "backslashreplace"))
    written.replace(path)
    return after


def check_pages(ledger: Ledger, names: Mapping[str, Any] | Sequence[str], path: Path) -> None:
    """Make sure that no published page is missing from `names`.

    :raises SidelitError: one is.
    """
    for page in sorted(ledger.keys() - set(names)):
        what = f"the published page {page!r} would vanish"
        raise SidelitError(what, path=path, hint="keep a page of this name in the site")


# ## One page


class _Page:
    """The sections of a document beside those that were published.

    What is off the page cannot be linked to, so hidden sections are neither found again nor published.
    """

    def __init__(self, document: Document, published: Page) -> None:
        self.document = document
        self.published = published
        self.proposed = propose(document.sections)
        self.shown = [index for index, each in enumerate(document.sections) if not each.hidden]
        sections = document.sections
        self.current = [imprint(sections[index], self.proposed[index]) for index in self.shown]
        self.pairs, self.renamed = match(published, self.current)
        self.taken = {name for each in published for name in (each.id, *each.aliases)}

    def anchors(self, redirects: Mapping[str, str]) -> tuple[Anchor, ...]:
        """Published sections choose first, then new ones, from the names that are left."""
        names: dict[int, str] = {}
        aliases: dict[int, list[str]] = {}
        for old, new in self.pairs.items():
            names[self.shown[new]], aliases[self.shown[new]] = self._keep(
                self.published[old], self.current[new]
            )
        for index, name in enumerate(self.proposed):
            if index not in names:
                names[index] = self._free(name)
        for old, home in self._homes(names, redirects).items():
            entry = self.published[old]
            aliases.setdefault(home, []).extend([*entry.aliases, entry.id])
        return tuple(Anchor(names[index], tuple(aliases.get(index, ()))) for index in range(len(names)))

    def _keep(self, old: Imprint, new: Imprint) -> tuple[str, list[str]]:
        """Return the id and aliases of a section that was found again."""
        if old.qualname == new.qualname or old.kind == "module":
            return old.id, list(old.aliases)
        name = new.id
        if old.kind in PIECES:
            name = piece(new.qualname, old.id.rpartition("/")[2])
        if name not in old.aliases:
            name = self._free(name)
        return name, [alias for alias in (*old.aliases, old.id) if alias != name]

    def _free(self, name: str) -> str:
        """Return `name`, or where it is taken the next one that is free, and take it."""
        free = name
        count = 2
        while free in self.taken:
            free = f"{name}-{count}"
            count += 1
        self.taken.add(free)
        return free

    def _homes(self, names: Mapping[int, str], redirects: Mapping[str, str]) -> dict[int, int]:
        """Find for each published section that is gone the one its readers should land on.

        For code without commentary that is the definition it stood in: nobody named it, so nobody can keep
        its name. Every other id is a promise, and only its author may say where it leads now.
        """
        by_name = {names[index]: index for index in self.shown}
        homes: dict[int, int] = {}
        lost: list[str] = []
        for old, entry in enumerate(self.published):
            if old in self.pairs:
                continue
            home = by_name.get(redirects.get(entry.id, ""))
            if home is None and entry.kind in (*PIECES, "module") and not entry.words:
                home = self._around(moved(entry.qualname, self.renamed))
            if home is None:
                lost.append(entry.id)
            else:
                homes[old] = home
        if lost:
            more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise SidelitError(
                f"the published id {lost[0]!r}{more} would lead nowhere",
                path=self.document.path,
                hint="bring the section back, or publish with a redirect to another one",
            )
        return homes

    def _around(self, qualname: str) -> int | None:
        """Return the innermost definition of this name or around it, or else the page's first section."""
        sections = self.document.sections
        while qualname:
            for index in self.shown:
                if sections[index].qualname == qualname and sections[index].kind not in PIECES:
                    return index
            qualname = qualname.rpartition(".")[0]
        return self.shown[0] if self.shown else None


# ## The file


def imprints(document: Document, anchors: Sequence[Anchor]) -> Page:
    """Take the imprints of all sections that readers can link to."""
    return tuple(
        imprint(section, anchor.id, anchor.aliases)
        for section, anchor in zip(document.sections, anchors, strict=True)
        if not section.hidden
    )


def _entry(each: Imprint) -> dict[str, object]:
    """Words and lines are kept as one string each, so that a change is one line of a diff."""
    entry: dict[str, object] = {"kind": each.kind, "qualname": each.qualname}
    if each.words:
        entry["words"] = " ".join(each.words)
    if each.lines:
        entry["lines"] = " ".join(each.lines)
    if each.aliases:
        entry["aliases"] = list(each.aliases)
    return entry


def _read(name: str, entry: Mapping[str, Any]) -> Imprint:
    return Imprint(
        name,
        entry["kind"],
        entry["qualname"],
        tuple(entry.get("words", "").split()),
        tuple(entry.get("lines", "").split()),
        tuple(entry.get("aliases", ())),
    )
