"""The book: what its PDF says, in which order, and that every way in it leads to the right page."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader

import chromium
from press.project import SAMPLE, edit, git, sidelit, translate, tree

pytestmark = pytest.mark.full

# The pages of the sample, and the line below the title of each.
LEDES = {
    "The sample": "A site as small as can be.",
    "How to read": "Words on the left, code on the right.",
    "A ring": "A buffer that forgets what is oldest.",
    "The window": "A view of the last few items.",
    "Glossary": "The words of this sample.",
    "Bibliography": "What this sample cites.",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample in two languages, the second of which lacks most, with its books."""
    project = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("book") / "sample"))
    edit(project / "site/sidelit.toml", '["en", "ja", "zh"]', '["en", "ja"]\nauthors = ["Lovelace, Ada"]')
    # The page of the ring is followed by others on a later sheet of paper.
    edit(project / "src/sample/ring.py", "LIMIT = 8", f"# {'Long words. ' * 1500}\nLIMIT = 8")
    sidelit("sync", cwd=project)
    translate(project / "site/locale/ja/pages/index.po", {"The sample": "Mihon"})
    told = sidelit("book", "--browser", chromium.ensure(), cwd=project).stdout.splitlines()
    paths = [str(project / f"build/book/sample-{lang}.pdf") for lang in ("en", "ja")]
    assert [line.partition(": ")[0] for line in told] == paths
    return project


@pytest.fixture(scope="module")
def book(project: Path) -> PdfReader:
    return PdfReader(project / "build/book/sample-en.pdf")


def text(book: PdfReader) -> list[str]:
    """What each page says, with single spaces."""
    return [re.sub(r"\s+", " ", page.extract_text()) for page in book.pages]


def links(book: PdfReader) -> Iterator[tuple[int, int | str]]:
    """Each link: the page it is on, and the page that it leads to or its address."""
    numbers = {page.indirect_reference.idnum: number for number, page in enumerate(book.pages)}
    for number, page in enumerate(book.pages):
        for reference in page.get("/Annots", ()):
            link = reference.get_object()
            # The page is wanted as a reference.
            there = link.get("/Dest")
            where = link["/A"]["/URI"] if there is None else numbers[list.__getitem__(there, 0).idnum]
            yield number, where


def outline(book: PdfReader, lines: list[Any], depth: int = 0) -> Iterator[tuple[int, str, int]]:
    for line in lines:
        if isinstance(line, list):
            yield from outline(book, line, depth + 1)
        else:
            yield depth, line.title, book.get_destination_page_number(line)


def first_page(pages: list[str], title: str) -> int:
    """Where a page of the site begins: its lede is said there, and before only on the home page."""
    *_, number = (number for number, said in enumerate(pages) if LEDES[title] in said)
    return number


def test_all_pages_stand_in_their_order_behind_a_title_page_and_contents(book: PdfReader) -> None:
    pages = text(book)
    assert pages[0].startswith("Sample Two small sources and the pages around them. Ada Lovelace")
    assert "How to cite: Lovelace, A. (n.d.). Sample." in pages[0]
    assert pages[1].startswith("2Sample Contents")
    starts = [first_page(pages, title) for title in LEDES]
    assert starts == sorted(set(starts))
    # What is folded on a screen, code, formulas, and all of a long text.
    whole = " ".join(pages)
    assert "self._items.append(item)" in whole
    assert whole.count("Long words.") == 1500
    for word in ("Previous", "Cite this page", "日本語"):
        assert word not in whole


def test_every_page_has_its_number_and_the_contents_say_the_right_ones(book: PdfReader) -> None:
    pages = text(book)
    for number, said in enumerate(pages[1:], start=2):
        assert re.search(rf"(^|\D){number}Sample\b", said), (number, said)
    for title in LEDES:
        (number,) = re.findall(rf"{title} (\d+)", pages[1])
        assert int(number) - 1 == first_page(pages, title)


def test_the_outline_has_parts_pages_and_sections(book: PdfReader) -> None:
    pages = text(book)
    lines = list(outline(book, book.outline))
    assert [title for depth, title, _ in lines if depth == 0] == [
        *("Contents", "The sample", "How to read", "I Containers", "Glossary", "Bibliography")
    ]
    assert (1, "1 A ring", first_page(pages, "A ring")) in lines
    assert (2, "1.1 Ring", first_page(pages, "A ring")) in lines
    (limit,) = (page for _, title, page in lines if "A heading of its own" in title)
    assert "A heading of its own" in pages[limit]


def test_every_link_leads_to_the_page_that_it_names(book: PdfReader) -> None:
    pages = text(book)
    found = list(links(book))
    assert [there for _, there in found if isinstance(there, str) and not there.startswith("https://")] == []
    # On a screen the words are the link; on paper its number is.
    start = first_page(pages, "The sample")
    named = re.findall(r"(the ring|how to read) ?→ p\. (\d+)", pages[start])
    assert [words for words, _ in named] == ["the ring", "how to read"]
    put, reading = (int(number) - 1 for _, number in named)
    assert "Add an item" in pages[put]
    assert reading == first_page(pages, "How to read")
    assert {put, reading} <= {there for page, there in found if page == start}


def test_the_file_says_what_it_is(book: PdfReader) -> None:
    about = book.metadata
    assert about is not None
    assert (about.title, about.author) == ("Sample", "Ada Lovelace")
    assert about.subject == "Two small sources and the pages around them."
    assert book.root_object["/Lang"] == "en"
    assert about.creation_date is None


def test_the_other_language_has_its_own_book_and_the_original_where_it_lacks_words(project: Path) -> None:
    japanese = PdfReader(project / "build/book/sample-ja.pdf")
    lines = list(outline(japanese, japanese.outline))
    assert (0, "Mihon", 2) in lines
    assert (0, "How to read", 3) in lines
    assert japanese.root_object["/Lang"] == "ja"
    assert len(list(links(japanese))) > 20


def test_the_same_commit_gives_the_same_bytes(project: Path, tmp_path: Path) -> None:
    """Two processes of a browser, at another place of the disk."""
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "Begin", "--date=2026-01-31T12:00:00Z")
    for name in ("one", "two"):
        told = ("book", "--lang", "ja", "--browser", chromium.ensure(), "--out", tmp_path / name)
        sidelit(*told, cwd=project)
    one, two = tree(tmp_path / "one"), tree(tmp_path / "two")
    assert list(one) == ["sample-ja.pdf"]
    assert one == two
    about = PdfReader(tmp_path / "one/sample-ja.pdf").metadata
    assert about is not None
    assert about.creation_date is not None
