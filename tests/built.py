"""Which pages the built site has, and what a page of it offers and asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from sidelit import config

ROOT = Path(__file__).parent.parent
CONFIG = config.load(ROOT / "site" / "sidelit.toml")
LANGUAGES = CONFIG.languages
CHAPTERS = [chapter.output for chapter in CONFIG.chapters]
NAMES = [prose.output for prose in CONFIG.prose] + CHAPTERS

Open = Callable[..., Page]
WIDE, NARROW, HEIGHT = 1280, 390, 900
# A page hears of a new width with the next frame, and has answered when that frame is painted.
FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def show(page: Page, width: int = WIDE, scheme: Any = "light", media: Any = "screen") -> Page:
    """Show a shared page in one way; the test before may have left it in another."""
    page.emulate_media(color_scheme=scheme, media=media)
    size = {"width": width, "height": HEIGHT}
    if page.viewport_size != size:
        page.set_viewport_size(size)
        page.evaluate(FRAMES)
    return page


def path_of(name: str, language: str) -> str:
    """Where a page stands in the site: English at the root, the other languages in folders of their own."""
    return name if language == LANGUAGES[0] else f"{language}/{name}"


def language_of(path: str) -> str:
    """The language of a page, by its place."""
    folder = path.split("/")[0]
    return folder if folder in LANGUAGES else LANGUAGES[0]


def name_of(path: str) -> str:
    """The page without its language: the same for all languages."""
    return path if language_of(path) == LANGUAGES[0] else path.partition("/")[2]


PAGES = [path_of(name, language) for name in NAMES for language in LANGUAGES]


@dataclass
class Read(HTMLParser):
    """The ids of a page, its sections, and the addresses that it names."""

    ids: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.append(given["id"])
            if tag == "section":
                self.sections.append(given["id"])
        self.targets += [given[name] for name in ("href", "src") if name in given]


@cache
def read(path: Path) -> Read:
    """Parse one file."""
    page = Read()
    page.feed(path.read_text("utf-8"))
    return page
