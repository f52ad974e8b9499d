"""# The ledger of published ids

> What readers may have kept, with an imprint of each section, in a file that only a release writes.

`anchors.json` has an object for each page, by the page's name, and in it one for each section, by its id:

    "book/hooks": {
     "": {"address": "hooks.html"},
     "Hooks": {"kind": "class", "qualname": "Hooks", "words": "…", "lines": "…",
      "aliases": ["Layer"], "places": ["layer.html#Layer"]}
    }

`aliases` are ids that once led to this section on this page, `places` those that once led to it at another
address. A ledger without addresses was written by an older release, when a file's path decided the address
of its page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sidelit import reading
from sidelit.errors import SidelitError
from sidelit.ids.matching import Imprint

Page = tuple[Imprint, ...]

# No section has this id, since every id is a word at least.
PAGE = ""
_HINT = "only `sidelit publish` writes this file: bring back the version that it wrote"


@dataclass(frozen=True, slots=True)
class Ledger:
    """The published sections of every page, and the addresses that the pages had."""

    pages: Mapping[str, Page] = field(default_factory=dict)
    addresses: Mapping[str, str] = field(default_factory=dict)


def load(path: Path) -> Ledger:
    """Read the ledger; a site that was never published has an empty one.

    :raises SidelitError: the file is not a ledger.
    """
    if not path.exists():
        return Ledger()
    data = reading.parsed(path, path, _HINT)
    try:
        about = {page: _address(entries.pop(PAGE, {})) for page, entries in data.items()}
        pages = {page: tuple(_read(*item) for item in entries.items()) for page, entries in data.items()}
    except (AttributeError, KeyError, TypeError):
        raise SidelitError("not a ledger of ids", path=path, line=1, hint=_HINT) from None
    return Ledger(pages, {page: address for page, address in about.items() if address})


def save(path: Path, ledger: Ledger) -> None:
    """Write the ledger: a reader of the file finds the old one or the new one, whole."""
    data: dict[str, dict[str, dict[str, object]]] = {}
    for name, page in ledger.pages.items():
        data[name] = {each.id: _entry(each) for each in page}
        if name in ledger.addresses:
            data[name][PAGE] = {"address": ledger.addresses[name]}
    written = path.with_name(path.name + ".new")
    text = json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    # Half a surrogate pair, which a docstring can evaluate to, is written as JSON's own escape.
    written.write_bytes(text.encode("utf-8", "backslashreplace"))
    written.replace(path)


def line_of(path: Path, page: str) -> int:
    """The line on which the entries of a page begin."""
    start = f" {json.dumps(page, ensure_ascii=False)}: {{"
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.startswith(start)), 1)


def _address(about: Mapping[str, Any]) -> str:
    return _sound(str(about.get("address", "")))


def _sound(place: str) -> str:
    """An address at which a page may be written.

    :raises TypeError: it is none.
    """
    page = place.partition("#")[0]
    if page and not (page.endswith(".html") and reading.stays_inside(page)):
        raise TypeError(f"{page!r} is not the address of a page")
    return place


def _entry(each: Imprint) -> dict[str, object]:
    """Words and lines are kept as one string each, so that a change is one line of a diff."""
    entry: dict[str, object] = {"kind": each.kind, "qualname": each.qualname}
    if each.words:
        entry["words"] = " ".join(each.words)
    if each.lines:
        entry["lines"] = " ".join(each.lines)
    if each.aliases:
        entry["aliases"] = list(each.aliases)
    if each.places:
        entry["places"] = list(each.places)
    return entry


def _read(name: str, entry: Mapping[str, Any]) -> Imprint:
    return Imprint(
        name,
        entry["kind"],
        entry["qualname"],
        tuple(entry.get("words", "").split()),
        tuple(entry.get("lines", "").split()),
        tuple(entry.get("aliases", ())),
        tuple(_sound(place) for place in entry.get("places", ())),
    )
