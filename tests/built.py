"""Which pages the built site has, which of them stand for others, and how a page is shown."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from sidelit.config import config
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


PAGES = [path_of(name, language) for name in NAMES for language in LANGUAGES]
# A short chapter that has all that a test may spoil: a formula, a table, a drawing, and commentary that is
# longer than its code.
CHAPTER = "rounding.html"
LONG_CHAPTERS = longest(CHAPTERS, len(LANGUAGES))
LONG_PROSE = [
    name
    for kind in sorted({prose.kind for prose in CONFIG.prose})
    for name in longest([prose.output for prose in CONFIG.prose if prose.kind == kind], 1)
]
# The pages of a template can only go wrong alike: its longest one stands for all.
LONG_IN_ENGLISH = {LONG_CHAPTERS[-1], *LONG_PROSE}
LONG = {path_of(name, language) for name in LONG_IN_ENGLISH for language in LANGUAGES}


# --- the pages that have changed since all was green ---

# Where the site is that was built before the tests; without it they build their own.
SITE = Path(os.environ["BUILT_SITE"]).resolve() if "BUILT_SITE" in os.environ else None
# A digest of each page, written by a green run that was given a site. It is no part of the repository.
DIGESTS = ROOT / ".cache" / "pages.json"
AT_MOST = 24  # A change of all pages is one of the press, for which the templates stand.


def digest(path: str) -> str:
    """A digest of what a page itself says: its foot names the commit, and its head the style sheets."""
    assert SITE is not None
    main = re.search(rb"<main.*</main>", (SITE / path).read_bytes(), re.DOTALL)
    assert main, f"{path} has no <main>"
    return hashlib.sha256(main[0]).hexdigest()[:16]


def changed() -> dict[str, str]:
    """The pages whose digest is another than in the last green run, with the new one; none without a list."""
    if SITE is None or not DIGESTS.is_file():
        return {}
    before = json.loads(DIGESTS.read_text("utf-8"))
    return {path: now for path in PAGES if (now := digest(path)) != before.get(path)}


def some(paths: Iterable[str], count: int) -> list[str]:
    """At most so many, spread over all."""
    paths = list(paths)
    return paths[:: -(-len(paths) // count) or 1]


CHANGED = some(changed(), AT_MOST)


def all_is_green() -> None:
    """Note the digests of all pages but those that have changed and that no test has opened."""
    if SITE is None:
        return
    unseen = set(changed()).difference(CHANGED)
    DIGESTS.parent.mkdir(exist_ok=True)
    seen = {path: digest(path) for path in PAGES if path not in unseen}
    DIGESTS.write_text(json.dumps(seen, indent=0), "utf-8")
