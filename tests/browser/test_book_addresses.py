"""Every address of the book that was ever published still leads to its section.

`data/ids-before-the-move.json` holds the ids of all chapters as they were when each file still lay beside the
others, by the addresses that their pages had. It is never made anew: it is what readers have kept.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from built import ROOT, name_of

KEPT: dict[str, list[str]] = json.loads(
    (ROOT / "tests" / "press" / "data" / "ids-before-the-move.json").read_text(encoding="utf-8")
)
# What may stand under an id: a section and an old name of it, or a link to where it is now.
PLACE = re.compile(
    r'<section id="(?P<section>[^"]+)"|<span class="alias" id="(?P<alias>[^"]+)"'
    r'|<li id="(?P<moved>[^"]+)"><a href="(?P<href>[^"]+)"'
)


@pytest.mark.full
def test_every_id_that_was_published_leads_to_its_section(site: Path) -> None:
    # All languages have the same addresses and ids, which another test sees to; so English is enough here.
    found = {path.relative_to(site).as_posix(): path for path in site.rglob("*.html")}
    pages = {name: path.read_text("utf-8") for name, path in found.items() if name_of(name) == name}
    places = {name: list(PLACE.finditer(text)) for name, text in pages.items()}
    sections = {name: {each["section"] or each["alias"] for each in found} for name, found in places.items()}
    moved = {
        (name, each["moved"]): each["href"]
        for name, found in places.items()
        for each in found
        if each["moved"]
    }
    lost = []
    for address, ids in KEPT.items():
        assert address in pages, f"nothing is at {address} any more"
        for anchor in ids:
            there, name = address, anchor
            if (address, anchor) in moved:
                path, _, name = moved[address, anchor].partition("#")
                there, name = (
                    posixpath.normpath(posixpath.join(posixpath.dirname(address), unquote(path))),
                    unquote(name),
                )
            if name not in sections[there]:
                lost.append(f"{address}#{anchor}")
    assert lost == []
    # A page that only forwards names a page that does not.
    for name, text in pages.items():
        for target in re.findall(r'<a class="forward" href="([^"]+)"', text):
            there = posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(target)))
            assert 'class="forward"' not in pages[there], f"{name} forwards to {there}"
