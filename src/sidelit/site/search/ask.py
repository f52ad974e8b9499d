"""# Asking the index

> The answers of the page's own script, without a page.

The ranking exists once, as the script that readers load. Here the engine that sets formulas runs it, over
the files that readers would load, so that a terminal and a test hear what the dialog shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sidelit.files import assets
from sidelit.site.search.index import folder

_DOOR = """
const answer = (query, most) => {
  const { found, marks, total } = searching.rank(query, most);
  const shown = found.map((place) => ({ ...place, ...searching.excerpt(place, marks), name: place.title }));
  return JSON.stringify({ found: shown, total });
};
const needed = (query) => JSON.stringify(searching.needs(query));
const cut = (text) => JSON.stringify(searching.cut(text));
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """One result: where it leads, from the root of its language, what it is called, and a stretch of it."""

    address: str
    name: str
    page: str
    excerpt: tuple[tuple[str, bool], ...]
    """Pieces of text, each with whether it is what was asked for."""


class Index:
    """The index of one language, read from the files of a site."""

    def __init__(self, files: Mapping[str, bytes], lang: str) -> None:
        self._files = {name.removeprefix(folder(lang)): text for name, text in files.items()}
        # The import of quickjs starts a thread, and a process that has two can share no work.
        import quickjs

        self._engine = quickjs.Context()
        script = assets.read_asset(assets.templates_folder() / "assets" / "search-rank.js").decode()
        self._engine.eval(script + _DOOR)
        self._loaded: set[str] = set()
        self._load("core.js")

    def _load(self, name: str) -> None:
        if name not in self._loaded:
            self._engine.eval(self._files[name].decode())
            self._loaded.add(name)

    def _call(self, name: str, *given: object) -> Any:
        return json.loads(self._engine.eval(f"{name}({','.join(map(json.dumps, given))})"))

    def terms(self, text: str) -> list[str]:
        """The terms into which a page cuts a query."""
        return list(self._call("cut", text))

    def parts(self, query: str) -> tuple[str, ...]:
        """The files of words that a page loads to answer a query."""
        return tuple(f"words-{number}.js" for number in self._call("needed", query))

    def ask(self, query: str, most: int = 20) -> tuple[Answer, ...]:
        """The answers to a query, the best first."""
        for name in (*self.parts(query), *(name for name in self._files if name.startswith("text-"))):
            self._load(name)
        return tuple(
            Answer(
                each["address"] + (f"#{each['id']}" if each["id"] else ""),
                each["name"],
                each["page"],
                tuple((part[0], len(part) > 1) for part in each["parts"]),
            )
            for each in self._call("answer", query, most)["found"]
        )
