"""Citations: who wrote it, what is cited, and the forms that programs read."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from press.project import edit, sidelit
from sidelit import citing
from sidelit.citing import Author, Place, Record
from sidelit.config import languages

CFF = """cff-version: 1.2.0
title: Sample
message: Cite it.
doi: 10.5281/zenodo.1
version: 3.0
authors:
  - { family-names: Knuth, given-names: Donald Ervin }
  - { family-names: Beethoven, name-particle: van, given-names: Ludwig }
  - { name: "The R&D Team" }
"""
ENGLISH = languages.load("en").words
PLACE = Place("Ring.__init__/100%", "1.3", "What $5 & a \\ {brace} _buys_")


def record(**more: object) -> Record:
    given: dict[str, object] = {
        "book": "Sample",
        "page": "A ring",
        "name": "sample/ring",
        "place": PLACE,
        "source": "ring.py",
        "authors": (Author("Ada Lovelace", "Lovelace", "Ada"), Author("The R&D Team")),
        "language": "en",
        "version": "1.2",
        "commit": "abc",
        "date": "2026-11-23",
        "url": "https://example.org/a_b/ring.html#Ring.__init__/100%25",
    }
    return Record(**{**given, **more})  # type: ignore[arg-type]


def test_the_sentence_is_that_of_apa() -> None:
    assert citing.apa(record(), ENGLISH) == (
        "Lovelace, A., & The R&D Team. (2026). A ring, § 1.3 What $5 & a \\ {brace} _buys_. "
        "In Sample (version 1.2, commit abc). https://example.org/a_b/ring.html#Ring.__init__/100%25"
    )
    bare = record(place=Place(), version="", commit="", date="", url="", authors=(Author("Team"),))
    assert citing.apa(bare, ENGLISH) == "Team. (n.d.). A ring. In Sample."
    assert citing.apa(record(place=Place(), url="", doi="10.1/x"), ENGLISH).endswith(
        " https://doi.org/10.1/x"
    )


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Donald Ervin", "Knuth, D. E."),
        ("Jean-Luc", "Knuth, J.-L."),
        ("Étienne", "Knuth, É."),
        ("太郎", "Knuth 太郎"),
        ("", "Knuth."),
    ],
)
def test_a_person_has_initials_where_the_script_has_them(given: str, name: str) -> None:
    author = Author(f"{given} Knuth", "Knuth", given)
    assert citing.apa(record(authors=(author,)), ENGLISH).startswith(f"{name.rstrip('.')}. (2026)")


def test_of_many_authors_the_first_and_the_last_are_named() -> None:
    many = tuple(Author(f"A{n}") for n in range(25))
    said = citing.apa(record(authors=many), ENGLISH)
    assert said.startswith("A0, A1, ")
    assert "A18, … A24. (2026)" in said
    assert "A19" not in said


def test_bibtex_keeps_its_braces_whatever_a_title_holds() -> None:
    said = citing.bibtex(record(), ENGLISH)
    assert said.startswith("@misc{sample:sample/ring:Ring.__init__/100-,\n")
    assert said.count("{") == said.count("}")
    assert "  author = {Lovelace, Ada and {The R\\&D Team}},\n" in said
    assert "  title = {{A ring, § 1.3 What \\$5 \\& a  brace \\_buys\\_}},\n" in said
    # An address is set as it is.
    assert "  url = {https://example.org/a_b/ring.html#Ring.__init__/100%25},\n" in said


def test_csl_is_what_programs_import() -> None:
    (item,) = json.loads(citing.csl(record(doi="10.1/x"), ENGLISH))
    assert item["author"] == [{"family": "Lovelace", "given": "Ada"}, {"literal": "The R&D Team"}]
    assert item["issued"] == {"date-parts": [[2026, 11, 23]]}
    assert (item["type"], item["container-title"], item["section"]) == ("chapter", "Sample", "1.3")
    assert (item["URL"], item["DOI"], item["language"]) == (record().url, "10.1/x", "en")
    assert not [value for value in item.values() if not value]


def test_authors_come_from_the_citation_file_or_the_configuration(sample: Path) -> None:
    (sample / "CITATION.cff").write_text(CFF, encoding="utf-8")
    told = sidelit("cite", "Ring", "--form", "apa", cwd=sample).stdout
    assert told.startswith(
        "Knuth, D. E., van Beethoven, L., & The R&D Team. (n.d.). A ring, § 1.1 Ring. In Sample "
        "(version 3.0)."
    )
    assert told.endswith(" https://doi.org/10.5281/zenodo.1\n")
    edit(
        sample / "site/sidelit.toml",
        'title = "Sample"',
        'title = "Sample"\nauthors = ["Noether, Emmy", "Team"]',
    )
    assert sidelit("cite", "Ring", "--form", "apa", cwd=sample).stdout.startswith(
        "Noether, E., & Team. (n.d.)."
    )


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("title: [\n", 2),
        ("title: a\nauthors: all\n", 2),
        ("title: a\nauthors:\n  - { orcid: 1 }\n", 2),
        ("- a\n", 1),
        ("&a [*a, " * 3, 1),
    ],
)
def test_a_citation_file_that_is_wrong_is_told_with_its_line(sample: Path, text: str, line: int) -> None:
    (sample / "CITATION.cff").write_text(text, encoding="utf-8")
    told = sidelit("cite", "Ring", cwd=sample, code=1).stderr
    assert told.startswith(f"CITATION.cff:{line}: "), told
    assert told.count("\n") == 1


def test_a_citation_is_in_the_language_of_the_page(sample: Path) -> None:
    edit(sample / "site/sidelit.toml", 'title = "Sample"', 'title = "Sample"\nurl = "https://example.org/x"')
    sidelit("sync", cwd=sample)
    edit(
        sample / "site/locale/ja/sample/ring.po",
        'msgid "A ring"\nmsgstr ""',
        'msgid "A ring"\nmsgstr "リング"',
    )
    told = sidelit("cite", "Ring.put", "--lang", "ja", "--form", "apa", cwd=sample).stdout
    assert "リング, § 1.3 Ring.put. 『Sample』所収" in told
    assert told.endswith(" https://example.org/x/ja/ring.html#Ring.put\n")
    assert "'de'" in sidelit("cite", "Ring.put", "--lang", "de", cwd=sample, code=1).stderr
    everything = sidelit("cite", "A-heading", cwd=sample, code=1).stderr
    assert "there is no section" in everything


def test_a_heading_of_prose_is_cited_by_its_id(sample: Path) -> None:
    edit(sample / "site/sidelit.toml", 'title = "Sample"', 'title = "Sample"\nurl = "https://example.org/x/"')
    edit(sample / "site/pages/notes/reading.md", "## The works", "## The `works`, and $x$")
    told = sidelit("cite", "notes/reading#the-works-and-x", "--form", "csl", cwd=sample).stdout
    (item,) = json.loads(told)
    assert item["URL"] == "https://example.org/x/notes/reading.html#the-works-and-x"
    assert item["title"] == "How to read, The works, and x"
    assert item["section"] == "the-works-and-x"
    assert "no section" in sidelit("cite", "notes/reading#the-worms", cwd=sample, code=1).stderr


def test_a_heading_of_another_script_is_cited_by_its_words_and_by_what_it_was_called(sample: Path) -> None:
    edit(sample / "site/sidelit.toml", 'title = "Sample"', 'title = "Sample"\nurl = "https://example.org/x/"')
    edit(sample / "site/pages/notes/reading.md", "## The works", "## 安装 PyTorch")
    for name in ("安装-pytorch", "pytorch"):
        (item,) = json.loads(sidelit("cite", f"notes/reading#{name}", "--form", "csl", cwd=sample).stdout)
        assert item["section"] == "安装-pytorch"
        assert item["URL"].endswith("reading.html#%E5%AE%89%E8%A3%85-pytorch")


def test_a_page_that_nobody_has_published_names_no_permanent_link(sample: Path) -> None:
    sidelit("build", cwd=sample)
    text = (sample / "build/site/ring.html").read_text("utf-8")
    assert '<details class="cite"' in text
    assert "Permanent link" not in text
    edit(sample / "site/sidelit.toml", 'title = "Sample"', 'title = "Sample"\nurl = "https://example.org/x/"')
    sidelit("build", cwd=sample)
    text = (sample / "build/site/ring.html").read_text("utf-8")
    assert '<dt>Permanent link</dt><dd><a class="link" href="https://example.org/x/ring.html">' in text


@pytest.mark.full
def test_the_box_of_a_page_says_what_the_command_says(sample: Path) -> None:
    edit(sample / "site/sidelit.toml", 'title = "Sample"', 'title = "Sample"\nurl = "https://example.org/x/"')
    sidelit("build", cwd=sample)
    for lang, folder in (("en", ""), ("zh", "zh/")):
        text = (sample / f"build/site/{folder}ring.html").read_text("utf-8")
        box = re.search(r'<details class="cite".*?</details>', text, re.DOTALL)
        assert box
        said = dict(
            re.findall(r'data-form="(\w+)">.*?<pre>(.*?)</pre>', box[0].partition("<template>")[0], re.DOTALL)
        )
        for form in citing.FORMS:
            told = sidelit("cite", "ring", "--lang", lang, "--form", form, cwd=sample).stdout
            assert unescape(said[form]) == told.removesuffix("\n")
        assert f'href="https://example.org/x/{folder}ring.html"' in box[0]
    # A page without a heading is cited as a whole, and one that only forwards is not.
    assert "<template>" not in (sample / "build/site/bibliography.html").read_text("utf-8")
    sidelit("print", sample / "src/sample/ring.py", "--out", "out", cwd=sample)
    assert "cite" not in (sample / "out/ring.html").read_text("utf-8")


@pytest.mark.parametrize("url", ["example.org", "ftp://a/", "https://a b/", "https://a/?q", "https://"])
def test_an_address_that_is_none_is_refused(sample: Path, url: str) -> None:
    line = edit(sample / "site/sidelit.toml", 'title = "Sample"', f'url = "{url}"\ntitle = "Sample"')
    assert sidelit("build", cwd=sample, code=1).stderr.startswith(f"site/sidelit.toml:{line}: ")
