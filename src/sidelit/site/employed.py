"""# What stands below a definition

> Where it is used and which tests name it, each as a link.

A page is made again when either changes, so a page that asks is noted, with the source that it asked about.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sidelit import digests, kept
from sidelit.origin import fill
from sidelit.site.content import Piece
from sidelit.site.link_views import Link
from sidelit.site.links import fragment
from sidelit.site.tested_by import Test, Tests
from sidelit.site.used_in import Place, Uses

if TYPE_CHECKING:
    from sidelit.site.desk import Desk

# What `kept.asking` calls the uses and the tests of a source.
NOTED = ":employed/{}"


@dataclass(frozen=True, slots=True)
class Employed:
    """Where the definitions of a site are used, and which tests name them, by their sources."""

    uses: Mapping[str, Uses] = field(default_factory=dict)
    tests: Mapping[str, Tests] = field(default_factory=dict)

    def of(self, source: str, section: str) -> tuple[tuple[Place, ...], tuple[Test, ...]]:
        """The uses and the tests of one definition."""
        kept.note(NOTED.format(source))
        return self.uses.get(source, {}).get(section, ()), self.tests.get(source, {}).get(section, ())

    def digest(self, source: str) -> str:
        """Stands for all uses and tests of a source."""
        tests = {
            section: [(test.path, test.name, test.line) for test in found]
            for section, found in self.tests.get(source, {}).items()
        }
        return digests.digest(self.uses.get(source, {}), tests)


@dataclass(frozen=True, slots=True)
class View:
    """What a template shows of it."""

    uses: tuple[Link, ...] = ()
    """To places on this page and on others; of those the name of the page stands in `part`."""
    tests: tuple[Link, ...] = ()


def view(desk: Desk, piece: Piece) -> View:
    """Where a definition of a page is used, and its tests."""
    if piece.kind not in ("class", "function"):
        return View()
    uses, tests = desk.press.employed.of(desk.item.source, piece.id)
    return View(tuple(_uses(desk, uses)), tuple(_tests(desk, tests)))


def _uses(desk: Desk, uses: tuple[Place, ...]) -> Iterator[Link]:
    for place in uses:
        page = desk.edition.pages[place.output]
        address = f"{desk.ways.to(place.output)}#{fragment(place.id)}"
        if place.output == desk.item.output:
            yield Link("", f"#{fragment(place.id)}", name=place.name or place.id)
        else:
            yield Link(page.label, address, lang=page.label_lang, name=place.name)


def _tests(desk: Desk, tests: tuple[Test, ...]) -> Iterator[Link]:
    for test in tests:
        address = fill(desk.config.public.source_url, desk.press.origin, test.path, test.line)
        yield Link(f"{test.path}::{test.name}", address, name=test.name)
