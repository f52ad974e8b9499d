"""A build takes the pages of the build before, and makes the same bytes as one that makes them all."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from press.figures import studio as figures
from press.interactive import studio as interactive
from press.project import edit, git, sidelit, translate
from sidelit.cache import graph as graphs
from sidelit.cache.store import Store
from sidelit.config import config
from sidelit.config.origin import Origin
from sidelit.errors import Collector, SidelitError
from sidelit.files import atomic
from sidelit.site import context, edition, making, site

LESSON = """# Items in a row
> A ring keeps the last items.
:minutes: 5
:aim: say what a ring forgets

::: section src:sample/ring.py#Ring.put
:::
"""
TEST = "def test_put():\n    pass\n"
RING, WINDOW, READING = "src/sample/ring.py", "src/sample/tools/window.py", "site/pages/notes/reading.md"
TOML, WORDS = "site/sidelit.toml", "site/glossary.toml"
JA = "site/locale/ja/sample"
Change = Callable[[Path], object]


@pytest.fixture
def project(sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sample with all that a page may show, in git; its user has a home of his own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    figures.furnish(sample)
    interactive.furnish(sample)
    (sample / "site/lessons/row.md").write_text(LESSON, "utf-8")
    lesson = 'source = "lessons/steps.md" }'
    edit(sample / TOML, lesson, f'{lesson}, {{ source = "lessons/row.md" }}')
    (sample / "tests").mkdir()
    (sample / "tests/ring.py").write_text(TEST, "utf-8")
    edit(sample / TOML, '-m sample.ring" }', '-m sample.ring", proves = ["tests/ring.py::test_put"] }')
    (sample / READING).write_text((sample / READING).read_text("utf-8") + "\n::: figure bars\n:::\n", "utf-8")
    (sample / "pyproject.toml").write_text('version = "1.0"\n', "utf-8")
    (sample / "src/sample/__init__.py").write_text("", "utf-8")
    sidelit("sync", cwd=sample)
    translate(sample / f"{JA}/ring.po", {"A ring": "リング", "Make an empty ring.": "空のリングを作ります。"})
    (sample / ".gitignore").write_text(".cache\nbuild\n", "utf-8")
    git(sample, "init")
    return commit(sample)


def commit(project: Path) -> Path:
    git(project, "add", "-A")
    git(project, "commit", "-m", "All of it")
    return project


def added(name: str, text: str) -> Change:
    """A change that writes at the end of a file, or a new file."""

    def change(project: Path) -> None:
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text((path.read_text("utf-8") if path.exists() else "") + text, "utf-8")

    return change


def changed(name: str, old: str, new: str) -> Change:
    return lambda project: edit(project / name, old, new)


def recorded(project: Path) -> None:
    figures.record(project / "site", json.loads(json.dumps(figures.RECORDED).replace("900", "901")))


def published(project: Path) -> None:
    sidelit("publish", cwd=project)


NEW = '"""# More\n\n> Of it.\n"""\n\nfrom sample.ring import Ring\n\nMORE = Ring(3)\n'
CITED = "cff-version: 1.2.0\nmessage: Cite it.\ntitle: Rings\nauthors:\n  - name: Ada\n"
FIRST, SECOND = (f'[[front]]\nsource = "{name}.md"' for name in ("index", "notes/reading"))
ROLES = """
[[parts]]
label = "Roles"
folder = "src/roles"
dialect = "rest"
chapters = ["*.py"]
"""
ROLE = '"""Of :class:`sample.ring.Later`, :func:`.in_the_end`, :func:`.then`."""\n'
LATER = (
    '\n\nclass Later(Ring):\n    """Comes later."""\n\n\ndef in_the_end() -> None:\n    """Comes, too."""\n'
)
DOCUMENTED = '[[inventories]]\nfile = "inventories/python.txt"\nurl = "https://docs.example.org/{place}"\n\n'
MORE = '    { source = "tools/more.py", name = "tools/more" },\n'


def appeared(project: Path) -> None:
    added("src/sample/tools/more.py", NEW)(project)
    edit(project / TOML, 'name = "tools/window" },\n', f'name = "tools/window" }},\n{MORE}')


def removed(project: Path) -> None:
    edit(project / TOML, MORE, "")
    (project / "src/sample/tools/more.py").unlink()


def documented(project: Path) -> None:
    added("site/inventories/python.txt", "@ library/collections.html#{name}\ncollections.deque\n")(project)
    edit(project / TOML, FIRST, DOCUMENTED + FIRST)


EDITS: dict[str, Change] = {
    "nothing": lambda project: None,
    "words of a source": changed(RING, "which is all a ring has to do.", "which is all that a ring does."),
    "a line more in a comment": changed(RING, "# A bounded", "# It is short.\n        # A bounded"),
    "code": changed(RING, "LIMIT = 8", "LIMIT = 4 + 4"),
    "words that a lesson shows": changed(RING, "Add an item; see", "Append an item; see"),
    "code that a lesson shows": changed(RING, ".append(item)\n\n\n", ".append(item)\n        del item\n\n\n"),
    "a formula": changed(RING, "| read | $O(N)$ |", "| read | $O(N + 1)$ |"),
    "a symbol": changed(RING, "`size`, the number of places", "`size`, how many places there are"),
    "the name of a section": changed(RING, "# # A heading of its own", "# # A heading of another"),
    "a function": added(RING, '\n\ndef empty() -> Ring:\n    """Make none."""\n    return Ring(0)\n'),
    "a link in code": added(WINDOW, "\n\nfrom sample.ring import empty\n\nNONE = empty()\n"),
    "lines above what a link leads to": changed(RING, "\n\ndef empty", "\n\n# One more.\n\n\ndef empty"),
    "a value that code elsewhere names": added(WINDOW, "\n\nfrom sample.ring import LIMIT\n\nMOST = LIMIT\n"),
    "lines above that value": changed(RING, "LIMIT = 4", "# How many.\n#\n# It is a limit.\nLIMIT = 4"),
    "a sentence that is translated elsewhere": added(
        WINDOW, '\n\ndef made() -> Ring:\n    """Make an empty ring."""\n    return NONE\n'
    ),
    "its translation there": lambda project: translate(
        project / f"{JA}/ring.po", {"Make an empty ring.": "何もない輪を作ります。"}
    ),
    "a title": changed(WINDOW, "# The window", "# A window"),
    "a lede": changed(WINDOW, "A view of the last few items.", "A view of some items."),
    "a term more": changed(WINDOW, "It works on any", "A ring has it, a ring. It works on any"),
    "published ids": published,
    "a translation": lambda project: translate(
        project / f"{JA}/ring.po", {"How many items it keeps.".lower().replace(".", "") + ".": "数。"}
    ),
    "words of a figure": added(WINDOW, '\n\ndef two() -> None:\n    """Two bars, one for each size."""\n'),
    "their translation elsewhere": lambda project: (
        sidelit("sync", cwd=project),
        translate(project / f"{JA}/tools/window.po", {"Two bars, one for each size.": "二本の棒。"}),
    ),
    "a translated title": lambda project: translate(project / f"{JA}/ring.po", {"A ring": "環"}),
    "prose": changed(READING, "Words on the left, code on the right.", "Words here, code there."),
    "a picture": changed("site/pages/pictures/columns.svg", "<svg", "<!-- more --><svg"),
    "a heading": changed(READING, "## The works", "## All works"),
    "a lesson": changed("site/lessons/row.md", "say what a ring forgets", "say what it forgets"),
    "a template": added("site/templates/prose.html", '{% extends "press/prose.html" %}\n{# ours #}\n'),
    "an asset": added("site/assets/ours.css", "p { color: red; }\n"),
    "a word of the interface": added("site/ui/en.toml", '[ui]\nsource = "code"\n'),
    "the glossary": changed(WORDS, 'en = "window"', 'en = "view"'),
    "the bibliography": changed("site/bibliography.toml", "year = 1973", "year = 1968"),
    "the title of the site": changed(TOML, 'title = "Sample"', 'title = "Rings"'),
    "an address": changed(TOML, "example.org/new", "example.org/issues"),
    "a macro": changed(TOML, "figures_torch", 'macros = { "\\\\O" = "O" }\nfigures_torch'),
    "a figure": changed("site/figures/bars.svg", "Two bars", "The bars"),
    "the caption of a figure": changed("site/figures/bars.toml", "times as large.", "times as big."),
    "a recording": recorded,
    "a stepper": changed("site/steppers/put.toml", "Putting an item", "Putting one item"),
    "another page": appeared,
    "a page less": removed,
    "the order of pages": changed(TOML, f"{FIRST}\n\n{SECOND}", f"{SECOND}\n\n{FIRST}"),
    "a test that proves": changed("tests/ring.py", "def test_put", "# It is short.\ndef test_put"),
    "what a test names": changed(
        "tests/ring.py", "def test_put():", "from sample.ring import Ring\n\ndef test_put():\n    Ring(1)"
    ),
    "where a test stands": changed("tests/ring.py", "from sample", "import os\n\nfrom sample"),
    "an inventory": documented,
    "a part with roles": lambda project: (
        added("src/roles/__init__.py", "")(project),
        added("src/roles/named.py", ROLE)(project),
        added(TOML, ROLES)(project),
    ),
    "what roles name": added(RING, LATER),
    "words above what roles name": changed(RING, "class Later", "# At last.\n\n\nclass Later"),
    "another name of what roles name": changed(RING, "class Later", "class Last"),
    "another function that a role may name": added(
        WINDOW, '\n\ndef in_the_end() -> None:\n    """Another one."""\n'
    ),
    "a function that a role has waited for": added(WINDOW, '\n\ndef then() -> None:\n    """At last."""\n'),
    "who wrote it": added("CITATION.cff", CITED),
    "the version": changed("pyproject.toml", "1.0", "1.1"),
    "git": commit,
}  # fmt: skip


def build(project: Path) -> dict[str, bytes]:
    """A build in the place of the one before, whose files it may take."""
    folder = project / "build" / "site"
    with atomic.written(folder) as out:
        names = site.write_whole(config.load(project / TOML), out)
    assert sorted(names) == sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    return {name: (folder / name).read_bytes() for name in names}


def pages_made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pages that builds make from here on, and the cards of their names, by language and place."""
    made: list[str] = []

    def note(name: str, make: Callable[[context.BuildContext, edition.Page], bytes], ending: str) -> None:
        def noted(build: context.BuildContext, shown: edition.Page) -> bytes:
            made.append(f"{shown.lang}/{shown.source.item.output.removesuffix('.html')}{ending}")
            return make(build, shown)

        monkeypatch.setattr(making, name, noted)

    note("_made", making._made, ".html")
    note("_cards", making._cards, ".cards.js")
    return made


@pytest.mark.nightly
def test_after_every_kind_of_edit_a_build_is_the_one_that_knows_nothing(
    project: Path, tmp_path: Path
) -> None:
    build(project)
    assert len(EDITS) >= 30
    for number, (name, change) in enumerate(EDITS.items()):
        change(project)
        again = build(project)
        other = tmp_path / f"cold_{number}"
        shutil.copytree(project, other, ignore=shutil.ignore_patterns(".cache", "build"))
        cold = build(other)
        shutil.rmtree(other)
        different = [page for page in {*again, *cold} if again.get(page) != cold.get(page)]
        assert different == [], name


@pytest.mark.full
def test_an_edit_makes_the_pages_anew_that_show_it(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build(project)
    made = pages_made(monkeypatch)
    build(project)
    assert made == []
    # Two lessons take from this source: one of them a section, the other one lines.
    chapter = {"ring.cards.js", "ring.html"}
    for name, shown in {
        "words of a source": chapter,
        "words that a lesson shows": chapter | {"row.html"},
        "code that a lesson shows": chapter | {"row.html", "steps.html"},
    }.items():
        EDITS[name](project)
        build(project)
        assert sorted(made) == sorted(f"{lang}/{page}" for lang in ("en", "ja", "zh") for page in shown), name
        made.clear()
    EDITS["a translation"](project)
    build(project)
    assert sorted(made) == ["ja/ring.cards.js", "ja/ring.html"]
    made.clear()
    # A page that somebody has changed, or removed, is put back and need not be made for that.
    whole, (one, other) = (
        build(project),
        (project / "build/site" / name for name in ("ring.html", "index.html")),
    )
    one.write_bytes(bytes(len(whole["ring.html"])))
    other.unlink()
    assert build(project) == whole
    # The foot of every page and all that is cited tell the commit.
    committed = build(commit(project))
    assert made == []
    # Whoever keeps nothing makes the same pages, with the commit from the start.
    monkeypatch.setattr(Origin, "blank", property(lambda origin: origin))
    monkeypatch.setenv("XDG_CACHE_HOME", str(project / ".cache/elsewhere"))
    assert build(project) == committed
    assert git(project, "rev-parse", "HEAD")[:10].encode() in committed["ring.html"]


@pytest.mark.nightly
def test_what_is_damaged_or_foreign_is_made_anew(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(project)
    (kept,) = (project / ".cache/sidelit/work").glob("*.sqlite")
    whole = {"name", "used", "size", "signed", "about", "content"}
    with closing(sqlite3.connect(kept, isolation_level=None)) as database:
        assert {row[1] for row in database.execute("pragma table_info(kept)")} == whole
        entries = database.execute("select name, about, content from kept order by name").fetchall()
        pages = sum(name.endswith((".html", ".cards.js")) for name in first)
        assert len(entries) > pages
        made = pages_made(monkeypatch)
        damages: tuple[Callable[[int], tuple[object, object]], ...] = (
            lambda number: (entries[number][1], entries[number][2][:-1] + b"?"),
            lambda number: (entries[number][1][:-1] + b"?", entries[number][2]),
            lambda number: (b"", b""),
            lambda number: entries[number - 1][1:],
            lambda number: (entries[number][1], entries[number][2][:32]),
            lambda number: (7, None),
        )
        for number, (name, *_) in enumerate(entries):
            about, content = damages[number % len(damages)](number)
            database.execute("update kept set about = ?, content = ? where name = ?", (about, content, name))
    shutil.rmtree(project / "build")
    assert build(project) == first
    assert len(made) == pages
    # The same folder on the disk of somebody else, or sent by somebody.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "elsewhere"))
    made.clear()
    assert build(project) == first
    assert len(made) == pages
    # Another file in its place, and half of it.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for damage in (bytes(20_000), kept.read_bytes()[: kept.stat().st_size // 2 + 7]):
        kept.write_bytes(damage)
        assert build(project) == first


@pytest.mark.full
def test_a_page_with_a_mistake_is_made_by_every_build(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(project / READING, "../glossary.md#term-ring", "../glossary.md#term-rang")
    edit(project / TOML, 'title = "Sample"', 'title = "Sample"\nkeep_going = true')
    told = []
    for _ in range(2):
        notes = Collector()
        site.whole_files(config.load(project / TOML), notes)
        told.append([str(error) for error in notes.errors])
    assert told[0] == told[1] != []


@pytest.mark.full
def test_a_source_that_is_being_typed_makes_no_page(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(project / TOML, 'title = "Sample"', 'title = "Sample"\nkeep_going = true')
    held = (project / RING).read_bytes()

    def write(**last: bytes) -> tuple[dict[str, bytes], site.BuildResult]:
        with atomic.written(project / "build/site") as out:
            done = site.write(config.load(project / TOML), out, last=last)
        return {name: (project / "build/site" / name).read_bytes() for name in done.files}, done

    before, _ = write()
    made = pages_made(monkeypatch)
    edit(project / RING, "LIMIT = 8", "LIMIT = = 8")
    after, done = write(**{RING: held})
    assert (made, after) == ([], before)
    assert [str(error.path) for error in done.skipped] == [RING]
    # Without what it held there is no page of it, and the lessons that show it are wrong.
    with pytest.raises(SidelitError, match=r"no chapter 'src:sample/ring\.py'"):
        write()


@pytest.mark.nightly
def test_whoever_has_no_home_builds_without(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build(project)
    (tmp_path / "file").write_text("", "utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert build(project) == first


def test_what_was_not_used_for_longest_is_removed_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    kept_here = Store(tmp_path / "store")
    assert kept_here.path
    for number, name in enumerate(("aa1", "bb2", "cc3")):
        kept_here.put(name, bytes(1000))
        with closing(sqlite3.connect(kept_here.path, isolation_level=None)) as database:
            database.execute("update kept set used = ? where name = ?", (number, name))
    kept_here.get("aa1")
    kept_here.trim(2200)
    assert [kept_here.get(name) is not None for name in ("aa1", "bb2", "cc3")] == [True, False, True]


def test_what_a_task_reads_is_noted() -> None:
    with graphs.noting() as read:
        tuple(graphs.LazySequence(lambda: (1,), 1, "one"))
        graphs.Noted({1: 2}, "two:{}").get(1)
        text = graphs.NotedText("words", "three")
    assert read == {"one", "two:1"}
    with graphs.noting() as read:
        assert f"{text}" == "words"
    assert read == {"three"}
