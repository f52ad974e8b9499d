"""Which pages the built site has, which of them stand for others, and how a page is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from sidelit import config
from sidelit.config import Lesson, Prose
from sidelit.source import source

ROOT = Path(__file__).parent.parent
CONFIG = config.load(ROOT / "site" / "sidelit.toml")
LANGUAGES = CONFIG.languages
CHAPTERS = [chapter.output for chapter in CONFIG.chapters]
NAMES = [prose.output for prose in CONFIG.prose] + CHAPTERS
SOURCES = {page.output: page.source for page in (*CONFIG.prose, *CONFIG.chapters)}

Open = Callable[..., Page]
WIDE, NARROW, HEIGHT = 1280, 390, 900
# What is left of a window of 1280 pixels at 200 % and at 400 %.
ZOOMED, NARROWEST = 640, 320
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


def file_of(name: str) -> Path:
    """The source of a page, by the page's name."""
    return CONFIG.project / SOURCES[name]


def written(name: str) -> int:
    """How many sections with commentary and code beside it the source of a chapter has."""
    sections = source.read(file_of(name)).sections
    return sum(bool(one.commentary and one.body and not one.hidden) for one in sections)


def longest(names: list[str], count: int) -> list[str]:
    """The pages with the longest sources."""
    return sorted(names, key=lambda name: file_of(name).stat().st_size)[-count:]


def template_of(prose: Prose) -> str:
    """Which template prints a page of prose: lists, lessons and the home page have one of their own."""
    if isinstance(prose, Lesson):
        return "lesson"
    return prose.append or ("home" if prose.output == CONFIG.home else "prose")


PAGES = [path_of(name, language) for name in NAMES for language in LANGUAGES]
# Where the pages of a template can only go wrong alike, its longest ones stand for all in `make test`.
# A short chapter that has all that a test may spoil: a formula, a table, a drawing, and commentary that is
# longer than its code.
CHAPTER = "zero1.html"
LONG_CHAPTERS = longest(CHAPTERS, len(LANGUAGES))
LONG_PROSE = [
    name
    for template in sorted({template_of(prose) for prose in CONFIG.prose})
    for name in longest([prose.output for prose in CONFIG.prose if template_of(prose) == template], 1)
]
LONG = {path_of(name, language) for name in [LONG_CHAPTERS[-1], *LONG_PROSE] for language in LANGUAGES}
# Where a change goes in, every third page is opened, in one language, each in turn.
IN_TURN = LONG | {path_of(name, LANGUAGES[place % len(LANGUAGES)]) for place, name in enumerate(NAMES[::3])}
# What takes seconds a page is asked there of every third of them.
SLOWLY = LONG | {*sorted(IN_TURN)[::3]}
# Where boxes and colours are looked at: on every sixth page in English, and in a translation on those that
# stand for the others.
LOOKED_AT = LONG | set([path for path in PAGES if language_of(path) == LANGUAGES[0]][::6])
