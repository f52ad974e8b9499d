"""What a book needs besides the site: a browser, a library, fonts; and what is left when it is stopped."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from press.project import GAPS, gappy, sidelit, tree
from sidelit.config import languages
from sidelit.errors import SidelitError
from sidelit.export import pdf, pdf_documents

INSTALL = "install Chromium or Chrome, or name yours with --browser"
VERSION = 'if [ "$1" = --version ]; then echo "Chromium 140.0.1 snap"; exit; fi\n'


def program(folder: Path, name: str, body: str) -> Path:
    """A shell script."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n", "utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


# ---- What is missing is one sentence ----


def test_without_a_browser_a_book_says_what_to_install(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "_NAMES", ("no-such-browser",))
    monkeypatch.setattr(pdf, "_PLACES", ())
    said = sidelit("book", cwd=sample, code=1).stderr
    assert said == f"no browser is here, and a PDF is printed by one; {INSTALL}\n"
    assert not (sample / "build").exists()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('echo "Chromium 119.0.6045.9"', "is version 119, and page numbers need 131"),
        ('echo "Chromium 2.5 of another kind"; exit 3', "is version 2, and page numbers need 131"),
        ("exit 1", "does not start, or is no Chromium"),
        ('echo "Mozilla Firefox 140.0"', "does not start, or is no Chromium"),
    ],
)
def test_a_browser_that_cannot_print_is_named(sample: Path, tmp_path: Path, body: str, said: str) -> None:
    there = program(tmp_path / "bin", "browser", body)
    told = sidelit("book", "--browser", there, cwd=sample, code=1).stderr
    assert told.startswith(f"{there} {said}; install")
    assert len(told.splitlines()) == 1


def test_a_name_that_is_no_program_is_told(sample: Path) -> None:
    told = sidelit("book", "--browser", "no-such-browser", cwd=sample, code=1).stderr
    assert told.startswith("there is no program no-such-browser; install")


def test_the_first_browser_of_the_path_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/bin:/usr/bin")
    there = program(tmp_path / "bin", "chromium", VERSION)
    program(tmp_path / "bin", "google-chrome", VERSION)
    assert pdf.find() == str(there)


def test_without_the_library_that_binds_a_book_says_what_to_install(sample: Path) -> None:
    """In a process of its own: here the library is loaded already."""
    lacking = (
        "import sys; sys.modules['pypdf'] = None; from sidelit.cli import options; sys.exit(options.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", lacking, "book"], cwd=sample, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == (
        "the package pypdf is not installed, and it binds the pages of a book; `pip install pypdf`\n"
    )


def test_a_language_that_the_site_has_not_is_told(sample: Path) -> None:
    told = sidelit("book", "--lang", "fr", cwd=sample, code=1).stderr
    assert told == "'fr' is not a language of this site; it has en, ja, zh\n"


def test_letters_that_no_font_has_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = program(tmp_path / "bin", "fc-list", 'test "$1" = :lang=ja || echo "Some Sans"')
    monkeypatch.setenv("PATH", str(there.parent))
    japanese = pdf_documents.lacking(languages.load("ja"))
    assert japanese is not None
    assert "no font of this machine has the letters of 日本語" in japanese
    assert "fonts-noto-cjk" in japanese
    assert pdf_documents.lacking(languages.load("zh")) is None
    there.unlink()
    assert pdf_documents.lacking(languages.load("ja")) is None


# ---- A book is whole or not there ----


def test_a_browser_that_prints_nothing_leaves_the_old_books(sample: Path, tmp_path: Path) -> None:
    out = sample / "build/book"
    out.mkdir(parents=True)
    (out / "sample-en.pdf").write_bytes(b"old")
    there = program(
        tmp_path / "bin", "browser", VERSION + "echo first >&2\necho 'No usable sandbox!' >&2\nexit 1"
    )
    told = sidelit("book", "--lang", "en", "--browser", there, cwd=sample, code=1).stderr
    assert told.startswith(f"{there} printed nothing: No usable sandbox!; install")
    assert tree(out) == {"sample-en.pdf": b"old"}


def test_gaps_are_told_before_anything_is_printed(sample: Path, tmp_path: Path) -> None:
    gappy(sample)
    there = program(tmp_path / "bin", "browser", VERSION + "exit 1")
    told = sidelit("book", "--lang", "en", "--browser", there, cwd=sample, code=1).stderr
    assert all(gap in told for gap in GAPS)


def test_where_a_browser_may_not_lock_itself_in_it_prints_openly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = 'case "$*" in *--no-sandbox*) echo open >&2;; *) echo "No usable sandbox! So" >&2;; esac; exit 1'
    prints = pdf.Browser(str(program(tmp_path / "bin", "browser", body)))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(SidelitError, match="printed nothing: open"):
        prints.print_pdf(tmp_path / "a.html", tmp_path / "a.pdf", tmp_path / "profile")


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.skipif(os.name == "nt", reason="signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_book_that_is_stopped_leaves_nothing_and_nobody(
    sample: Path, tmp_path: Path, number: int, code: int
) -> None:
    """The browsers wait for ever, and a pipe tells when one has begun and when all of them have ended."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    there = program(
        tmp_path / "bin", "browser", f"{VERSION}exec 9>'{pipe}'\necho begun >&9\nsleep 600 & wait"
    )
    command = [sys.executable, "-m", "sidelit", "book", "--lang", "en", "--browser", str(there)]
    # A shell lets what it runs in the background ignore this signal, and a child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with subprocess.Popen(command, cwd=sample, stderr=subprocess.PIPE) as process:
        told = pipe.open("rb")
        assert told.readline() == b"begun\n"
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    # It ends when the last one has that could write into it.
    with told:
        assert set(told.read().split()) <= {b"begun"}
    assert (process.returncode, errors) == (code, b"Stopped.\n")
    assert list((sample / "build/book").iterdir()) == []


# ---- A page on paper ----

PAGE = """<html><head><link rel="stylesheet" href="../assets/page.css"></head><body class="chapter">
<nav><details class="group toc"><ul><li class="d0"><a href="#a">A <code>b</code> &amp; c</a></li>
</ul></details></nav>
<main id="main"><h2 id="a">A</h2><a class="num" href="#line-3">3</a><span id="line-3"></span>
<p><a href="../two.html#x%20y">Two</a>, <a href="#a">here</a>, <a href="../gone.html">gone</a>,
<a class="n" href="../two.html#x">x</a>, <a class="n" href="#line-3">y</a>, <a href="https://example.org">out</a></p>
<img src="pictures/a.png" loading="lazy"><details><summary>s</summary></details>
<svg><path fill="url(#own)" id="own"/><path fill="url(#hatch-2)"/></svg></main></body></html>"""


def test_a_leaf_has_names_of_its_own_and_knows_where_it_leads() -> None:
    made = pdf_documents.leaf(PAGE, "ja/one.html", {"ja/one.html": "p1", "two.html": "p2"})
    assert made is not None
    assert (made.kind, made.sheets) == ("chapter", ("assets/page.css",))
    assert made.headings == (pdf_documents.Heading(0, "p1/a", "A b & c"),)
    assert made.wanted == {"p1", "p1/a", "p2/x%20y", "p2/x"}
    assert '<a href="sidelit:p2/x%20y">Two</a><a class="to" href="sidelit:p2/x%20y"></a>, ' in made.html
    assert '<a href="sidelit:p1/a">here</a>, <a>gone</a>,' in made.html
    assert '<a class="n" href="sidelit:p2/x">x</a>, <a class="n">y</a>, ' in made.html
    assert '<a href="https://example.org">out</a></p>' in made.html
    assert '<img src="ja/pictures/a.png"><details open>' in made.html
    assert '<path fill="url(#p1/own)" id="p1/own"/><path fill="url(#hatch-2)"/>' in made.html
    assert pdf_documents.leaf("<p>no main</p>", "x.html", {"x.html": "p1"}) is None


def test_what_is_in_no_book_is_linked_where_the_site_is_public() -> None:
    made = pdf_documents.leaf(PAGE, "ja/one.html", {"ja/one.html": "p1"}, "https://example.org/s/")
    assert made is not None
    assert '<a href="https://example.org/s/gone.html">gone</a>' in made.html


def test_a_document_holds_as_many_leaves_as_a_browser_bears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_documents, "MOST", 10)
    made = [
        pdf_documents.Leaf(str(size), "", "x" * size, (), (), frozenset(), "") for size in (4, 6, 1, 30, 2)
    ]
    assert [[each.name for each in held] for held in pdf_documents.volumes(made)] == [
        ["4", "6"],
        ["1"],
        ["30"],
        ["2"],
    ]


def test_a_title_is_a_string_of_css_whatever_it_holds() -> None:
    assert re.fullmatch(r'"a \\"b\\" \\\\ c"', pdf_documents._string('a "b" \\ c'))
