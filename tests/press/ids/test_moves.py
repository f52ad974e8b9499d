"""Chapters are moved, renamed, split, merged and deleted, and what a reader kept still leads to its section.

The history of a small book is replayed with the commands an author would type.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import polib
import pytest

from press.project import sidelit, tree

HEAD = (
    'title = "Book"\ntagline = "A small one."\nlanguages = ["en", "ja"]\n\n[[front]]\nsource = "index.md"\n\n'
)
SOURCES = {
    "ring.py": '''"""# A ring

> A buffer that forgets what is oldest.

[The launcher](launch.py#parse) makes one, and [the exchange](exchange.py#Exchange.send) fills it.
"""


class Ring:
    """Keeps the last items, in the order in which they came."""

    def put(self, item):
        """Add an item at the young end."""
        # The old end gives way by itself, since the deque is bounded.
        self.items.append(item)


def digest(data):
    """Name some bytes by what they hold."""
    return hash(data)
''',
    "launch.py": '''"""# The launcher

> It starts what a command line asks for.
"""


class Launcher:
    """Starts the ranks and waits for all of them."""

    def start(self):
        self.ready = True
        for rank in self.ranks:
            rank.start()


def parse(words):
    """Read the words of a command line.

    A word with two dashes is an option, and the next word is its value.
    """
    # An option without a value is a switch, which is on.
    found = {word: True for word in words}
    for word in words:
        check(word)
    return found
''',
    "exchange.py": '''"""# The exchange

> Every rank gives each of the others a piece.
"""


class Exchange:
    """Sends a piece to every rank and gets one from each."""

    def send(self, pieces):
        """Hand the pieces out, the first one to rank 0."""
        return [self.link(rank, piece) for rank, piece in enumerate(pieces)]


def digest(data):
    """Name some bytes by what they hold."""
    return hash(data)
''',
    "old.py": '''"""# The old way

> It was slower.
"""


def slow():
    """Do it one by one."""
    return [one() for one in all()]
''',
}
INDEX = """# Book

[Put](src:book/ring.py#Ring.put), [parse](src:book/launch.py#parse),
[send](src:book/exchange.py#Exchange.send).
"""


@dataclass
class Book:
    """The project, its author's commands, and what its readers have kept."""

    root: Path
    kept: dict[str, str] = field(default_factory=dict)
    """Every address with `#id` that was ever published, and words of its section."""

    def chapters(self, *entries: str) -> None:
        lines = "".join(f"    {{ {entry} }},\n" for entry in entries)
        part = f'[[parts]]\nlabel = "All"\nfolder = "src/book"\nchapters = [\n{lines}]\n'
        (self.root / "site/sidelit.toml").write_text(HEAD + part, encoding="utf-8")

    def run(self, *words: str, code: int = 0) -> str:
        """Give a command; returns what it said."""
        said = sidelit(*words, cwd=self.root, code=code)
        return said.stdout + said.stderr

    def write(self, name: str, text: str) -> None:
        path = self.root / "src/book" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def read(self, name: str) -> str:
        return (self.root / "src/book" / name).read_text(encoding="utf-8")

    def move(self, old: str, new: str) -> None:
        self.write(new, self.read(old))
        (self.root / "src/book" / old).unlink()

    def publish(self, *redirects: str) -> None:
        self.run("publish", *(word for each in redirects for word in ("--redirect", each)))

    def build(self) -> dict[str, bytes]:
        """Build the site, and see that no reader of an old address is lost."""
        self.run("build")
        for place, words in self.kept.items():
            for lang in ("", "ja/"):
                found = follow(self.root / "build/site", lang + place)
                assert words in found, f"{lang}{place} leads to {found[:200]!r}"
        return tree(self.root / "build/site")

    def keep(self) -> None:
        """Readers keep every section of the site as it is now."""
        for path in sorted((self.root / "build/site").glob("*.html")):
            text = path.read_text(encoding="utf-8")
            for found in re.finditer(r'<section id="([^"]+)"[^>]*>(.*?)</section>', text, re.DOTALL):
                self.kept[f"{path.name}#{found[1]}"] = phrase(found[2])

    def states(self) -> dict[str, tuple[int, int]]:
        """How many sentences of each chapter are current, and how many are not."""
        rows = [row for row in json.loads(self.run("status", "--json")) if row["page"].startswith("book/")]
        return {row["page"]: (row["current"], row["recheck"] + row["stale"] + row["missing"]) for row in rows}


def phrase(section: str) -> str:
    """Words by which a section is known again: its first sentence, or its first line of code."""
    said = re.search(r"<p[^>]*>(?!<a )([^<]{8,})", section)
    if said:
        return said[1]
    line = re.search(r'class="line[^>]*>.*?</a>(.*)', section)
    assert line, section
    return plain(line[1]).strip()


def plain(html: str) -> str:
    return re.sub(r"<[^>]+>", "", html)


def follow(site: Path, place: str) -> str:
    """What a reader without scripts finds at an old address: the text of a section, a click away at most."""
    address, _, anchor = place.partition("#")
    text = (site / address).read_text(encoding="utf-8")
    link = re.search(rf'<li id="{re.escape(anchor)}"><a href="([^"]+)">', text)
    if link:
        there, _, section = link[1].partition("#")
        path = (site / address).parent / unquote(there)
        return follow(site, f"{path.relative_to(site)}#{unquote(section)}")
    for found in re.finditer(r"<section id=.*?</section>", text, re.DOTALL):
        if f'id="{anchor}"' in found[0]:
            return plain(found[0])
    raise AssertionError(f"{place} leads nowhere")


def translate_all(root: Path) -> None:
    """A translator does all there is."""
    for path in (root / "site/locale/ja").rglob("*.po"):
        catalogue = polib.pofile(str(path), wrapwidth=0)
        for entry in catalogue:
            # English stays in it, so that a section is known by its words in each language.
            entry.msgstr = entry.msgstr or f"訳：{entry.msgid}"
        catalogue.save()


@pytest.fixture
def book(tmp_path: Path) -> Book:
    made = Book(tmp_path)
    (tmp_path / "site/pages").mkdir(parents=True)
    (tmp_path / "site/pages/index.md").write_text(INDEX, encoding="utf-8")
    (tmp_path / "src/book").mkdir(parents=True)
    for name, text in SOURCES.items():
        made.write(name, text)
    made.chapters(*(f'source = "{name}"' for name in SOURCES))
    return made


def parts_of(text: str) -> tuple[str, str]:
    """The launcher without `parse`, and `parse` alone."""
    head, mark, tail = text.partition("def parse(")
    return head.rstrip() + "\n", mark + tail


@pytest.mark.full
def test_the_history_of_a_book(book: Book) -> None:
    book.run("sync")
    translate_all(book.root)
    book.publish()
    first = book.build()
    book.keep()
    before = book.states()
    assert {state[1] for state in before.values()} == {0}
    assert {"ring.html#Ring.put", "launch.html#parse", "exchange.html#Exchange.send"} <= set(book.kept)
    catalogues = tree(book.root / "site/locale")

    # A file moves, and nothing else changes but where it says that it lies.
    book.move("ring.py", "zero/ring.py")
    book.move("exchange.py", "zero/exchange.py")
    entries = [
        'source = "zero/ring.py"',
        'source = "launch.py"',
        'source = "zero/exchange.py"',
        'source = "old.py"',
    ]
    book.chapters(*entries)
    moved = book.build()
    as_it_was = {
        name: data.replace(b"book/zero/", b"book/").replace(b"book.zero.", b"book.")
        for name, data in moved.items()
    }
    assert as_it_was == first
    assert "0 catalogues" in book.run("sync")
    assert tree(book.root / "site/locale") == catalogues
    ledger = (book.root / "site/anchors.json").read_bytes()
    book.publish()
    assert (book.root / "site/anchors.json").read_bytes() == ledger

    # A page is renamed: its old address forwards, and its translations come along.
    book.move("launch.py", "zero/start.py")
    entries[1] = 'source = "zero/start.py"'
    book.chapters(*entries)
    told = book.run("build", code=1)
    line = ledger.decode().splitlines().index(' "book/launch": {') + 1
    assert told.startswith(f"site/anchors.json:{line}: the published page 'book/launch' would vanish; ")
    assert 'write `was = ["launch"]` in the entry of src/book/zero/start.py' in told
    entries[1] = 'source = "zero/start.py", was = ["launch"]'
    book.chapters(*entries)
    assert book.states()["book/start"] == before["book/launch"]
    renamed = book.build()
    assert {name for name in renamed.keys() - first.keys() if name.endswith(".html")} == {
        "start.html",
        "ja/start.html",
    }
    # An address stays, though what its page had beside it goes with the page.
    assert {name for name in first if not name.endswith(".cards.js")} <= renamed.keys()
    book.run("sync")
    catalogue = "ja/book/{}.po".format
    kept = tree(book.root / "site/locale")
    assert kept.pop(catalogue("start")) == catalogues[catalogue("launch")]
    assert kept == {name: data for name, data in catalogues.items() if name != catalogue("launch")}
    assert book.states()["book/start"] == before["book/launch"]
    book.publish()
    # The ledger knows of it now, so the entry need not.
    entries[1] = 'source = "zero/start.py"'
    book.chapters(*entries)
    assert book.build().keys() == renamed.keys()
    book.keep()

    # A page is split: the sections that left it lead on from both of its addresses.
    head, tail = parts_of(book.read("zero/start.py"))
    book.write("zero/start.py", head)
    book.write("command.py", f'"""# The command line\n\n> Words become options.\n"""\n\n\n{tail}')
    entries.append('source = "command.py"')
    book.chapters(*entries)
    book.build()
    states = book.states()
    assert states["book/start"][1] == 0
    # Its title and its lede are new.
    assert states["book/command"] == (before["book/launch"][0] - states["book/start"][0], 2)
    book.run("sync")
    assert book.states()["book/command"] == states["book/command"]
    book.publish()
    book.build()
    book.keep()

    # A page is merged into another, where a definition of its name is already.
    head, _, _ = book.read("zero/exchange.py").partition("def digest(")
    ring = book.read("zero/ring.py")
    book.write("zero/ring.py", ring + "\n\n" + head.partition('"""\n\n\n')[2])
    (book.root / "src/book/zero/exchange.py").unlink()
    entries = ['source = "zero/ring.py", was = ["exchange"]', entries[1], entries[3], entries[4]]
    book.chapters(*entries)
    # The words at the head of the page that is gone are gone with it: its readers find the other page.
    book.kept["exchange.html#module"] = book.kept["ring.html#module"]
    book.build()
    assert book.states()["book/ring"] == (before["book/ring"][0] + before["book/exchange"][0] - 3, 0)
    book.run("sync")
    assert book.states()["book/ring"] == (before["book/ring"][0] + before["book/exchange"][0] - 3, 0)
    assert not (book.root / "site/locale/ja/book/exchange.po").exists()
    book.publish()
    book.build()
    book.keep()

    # A page is deleted: the author says where its readers go, page and sections.
    (book.root / "src/book/old.py").unlink()
    entries = [entries[0], 'source = "zero/start.py", was = ["old"]', entries[3]]
    book.chapters(*entries)
    told = book.run("build", code=1)
    assert told.startswith("src/book/zero/start.py: the published id 'book/old#slow' would lead nowhere; ")
    book.publish("book/old#slow=book/ring#Ring.put")
    book.kept["old.html#slow"] = book.kept["ring.html#Ring.put"]
    book.kept["old.html#module"] = book.kept["start.html#module"]
    book.build()
    book.keep()

    # Back under an old name, without a word in the configuration: what was kept still leads there.
    book.move("zero/start.py", "launch.py")
    entries = ['source = "zero/ring.py"', 'source = "launch.py", was = ["start"]', entries[2]]
    book.chapters(*entries)
    site = book.build()
    assert b"Launcher.start" in site["launch.html"]
    book.publish()
    book.build()
    assert "start.html" in site
    assert "book/start" not in json.loads((book.root / "site/anchors.json").read_text(encoding="utf-8"))
