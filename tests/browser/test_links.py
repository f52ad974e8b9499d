"""Every link inside the site leads to a file that is there, and every fragment to an id of that file."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit

from built import read


def test_every_link_leads_somewhere(site: Path, path: str) -> None:
    here = site / path
    for target in read(here).targets:
        if urlsplit(target).scheme:
            continue
        assert not target.startswith("/"), f"{target} breaks where the site stands in a folder"
        file, fragment = urldefrag(target)
        there = (here.parent / unquote(file)).resolve() if file else here
        assert there.is_file(), f"{path} links to {target}"
        if fragment:
            assert unquote(fragment) in read(there).ids, f"{path} links to {target}"


def test_ids_are_unique(site: Path, path: str) -> None:
    ids = read(site / path).ids
    assert len(ids) == len(set(ids)), sorted(name for name in set(ids) if ids.count(name) > 1)


def test_pages_fetch_only_from_themselves(site: Path) -> None:
    """No stylesheet names another host: it might ask it only on a machine that lacks a font."""
    for sheet in site.rglob("*.css"):
        assert "//" not in sheet.read_text("utf-8").replace("data:image/svg+xml", ""), sheet.name
