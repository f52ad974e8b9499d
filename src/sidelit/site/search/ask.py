"""# Asking the index

> The answers of the page's own script, without a page.

The ranking exists once, as the script that readers load. Here the engine that sets formulas runs it, over
the files that readers would load, so that a terminal and a test hear what the dialog shows. The script of a
built site lies beside its index, and the two belong together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sidelit.errors import SidelitError
from sidelit.site.search.index import FOLDER, folder

_SCRIPT = "search-rank.js"
_DOOR = """
let answer;
const shown = ({ address, id, title, page, at }) => ({ address, id, title, page, at });
const ranked = (query, most) => {
  answer = searching.rank(query, most);
  return JSON.stringify(answer.found.map(shown));
};
const excerpt = (number) => JSON.stringify(searching.excerpt(answer.found[number], answer.marks).parts);
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
    """The index of one language; `read` gives the files of a built site by their names."""

    def __init__(self, read: Callable[[str], bytes], lang: str) -> None:
        self._read = read
        self._folder = folder(lang)
        # The import of quickjs starts a thread, and a process that has two can share no work.
        import quickjs

        self._engine = quickjs.Context()
        self._engine.eval(read(f"assets/{_SCRIPT}").decode() + _DOOR)
        self._loaded: set[str] = set()
        self._load("core.js")

    def _load(self, name: str) -> None:
        if name not in self._loaded:
            self._engine.eval(self._read(self._folder + name).decode())
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
        for name in self.parts(query):
            self._load(name)
        found = self._call("ranked", query, most)
        for each in found:
            self._load(f"text-{each['at']}.js")
        return tuple(
            Answer(
                each["address"] + (f"#{each['id']}" if each["id"] else ""),
                each["title"],
                each["page"],
                tuple((part[0], len(part) > 1) for part in self._call("excerpt", number)),
            )
            for number, each in enumerate(found)
        )


def opened(site: Path, lang: str | None, first: str | None = None) -> Index:
    """The index of a site that was built into this folder.

    :param lang: the language to search; without one that of the pages at the top of the site, which is
        `first` where somebody knows.

    Raises `SidelitError` if there is no such site or language, and if another version of the press made it.
    """
    import quickjs

    if not (site / "assets" / _SCRIPT).is_file():
        hint = "run `sidelit build`, or name the folder of a site with --site"
        raise SidelitError("there is no built site here", path=site, hint=hint)
    langs = sorted(path.parent.name for path in (site / FOLDER).glob("*/core.js"))
    if not langs:
        raise SidelitError("this site has no search, as it has a single page", path=site)
    lang = lang or first or _first(site, langs)
    if lang not in langs:
        raise SidelitError(f"{lang!r} is not a language of this site", hint=f"it has {', '.join(langs)}")
    try:
        return Index(lambda name: (site / name).read_bytes(), lang)
    except quickjs.JSException as error:
        what = f"the index of this site cannot be read: {error}"
        raise SidelitError(what, path=site / folder(lang), hint="build the site again") from None


def _first(site: Path, langs: list[str]) -> str:
    """The language of the pages at the top of a site, by the index that its home page names."""
    home = site / "index.html"
    named = re.search(rf'data-index="{FOLDER}([^/"]+)/"', home.read_text("utf-8")) if home.is_file() else None
    if named is None and len(langs) > 1:
        raise SidelitError(
            "this site has several languages", path=site, hint=f"choose with --lang: {', '.join(langs)}"
        )
    return named[1] if named else langs[0]
