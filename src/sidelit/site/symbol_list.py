"""# The symbols of a page

> Which symbols a page shows, its own and those of the sections it takes from chapters, each under one key.

A chapter shows its notation where it declares it. A lesson or a page of prose shows it at its end, folded,
together with that of the sections it has taken. There $n$ may be the number of layers in one section and of
tokens in another: where a symbol does not have the same name in both programs, it has two keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from sidelit.kept import Kept
from sidelit.site.content import Text
from sidelit.site.edition import Page
from sidelit.symbols import notation
from sidelit.symbols.marking import Marker
from sidelit.symbols.notation import Notation


class Notations(Mapping[str, Notation]):
    """What each text declares its symbols to mean, by its source; it is read when a page asks for it."""

    def __init__(self, texts: Iterable[Text]) -> None:
        self._texts = {text.item.source: Kept(partial(_read, text), 1, text.item.source) for text in texts}

    def __getitem__(self, source: str) -> Notation:
        return self._texts[source][0]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def _read(text: Text) -> tuple[Notation, ...]:
    return (notation.read(text.tokens),)


class Symbols:
    """The markers of one page, and of the pages that it takes sections from."""

    def __init__(self, notations: Mapping[str, Notation], shown: Page) -> None:
        self._notations = notations
        self._codes: dict[str, tuple[str, ...]] = {}
        self._markers: dict[str, tuple[Page, Marker]] = {}
        self.listed: set[str] = set()
        """The keys that have a row in the list."""
        self.own = self.of(shown)

    def of(self, there: Page) -> Marker:
        """The marker for what this page shows of another one, or of itself."""
        source = there.text.item.source
        if source not in self._markers:
            declared = self._notations.get(source, Notation())
            keys = {each.key: self._key(each.key, each.code, there) for each in declared.meanings}
            self._markers[source] = there, Marker(declared, keys)
        return self._markers[source][1]

    def _key(self, key: str, code: tuple[str, ...], there: Page) -> str:
        known = self._codes.setdefault(key, code)
        if known == code and (code or len(self._markers) == 0):
            return key
        apart = f"{key}--{re.sub(r'[^A-Za-z0-9]+', '-', there.text.item.name)}"
        self._codes[apart] = code
        return apart

    @property
    def used(self) -> bool:
        """Whether the page shows any."""
        return any(marker.used for _, marker in self._markers.values())

    def taken(self) -> Iterator[tuple[Page, Marker]]:
        """The other pages whose symbols are shown, with what marks them, in their order."""
        for there, marker in self._markers.values():
            if marker is not self.own and marker.used:
                yield there, marker
