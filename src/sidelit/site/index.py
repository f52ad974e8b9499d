"""# What can be linked to

> Pages by their files, their names and the names they had, each with its ids; works by their keys; files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from sidelit import glossary
from sidelit.config import Config, Prose
from sidelit.packed import Ids
from sidelit.site import content, forwarding, links, listing
from sidelit.site.list_views import Work


def index(
    config: Config,
    written: Sequence[content.Text],
    leads: forwarding.Leads,
    terms: glossary.Glossary,
    works: Sequence[Work],
) -> links.Index:
    """Collect every page with its ids, every work and every file beside the pages."""
    made = {
        "glossary": {listing.term_id(term) for term in terms.terms},
        "bibliography": {work.id for work in works},
    }
    targets = {}
    home = None
    for text in written:
        append = text.item.append if isinstance(text.item, Prose) else None
        home = text.item.output if append == "bibliography" else home
        ids = Ids((*text.ids, *made[append])) if append in made else text.ids
        gone = forwarding.departed(leads, text)
        target = links.Target(text.item.source, text.item.name, text.item.output, ids, gone)
        targets[text.item.source] = target
    return links.Index(
        targets=targets,
        works={listing.key_of(work): home for work in works} if home else {},
        files=frozenset(pictures(config)),
        source_root=config.source_root,
        pages=links.pages_folder(config),
        names=tuple(_by_end(named) for named in _names(targets, leads)),
    )


def _names(
    targets: Mapping[str, links.Target], leads: forwarding.Leads
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
        (_called(address, target), replace(target, moved=there))
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
