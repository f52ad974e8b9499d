"""Odd files, odd names and odd settings: each was once a traceback, a dead link or a lost promise."""

from __future__ import annotations

import json
import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from press.project import edit, page, run, sidelit, tree
from sidelit import serve
from sidelit.errors import SidelitError
from sidelit.ids import anchors, ledger, moves
from sidelit.ids.claims import Placed
from sidelit.lint import lint
from sidelit.source import decoding, source

# ## Encodings


@pytest.mark.parametrize(
    ("declared", "meant"),
    [
        ("utf-8-unix", "utf-8"),
        ("UTF_8-dos", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("latin-1-unix", "iso8859-1"),
        ("iso-8859-1-mac", "iso8859-1"),
    ],
)
def test_the_line_ends_that_emacs_adds_to_an_encoding_are_ignored_as_python_does(
    declared: str, meant: str
) -> None:
    data = f"# -*- coding: {declared} -*-\nx = '\u00e9'\n".encode(meant)
    compile(data, "some.py", "exec")
    text, encoding = decoding.decode(data, "some.py")
    assert "\u00e9" in text
    assert (encoding, text.encode(encoding)) == (meant, data)


@pytest.mark.parametrize("declared", ["undefined", "idna", "punycode"])
def test_an_encoding_that_only_python_itself_can_stumble_over_is_refused(declared: str) -> None:
    with pytest.raises(SidelitError, match=r"^some\.py:1: .*UTF-8"):
        decoding.decode(f"# coding: {declared}\nx = 1\n".encode(), "some.py")


# ## Names of files


class Addresses(HTMLParser):
    """The addresses on a page, as they are written."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in ("href", "src")]


def dead(folder: Path) -> set[tuple[str, str]]:
    """The relative addresses of a site that lead to no file, or are none that HTML allows."""
    found = set()
    for path in folder.rglob("*.html"):
        for address in Addresses(path.read_text(encoding="utf-8")).found:
            parts = urlsplit(address)
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not parts.scheme and (" " in address or not target.is_file()):
                found.add((path.name, address))
    return found


NAMES = ("my page", "50% off", "who?", "a#b", "読み方", "a&b;c")


def test_pages_may_have_any_name(sample: Path) -> None:
    config = sample / "site/sidelit.toml"
    front = "".join(f'[[front]]\nsource = "{name}.md"\n\n' for name in NAMES)
    edit(config, "[[parts]]", f"{front}[[parts]]")
    for name in NAMES:
        (sample / f"site/pages/{name}.md").write_text(f"# {name}\n\nText.\n", encoding="utf-8")
    (sample / "site/pages/a picture.svg").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>")
    text = "\n\n![A picture](<a picture.svg>), [a page](<my page.md>), [another](who%3F.md).\n"
    with (sample / "site/pages/index.md").open("a", encoding="utf-8") as file:
        file.write(text)
    (sample / "src/sample/tools/window.py").rename(sample / "src/sample/tools/big window #1.py")
    edit(config, "tools/window.py", "tools/big window #1.py")
    edit(sample / "src/sample/ring.py", "(tools/window.py#Window)", "(<tools/big window %231.py#Window>)")
    sidelit("build", cwd=sample)
    assert (sample / "build/site/ja/my page.html").is_file()
    assert dead(sample / "build/site") == set()


def test_printed_files_may_have_any_name(tmp_path: Path) -> None:
    for name in ("my script", "a#b", "größe"):
        (tmp_path / f"{name}.py").write_text(f'"""# {name}"""\n', encoding="utf-8")
    sidelit("print", tmp_path, "--out", "out", cwd=tmp_path)
    assert (tmp_path / "out/my script.html").is_file()
    assert dead(tmp_path / "out") == set()


def test_a_file_named_twice_is_printed_once(odd_folder: Path) -> None:
    done = sidelit("print", odd_folder, odd_folder / "one.py", "--out", "out", cwd=odd_folder)
    assert done.stdout == "3 pages in out\n"
    html = (odd_folder / "out/index.html").read_text(encoding="utf-8")
    assert html.partition('<ul class="files">')[2].partition("</ul>")[0].count("<li>") == 2


def test_two_files_that_would_share_a_page_are_refused(odd_folder: Path) -> None:
    (odd_folder / "one.pyw").write_text("x = 1\n", encoding="utf-8")
    told = sidelit("print", "one.py", "one.pyw", "--out", "out", cwd=odd_folder, code=1).stderr
    assert told.startswith("one.pyw: ")
    assert "one.html" in told
    assert told.count("\n") == 1


@pytest.fixture
def odd_folder(tmp_path: Path) -> Path:
    for name in ("one", "two"):
        (tmp_path / f"{name}.py").write_text(f'"""# {name}"""\n', encoding="utf-8")
    return tmp_path


def test_what_an_editor_keeps_beside_a_file_is_no_source(odd_folder: Path) -> None:
    # Emacs marks a file that it is changing with a link to nowhere.
    (odd_folder / ".#one.py").symlink_to("somebody@somewhere.1")
    assert sidelit("print", odd_folder, "--out", "out", cwd=odd_folder).stdout == "3 pages in out\n"


def test_what_an_editor_keeps_beside_a_catalogue_is_no_catalogue(sample: Path) -> None:
    sidelit("sync", cwd=sample)
    (sample / "site/locale/ja/sample/.#ring.po").symlink_to("somebody@somewhere.1")
    sidelit("build", cwd=sample)
    sidelit("sync", cwd=sample)


def test_a_name_that_is_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"odd\xff.py")).write_text("x = 1\n", encoding="utf-8")
    told = sidelit("print", ".", "--out", "out", cwd=tmp_path, code=1).stderr
    assert told.startswith("odd\\udcff.py: ")
    assert told.count("\n") == 1


def test_a_catalogue_may_begin_with_a_byte_order_mark(sample: Path) -> None:
    sidelit("sync", cwd=sample)
    path = sample / "site/locale/ja/sample/ring.po"
    edit(path, 'msgid "A ring"\nmsgstr ""', 'msgid "A ring"\nmsgstr "リング"')
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    sidelit("build", cwd=sample)
    assert "<h1>リング</h1>" in (sample / "build/site/ja/ring.html").read_text(encoding="utf-8")


# ## Settings and data


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('label = "Containers"', 'label = "Containers"\noutput = "../outside"'),
        ('source = "notes/reading.md"', 'source = "../reading.md"'),
    ],
)
def test_no_page_is_written_outside_the_site(sample: Path, old: str, new: str) -> None:
    line = edit(sample / "site/sidelit.toml", old, new)
    (sample / "site/reading.md").write_text("# Notes\n", encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("site/sidelit.toml:")
    assert "outside" in told
    assert told.count("\n") == 1
    assert line
    assert not (sample / "build").exists()


@pytest.mark.parametrize("authors", ["5", '[""]', "{ a = 1 }", "[1]", "[]"])
def test_authors_that_are_none_are_told_at_their_work(sample: Path, authors: str) -> None:
    path = sample / "site/bibliography.toml"
    lines = path.read_text(encoding="utf-8").splitlines()
    lines = [f"authors = {authors}" if line.startswith("authors") else line for line in lines]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("site/bibliography.toml:1: ")
    assert "`authors`" in told


def test_the_address_of_a_work_is_an_address(sample: Path) -> None:
    with (sample / "site/bibliography.toml").open("a", encoding="utf-8") as file:
        file.write('url = "javascript:alert(1)"\n')
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("site/bibliography.toml:")
    assert "`url`" in told


def test_a_glossary_may_be_one_list(sample: Path) -> None:
    text = 'term = [\n  { en = "ring", ja = "リング", zh = "环" },\n]\n'
    (sample / "site/glossary.toml").write_text(text, encoding="utf-8")
    sidelit("build", cwd=sample)
    assert "term-ring" in page(sample / "build/site", "glossary.html").ids


def test_a_port_that_does_not_exist_is_said(sample: Path) -> None:
    told = sidelit("serve", "--port", "99999", cwd=sample, code=1).stderr
    assert "99999" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "obstacle"), [("sync", "site/locale/ja"), ("publish", "site/anchors.json.new/x")]
)
def test_what_the_disk_refuses_is_one_line(sample: Path, command: str, obstacle: str) -> None:
    path = sample / obstacle
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("in the way", encoding="utf-8")
    told = sidelit(command, cwd=sample, code=1).stderr
    assert obstacle.removesuffix("/x") in told
    assert told.count("\n") == 1


def test_a_hide_without_a_show_is_linted(sample: Path) -> None:
    line = edit(sample / "src/sample/ring.py", "LIMIT = 8", "# sidelit: hide\nLIMIT = 8")
    told = sidelit("lint", cwd=sample, code=1).stderr
    assert f"src/sample/ring.py:{line}: " in told
    (finding,) = lint.lint_source("x = 1\n# sidelit: show\n", "some.py")
    assert (finding.line, finding.severity) == (2, "error")
    assert lint.lint_source("# sidelit: hide\nx = 1\n# sidelit: show\n", "some.py") == ()


# ## mkdocs


@pytest.mark.parametrize("name", ["notes/README.md", "templates/one.md", ".hidden/one.md"])
def test_mkdocs_keeps_pages_that_it_would_rename_or_leave_out(sample: Path, name: str) -> None:
    (sample / "site/pages" / name).parent.mkdir(exist_ok=True)
    (sample / "site/pages" / name).write_text("# One\n\n## The two columns\n", encoding="utf-8")
    edit(sample / "site/sidelit.toml", 'source = "notes/reading.md"', f'source = "{name}"')
    edit(sample / "site/pages/index.md", "notes/reading.md", name)
    sidelit("build", "--out", sample / "alone", cwd=sample)
    done = run("mkdocs", "build", "--strict", cwd=sample)
    assert done.returncode == 0, done.stderr
    assert tree(sample / "build/site") == tree(sample / "alone")


@pytest.mark.parametrize("module", ["sidelit", "mkdocs"])
def test_a_site_that_is_a_link_stays_one(sample: Path, module: str) -> None:
    (sample / "elsewhere/here").mkdir(parents=True)
    (sample / "build").mkdir()
    (sample / "build/site").symlink_to("../elsewhere/here")
    done = run(module, "build", cwd=sample)
    assert done.returncode == 0, done.stderr
    assert (sample / "build/site").is_symlink()
    assert (sample / "elsewhere/here/ring.html").is_file()


# ## On the page


def test_a_title_keeps_what_looks_like_a_tag(tmp_path: Path) -> None:
    text = '"""# The `<file>` element\n\n> It may hold a <br>.\n"""\n'
    (tmp_path / "one.py").write_text(text, encoding="utf-8")
    sidelit("print", "one.py", "--out", "out", cwd=tmp_path)
    html = (tmp_path / "out/one.html").read_text(encoding="utf-8")
    assert "<title>The &lt;file&gt; element" in html
    assert 'content="It may hold a &lt;br&gt;."' in html


def test_a_formula_in_a_heading_alone_gets_its_stylesheet(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(
        '"""Words."""\n# ## All $N$ ranks\n#\n# Text.\nx = 1\n', encoding="utf-8"
    )
    sidelit("print", "one.py", "--out", "out", cwd=tmp_path)
    html = (tmp_path / "out/one.html").read_text(encoding="utf-8")
    assert 'class="katex"' in html
    assert "katex-swap.min.css" in html


NOTED = '''"""# Title[^a]

> Lede[^b].

Text[^b].

[^a]: First.
[^b]: Second.
"""
# ## Part[^c]
#
# Text.
#
# [^c]: Third.
x = 1
'''


def test_footnotes_of_titles_and_ledes_lead_somewhere(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(NOTED, encoding="utf-8")
    sidelit("print", "one.py", "--out", "out", cwd=tmp_path)
    shown = page(tmp_path / "out", "one.html")
    assert len(set(shown.ids)) == len(shown.ids)
    inner = [unquote(address[1:]) for address in shown.addresses if address.startswith("#")]
    assert set(inner) <= set(shown.ids)


def test_a_heading_does_not_take_an_id_of_the_page(sample: Path) -> None:
    with (sample / "site/pages/index.md").open("a", encoding="utf-8") as file:
        file.write("\n\n## Main text\n\nNoted[^a].\n\n## Note 1\n\n[^a]: A note.\n")
    sidelit("build", cwd=sample)
    ids = page(sample / "build/site", "index.html").ids
    assert len(set(ids)) == len(ids)


SHAPE = '''def f():
    """Apply it.

    Shape:
        - Input: :math:`(*)`, where `*` is any number
          of dimensions.
        - Output: the same.

    Returns:
        * one
        * two
    """
'''


def test_a_list_below_a_heading_of_another_house_stays_a_list(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(SHAPE, encoding="utf-8")
    sidelit("print", "one.py", "--out", "out", cwd=tmp_path)
    html = (tmp_path / "out/one.html").read_text(encoding="utf-8")
    assert "<strong>Shape:</strong></p>\n<ul><li>Input: <code>(*)</code>" in html
    assert html.count("<li>one</li>") == html.count("<li>Output: the same.</li>") == 1


# ## Names that last


HIDDEN = "# sidelit: hide\n# Out of sight.\ny = 2\n# sidelit: show\n"


def publish(path: Path, document: source.Document, redirects: moves.Redirects | None = None) -> ledger.Page:
    """Publish a site of one page; returns what its ledger holds."""
    return moves.publish(path, [Placed("one", "one.html", document)], redirects).pages["one"]


def test_a_redirect_to_what_nobody_sees_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "anchors.json"
    publish(path, source.parse(f"# First claim.\nx = 1\n{HIDDEN}", "one.py"))
    before = json.loads(path.read_text(encoding="utf-8"))
    after = source.parse(f'"""Title."""\nz = 3\n{HIDDEN}', "one.py")
    redirects = {"one": {"module/first-claim": "module/out-of-sight"}}
    with pytest.raises(SidelitError, match="first-claim"):
        publish(path, after, redirects)
    assert json.loads(path.read_text(encoding="utf-8")) == before


def test_half_a_character_in_a_docstring_can_be_published(tmp_path: Path) -> None:
    document = source.parse('"""# A \\ud800 title."""\n', "one.py")
    written = publish(tmp_path / "anchors.json", document)
    assert ledger.load(tmp_path / "anchors.json").pages["one"] == written


def test_a_double_with_a_docstring_does_not_take_the_id_of_one_without(tmp_path: Path) -> None:
    old = "class K:\n    x = 1\n"
    published = publish(tmp_path / "anchors.json", source.parse(old, "one.py"))
    document = source.parse('class K:\n    """New."""\n\n    y = 2\n\n\n' + "class K:\n    x = 1\n", "one.py")
    names = {section.commentary: name.id for section, name in found(document, published)}
    assert names[""] == "K"


def found(document: source.Document, published: ledger.Page) -> list[tuple[source.Section, anchors.Anchor]]:
    return list(zip(document.sections, anchors.assign(document, published), strict=True))


def test_a_long_file_that_was_reformatted_is_found_again(tmp_path: Path) -> None:
    # To compare every section with every other again and again would take longer than a test may.
    lines = "\n\ndef f{0}(a):\n    # Claim number {0} is made here.\n    return a[{1}{0}{1}]\n"
    before, after = ("".join(lines.format(n, quote) for n in range(1000)) for quote in ("'", '"'))
    published = publish(tmp_path / "anchors.json", source.parse(before, "one.py"))
    names = [name.id for _, name in found(source.parse(after, "one.py"), published)]
    assert names == [each.id for each in published]


# ## The server


def test_a_folder_is_served_under_its_own_address() -> None:
    state = serve.State({"index.html": b"en", "ja/index.html": b"ja"}, 1, 1)
    assert serve.answer(state, "/ja/")[2].startswith(b"ja")
    # Without the slash its links would lead to the pages of the folder above.
    status, _, content = serve.answer(state, "/ja")
    assert (status, content) == (301, b"/ja/")
    assert serve.answer(state, "/index.html/")[0] == 404
