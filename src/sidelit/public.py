"""# A site in public

> One address, and every link that leads to the site from elsewhere begins with it.
"""

from __future__ import annotations

import re

from sidelit.tables import Table


def url(top: Table) -> str | None:
    """The public address of a configuration, with a slash at its end.

    Raises `SidelitError` for what is no address on the web.
    """
    given = top.take("url", str, "")
    if given and not re.fullmatch(r"https?://[^\s/?#]+(?:/[^\s?#]*)?", given):
        raise top.error(f"{given!r} is no public address", "url", 'write it as "https://example.org/book/"')
    return f"{given.rstrip('/')}/" if given else None


def authors(top: Table) -> tuple[str, ...]:
    """The names of those who wrote it, `Family, Given` or any other name.

    Raises `SidelitError` for what is no list of names.
    """
    given = top.take("authors", list, [])
    if not all(isinstance(name, str) and name.strip() for name in given):
        raise top.error("`authors` must be a list of names", "authors")
    return tuple(name.strip() for name in given)
