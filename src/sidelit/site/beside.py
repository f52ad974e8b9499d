"""# Pictures beside sources

> A docstring shows a picture of its project, and the site carries it along.

A picture lies where the docstring says, from the folder of its file. One outside of the project is refused,
and so is a drawing with a program in it: whoever opens that by its own address would run it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import unquote

from markdown_it.token import Token

from sidelit import drawings, reading
from sidelit.config import Config
from sidelit.errors import SidelitError
from sidelit.site.content import Text

# What browsers show as a picture.
_KINDS = (".png", ".jpg", ".jpeg", ".gif", ".webp", ".avif", ".svg")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
FOLDER = "assets/pictures"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture of the project, and where the site has it."""

    path: Path
    output: str


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures that sources show, each by the source and its target; or why one is not shown."""

    known: Mapping[tuple[str, str], Picture | SidelitError] = field(default_factory=dict)

    def find(self, source: str, target: str) -> Picture | None:
        """A picture; `None` if no such file lies there.

        Raises `SidelitError` if it may not be shown.
        """
        found = self.known.get((source, target))
        if isinstance(found, SidelitError):
            raise found
        return found

    def files(self) -> dict[str, bytes]:
        """The pictures by their places in the site."""
        found = {each.output: each.path for each in self.known.values() if isinstance(each, Picture)}
        return {output: reading.data(path) for output, path in sorted(found.items())}


def pictures(config: Config, texts: Iterable[Text]) -> Pictures:
    """The pictures of chapters."""
    known: dict[tuple[str, str], Picture | SidelitError] = {}
    for text in texts:
        if text.prose:
            continue
        # The sources of a site are below its folder; others are where they were said to be.
        own = config.project / text.item.source
        folder = (own if own.is_file() else Path(text.item.source)).resolve().parent
        for target in text.once("pictures", partial(_shown, text)):
            try:
                if found := _picture(config.project.resolve(), folder, target):
                    known[text.item.source, target] = found
            except SidelitError as error:
                known[text.item.source, target] = error
    return Pictures(known)


def _shown(text: Text) -> tuple[str, ...]:
    """The targets of the pictures of a text."""
    return tuple(_targets(text.tokens))


def _targets(tokens: Iterable[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type == "image" and not _SCHEME.match(str(token.attrs["src"])):
            yield unquote(str(token.attrs["src"]))
        yield from _targets(token.children or ())


def _picture(project: Path, folder: Path, target: str) -> Picture | None:
    try:
        path = (folder / target).resolve()
        if not path.is_relative_to(project):
            what = f"the picture {target} lies outside of the project"
            raise SidelitError(what, hint="put it into the project's folder")
        if not path.is_file():
            return None
        if path.suffix.lower() not in _KINDS:
            raise SidelitError(f"the file {target} is no picture", hint=f"use {', '.join(_KINDS)}")
        if path.suffix.lower() == ".svg" and drawings.runs(reading.data(path)):
            raise SidelitError(f"the picture {target} holds a program", hint="remove it from the drawing")
    except (OSError, ValueError):
        # A name that no file can have.
        return None
    return Picture(path, f"{FOLDER}/{path.relative_to(project).as_posix()}")
