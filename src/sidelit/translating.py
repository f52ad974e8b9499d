"""# What the commands for translators do

> One writes what is to be translated, one counts it, and one says that a translation was read again.
"""

from __future__ import annotations

import argparse
import json

from sidelit.catalog import catalog
from sidelit.errors import SidelitError
from sidelit.given import configuration
from sidelit.site import content, partial, site


def sync(given: argparse.Namespace) -> int:
    """`sidelit sync`."""
    made = configuration(given)
    pages = content.units(made, site.texts(made))
    written = catalog.sync(pages, made.folder / "locale", made.languages[1:])
    for path in written:
        print(made.shown(path))
    print(f"{len(written)} catalogues written.")
    return 0


def status(given: argparse.Namespace) -> int:
    """`sidelit status`."""
    made = configuration(given)
    made = partial.sound(made)
    books = site.shelf(made, site.texts(made))
    if given.todo:
        for each in catalog.pending(books):
            print(each)
        return 0
    rows = catalog.status(books)
    names = ("page", "lang", "current", "recheck", "stale", "missing")
    if given.json:
        print(json.dumps([{name: getattr(row, name) for name in names} for row in rows], indent=2))
        return 0
    width = max((len(row.page) for row in rows), default=4) + 2
    print(f"{'page':<{width}}lang" + "".join(f"{name:>9}" for name in names[2:]))
    for row in rows:
        print(f"{row.page:<{width}}{row.lang:<4}" + "".join(f"{getattr(row, name):>9}" for name in names[2:]))
    return 0


def reviewed(given: argparse.Namespace) -> int:
    """`sidelit reviewed`."""
    made = configuration(given)
    pages = content.units(made, site.texts(made))
    known = {page.name for page in pages}
    if given.lang and given.lang not in made.languages[1:]:
        raise SidelitError(f"{given.lang!r} is not a language that this site is translated into")
    cleared = 0
    for wanted in given.page:
        name, _, context = wanted.partition("#")
        if name not in known:
            raise SidelitError(f"there is no page {name!r}", hint="`sidelit status` lists the pages")
        cleared += catalog.reviewed(
            pages,
            made.folder / "locale",
            made.languages[1:],
            page=name,
            lang=given.lang,
            context=context or None,
        )
    print(f"{cleared} translations marked as reviewed.")
    return 0
