"""# Making the pages

> All that a page needs was read before: so pages are made side by side, each written as soon as it is done.

No page is kept: a site may have any number of them. They are written into a folder that nobody reads yet, and
whoever called decides, when all mistakes are known, whether it becomes the site.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from sidelit import kept, reading, workers
from sidelit.errors import SidelitError
from sidelit.site import assemble, page
from sidelit.site.edition import Page
from sidelit.site.finished import Finished
from sidelit.site.press import Press
from sidelit.store import Store


@dataclass(frozen=True, slots=True)
class Order:
    """A page to make, and its place in the site."""

    name: str
    shown: Page


def write(
    press: Press,
    orders: Sequence[Sequence[Order]],
    folder: Path,
    jobs: int | None = None,
    done: Finished | None = None,
) -> None:
    """Write pages into a folder; those of one text in all languages are made by one process.

    Those that are `done` are taken from there, and the others are put there. Mistakes go to `press.report`,
    language by language in the order of the texts.
    """
    nothing = Finished(press, Store(None))

    def make(group: Sequence[Order]) -> list[list[SidelitError]]:
        return [_written(press, order, folder, done or nothing) for order in group]

    page.prepare(sorted({assemble.kind(order.shown) for group in orders for order in group}), press.look)
    told = list(workers.shared(make, orders, jobs))
    for of_a_language in zip_longest(*told, fillvalue=()):
        for errors in of_a_language:
            for error in errors:
                press.report(error)
    if done is not None:
        done.trim(sum((folder / order.name).stat().st_size for group in orders for order in group))


def _written(press: Press, order: Order, folder: Path, done: Finished) -> list[SidelitError]:
    """Write one page; returns its mistakes."""
    errors: list[SidelitError] = []
    html = done.get(order.name, order.shown)
    if html is None:
        with kept.asking() as asked:
            html = _made(replace(press, report=errors.append), order.shown)
        # A mistake is told by every build, so its page is made by every build.
        if not errors:
            done.put(order.name, order.shown, asked, html)
    put(folder, order.name, html)
    return errors


def _made(press: Press, shown: Page) -> bytes:
    return page.render(assemble.view(press, shown), press.look).encode()


def put(folder: Path, name: str, content: bytes) -> None:
    """Write a file of the site; nothing outside its folder, whoever gave the name."""
    if not reading.stays_inside(name):
        raise SidelitError(f"{name!r} would be written outside the site", path=folder)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
