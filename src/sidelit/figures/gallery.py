"""# The gallery

> All figures of a site, and each of them in each language.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from sidelit.catalog.catalog import Shelf
from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.figures.drawing import Drawing, Easel
from sidelit.figures.figure import FOLDER, Figure


class Gallery:
    """The figures of a site by name; a drawing is made once for each language."""

    def __init__(
        self, figures: Sequence[Figure] = (), easel: Easel | None = None, shelf: Shelf | None = None
    ) -> None:
        self._figures: Mapping[str, Figure] = {each.name: each for each in figures}
        self._easel, self._shelf = easel, shelf
        self._drawn: dict[tuple[str, str], Drawing] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """What a page may ask for."""
        return tuple(sorted(self._figures))

    def draw(self, name: str, lang: str, path: str | None = None, line: int | None = None) -> Drawing:
        """The figure of a name in one language; `path` and `line` say who asks for it.

        Raises `SidelitError` there if there is no such figure, or where the figure has a mistake.
        """
        if name not in self._figures or self._easel is None:
            close = difflib.get_close_matches(name, self.names, n=3, cutoff=0.4) or self.names[:5]
            hint = f"there is {', '.join(close)}" if close else "this site has none"
            raise SidelitError(f"there is no figure {name!r}", path=path, line=line, hint=hint)
        if (name, lang) not in self._drawn:
            figure = self._figures[name]
            book = self._shelf.translation(figure.page, lang) if self._shelf else None
            self._drawn[name, lang] = self._easel.draw(figure, book)
        return self._drawn[name, lang]


def gallery(config: Config, figures: Sequence[Figure], shelf: Shelf) -> Gallery:
    """The gallery of a site, whose catalogues are on the shelf."""
    folder = config.folder / FOLDER
    return Gallery(figures, Easel(folder, config.shown(folder)), shelf)
