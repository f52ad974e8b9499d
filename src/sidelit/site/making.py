"""# Making the pages

> All that a page needs was read before: so pages are made side by side, each written as soon as it is done.

No page is kept: a site may have any number of them. They are written into a folder that nobody reads yet, and
whoever called decides, when all mistakes are known, whether it becomes the site.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from sidelit import kept, reading, workers
from sidelit.config import Chapter
from sidelit.errors import SidelitError
from sidelit.site import assemble, name_cards, page
from sidelit.site.edition import Page
from sidelit.site.finished import Finished
from sidelit.site.press import Press
from sidelit.store import Store


@dataclass(frozen=True, slots=True)
class Order:
    """A page to make, and its place in the site."""

    name: str
    shown: Page

    @property
    def files(self) -> tuple[str, ...]:
        """What is written for it: the page, and the cards of its names beside it."""
        has_cards = isinstance(self.shown.text.item, Chapter)
        return (self.name, name_cards.address(self.name)) if has_cards else (self.name,)


def clashes(orders: Iterable[Order]) -> Iterator[SidelitError]:
    """The pages of which a disk or an archive keeps one alone where capitals do not count."""
    taken: dict[str, str] = {}
    for order in orders:
        other = taken.setdefault(order.name.casefold(), order.name)
        if other != order.name:
            what = f"its page {order.name} and {other} are one file on a disk that tells no capitals apart"
            yield SidelitError(what, path=order.shown.text.item.source, hint="give one of them another name")


def write(
    press: Press,
    orders: Sequence[Sequence[Order]],
    folder: Path,
    jobs: int | None = None,
    done: Finished | None = None,
    filled: Callable[[bytes], bytes] = bytes,
) -> None:
    """Write pages into a folder; those of one text in all languages are made by one process.

    Those that are `done` are taken from there, and the others are put there, before they are `filled`.
    Mistakes go to `press.report`, language by language in the order of the texts.
    """
    nothing = Finished(press, Store(None))

    def make(group: Sequence[Order]) -> list[list[SidelitError]]:
        return [_written(press, order, folder, done or nothing, filled) for order in group]

    page.prepare(sorted({assemble.kind(order.shown) for group in orders for order in group}), press.look)
    told = list(workers.shared(make, orders, jobs))
    for of_a_language in zip_longest(*told, fillvalue=()):
        for errors in of_a_language:
            for error in errors:
                press.report(error)
    if done is not None:
        names = (name for group in orders for order in group for name in order.files)
        done.trim(sum((folder / name).stat().st_size for name in names))


def _written(
    press: Press, order: Order, folder: Path, done: Finished, filled: Callable[[bytes], bytes]
) -> list[SidelitError]:
    """Write one page and what lies beside it; returns its mistakes."""
    errors: list[SidelitError] = []
    for name, make in zip(order.files, (_made, _cards), strict=False):
        content = done.get(name, order.shown)
        if content is None:
            with kept.asking() as asked:
                content = make(replace(press, report=errors.append), order.shown)
            # A mistake is told by every build, so its page is made by every build.
            if not errors:
                done.put(name, order.shown, asked, content)
        put(folder, name, filled(content))
    return errors


def _made(press: Press, shown: Page) -> bytes:
    return page.render(assemble.view(press, shown), press.look).encode()


def _cards(press: Press, shown: Page) -> bytes:
    return name_cards.script(shown)


def put(folder: Path, name: str, content: bytes) -> None:
    """Write a file of the site; nothing outside its folder, whoever gave the name."""
    if not reading.stays_inside(name):
        raise SidelitError(f"{name!r} would be written outside the site", path=folder)
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
