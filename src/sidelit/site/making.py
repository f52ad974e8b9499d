"""# Making the pages

> All that a page needs was read before: so pages are made side by side, each written as soon as it is done.

No page is kept: a site may have any number of them. They are written into a folder that nobody reads yet, and
whoever called decides, when all mistakes are known, whether it becomes the site.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from sidelit import reading, workers
from sidelit.errors import SidelitError
from sidelit.site import assemble, page
from sidelit.site.edition import Page
from sidelit.site.press import Press


@dataclass(frozen=True, slots=True)
class Order:
    """A page to make, and its place in the site."""

    name: str
    shown: Page


def write(press: Press, orders: Sequence[Sequence[Order]], folder: Path, jobs: int | None = None) -> None:
    """Write pages into a folder; those of one text in all languages are made by one process.

    Mistakes go to `press.report`, language by language in the order of the texts.
    """

    def make(group: Sequence[Order]) -> list[list[SidelitError]]:
        return [_made(press, order, folder) for order in group]

    page.prepare(sorted({assemble.kind(order.shown) for group in orders for order in group}), press.look)
    told = list(workers.shared(make, orders, jobs))
    for of_a_language in zip_longest(*told, fillvalue=()):
        for errors in of_a_language:
            for error in errors:
                press.report(error)


def _made(press: Press, order: Order, folder: Path) -> list[SidelitError]:
    """Make one page; returns its mistakes."""
    errors: list[SidelitError] = []
    report: Callable[[SidelitError], None] = errors.append
    html = page.render(assemble.view(replace(press, report=report), order.shown), press.look)
    put(folder, order.name, html.encode())
    return errors


def put(folder: Path, name: str, content: bytes) -> None:
    """Write a file of the site; nothing outside its folder, whoever gave the name."""
    if not reading.stays_inside(name):
        raise SidelitError(f"{name!r} would be written outside the site", path=folder)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
