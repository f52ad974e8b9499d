"""What the HTML itself shows of every page in every language, without a browser: and that each check fails
on a page with the mistake that it is there for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from browser import parsed
from browser.parsed import Read, parse, read
from built import (
    CHANGED,
    CHAPTER,
    CHAPTERS,
    LANGUAGES,
    LONG,
    LONG_IN_ENGLISH,
    NAMES,
    PAGES,
    file_of,
    name_of,
    path_of,
)

pytestmark = pytest.mark.full

# `.ci/run` reads each page in English, and of the other languages those that stand for all.
SOME = [*NAMES, *sorted({*LONG, *CHANGED}.difference(NAMES))]
Check = Callable[[Read, str, Path], Iterator[str]]


def lines(page: Read, path: str, site: Path) -> Iterator[str]:
    """Compare the code of a chapter with its source."""
    if name_of(path) in CHAPTERS:
        yield from parsed.lines(page, file_of(name_of(path)).read_text("utf-8").split("\n"))


CHECKS: dict[str, Check] = {
    "language": lambda page, path, site: parsed.languages(page, path),
    "formulas": lambda page, path, site: parsed.formulas(page),
    "stray TeX": lambda page, path, site: parsed.stray_tex(page),
    "lines": lines,
    "controls": lambda page, path, site: parsed.controls(page),
    "strangers": lambda page, path, site: parsed.strangers(page),
    "section links": lambda page, path, site: parsed.section_links(page, path),
    "ids": lambda page, path, site: parsed.repeated_ids(page),
    "placeholders": lambda page, path, site: parsed.placeholders(page),
    "links": lambda page, path, site: parsed.links(page, site / path),
}
# A check, a text of a page, and what to put in its place.
MISTAKES = [
    ("language", '<html lang="en">', '<html lang="ja">'),
    ("language", ' aria-current="true"', ""),
    ("language", ' data-lang="ja"', ' data-lang="ja" aria-current="true"'),
    ("formulas", r"(?s)<math .*?</math>", ""),
    ("formulas", "</math>", "</math><math></math>"),
    ("formulas", 'class="katex"', 'class="katex katex-error"'),
    ("stray TeX", r"(?s)(<main.*?</p>)", r"\1 about $x"),
    ("stray TeX", "</h1>", r" \\Psi</h1>"),
    ("lines", r'(class="num"[^>]*>)(\d+)', r"\g<1>1\2"),
    ("lines", r'(?s)(.*)<span class="k">def</span>', r'\1<span class="k">fed</span>'),
    ("lines", r'(?s)<pre class="code.*</pre>', ""),
    ("controls", "</main>", "<button>Copy</button></main>"),
    ("controls", "</main>", '<p role="button">Copy</p></main>'),
    ("controls", "</main>", '<p onclick="copy()">Copy</p></main>'),
    ("strangers", 'src="assets/', 'src="https://example.org/'),
    ("strangers", '<link rel="stylesheet" href="', r"\g<0>//example.org/"),
    ("section links", r'(?s)(class="acts">.*?href="ja/[^#]*)#', r"\1#not-"),
    ("section links", r'(?s)(class="acts">.*?href=")ja/', r"\1zh/"),
    ("section links", r'(?s)(class="acts">.*?) hreflang="ja"', r"\1"),
    ("ids", r'<section id="([^"]+)"', r'<p id="\1"></p>\g<0>'),
    ("placeholders", 'href="#main-text"', 'href=""'),
    ("placeholders", 'href="#main-text"', 'href="#"'),
    ("placeholders", 'href="index.html"', 'href="https://www.example.org/book/"'),
    ("placeholders", 'href="index.html"', 'href="https://a.b/blob/{commit}"'),
    ("links", 'href="index.html"', 'href="/index.html"'),
    ("links", 'href="index.html"', 'href="missing.html"'),
    ("links", 'href="ja/', 'href="ja/missing/'),
    ("links", 'href="#main-text"', 'href="#main-texts"'),
    ("links", r'href="ja/[^"#]*#', r"\g<0>nowhere-"),
]


def forwards(site: Path) -> list[str]:
    """The pages at old addresses, which stand in no list of pages and send their readers on."""
    paths = (path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    return sorted(path for path in paths if 'class="forward"' in (site / path).read_text("utf-8"))


@pytest.mark.parametrize("pages", [SOME, pytest.param(PAGES, marks=pytest.mark.nightly)], ids=["some", "all"])
@pytest.mark.parametrize("name", CHECKS)
def test_every_page_is_right(site: Path, name: str, pages: list[str]) -> None:
    check = CHECKS[name]
    paths = [*pages, *forwards(site)]
    said = [f"{path}: {complaint}" for path in paths for complaint in check(read(site / path), path, site)]
    assert said == []


@pytest.mark.cases(ci=15)
@pytest.mark.parametrize(
    ("name", "old", "new"), MISTAKES, ids=[f"{name} {place}" for place, (name, *_) in enumerate(MISTAKES)]
)
def test_a_mistake_is_noticed(site: Path, name: str, old: str, new: str) -> None:
    html, count = re.subn(old, new, (site / CHAPTER).read_text("utf-8"), count=1)
    assert count == 1, f"{CHAPTER} has no {old}"
    assert list(CHECKS[name](parse(html), CHAPTER, site))


@pytest.mark.parametrize(
    ("paths", "formulas"),
    [(SOME, 300), pytest.param(PAGES, 1000, marks=pytest.mark.nightly)],
    ids=["some", "all"],
)
def test_the_pages_have_what_is_checked(site: Path, paths: list[str], formulas: int) -> None:
    """A check of nothing would find nothing."""
    pages = [read(site / path) for path in paths]
    assert sum(len(page.formulas) for page in pages) > formulas
    assert all(page.sections and page.lines for page in map(read, (site / name for name in CHAPTERS)))
    assert all(page.fetched and page.targets and "".join(page.words).strip() for page in pages)


def test_the_build_holds_these_pages_and_no_others(site: Path) -> None:
    """A page that nobody tests is a page that nobody reads."""
    built = {path.relative_to(site).as_posix() for path in site.rglob("*.html")}
    old = forwards(site)
    lists = {path_of("contents.html", language) for language in LANGUAGES}
    assert built - {"404.html", *lists, *old} == set(PAGES)
    # An old address sends readers on in each language.
    assert set(old) == {path_of(name_of(path), language) for path in old for language in LANGUAGES}


@pytest.mark.parametrize(
    "names", [sorted(LONG_IN_ENGLISH), pytest.param(NAMES, marks=pytest.mark.nightly)], ids=["some", "all"]
)
def test_section_names_are_the_same_in_every_language(site: Path, names: list[str]) -> None:
    for name in names:
        first, *others = (read(site / path_of(name, language)).sections for language in LANGUAGES)
        assert all(other == first for other in others), name


def test_pages_fetch_only_from_themselves(site: Path) -> None:
    """No stylesheet names another host: it might ask it only on a machine that lacks a font."""
    for sheet in site.rglob("*.css"):
        words = sheet.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "//" not in words, sheet.name
