"""Names in code are links on the pages of a site, of a lesson, and of files that are only printed."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from press.project import sidelit, unbroken

CONFIG = """\
title = "Two"
languages = ["en", "ja"]

[[inventories]]
file = "names/python.txt"
url = "https://docs.example.org/{place}"

[[parts]]
number = "I"
label = "All"
chapters = [
    { source = "two/low.py" },
    { source = "two/high.py", output = "up/high.html" },
]

[course]
label = "Course"
lessons = [{ source = "lessons/first.md" }]
"""
LOW = '''\
"""# Low"""

# A number.
STEP = 1


class Thing:
    """A thing."""

    size = STEP

    def grow(self) -> int:
        """Get larger."""
        return self.size & STEP


# sidelit: hide
def secret():
    pass
# sidelit: show
'''
HIGH = '''\
"""# High"""

from two.low import Thing, secret


def use(thing: Thing) -> int:
    """Use a thing."""
    secret()
    print(len("a"), thing.grow)
    return thing.grow()
'''
LESSON = """\
# First
> A lesson.
:minutes: 5
:needs: nothing
:aim: see a section

::: section src:two/high.py#use
:::
"""
NAMES = "# Names.\n@ functions.html#{name}\nlen\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {
        "site/sidelit.toml": CONFIG,
        "site/names/python.txt": NAMES,
        "src/two/low.py": LOW,
        "src/two/high.py": HIGH,
        "site/lessons/first.md": LESSON,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def links(page: Path) -> list[tuple[str, str]]:
    found = re.findall(
        r'<a class="n" href="([^"]*)" tabindex="-1">([^<]*)</a>', page.read_text(encoding="utf-8")
    )
    return [(name, href) for href, name in found]


def test_names_lead_to_sections_lines_and_documentation_in_every_language(project: Path) -> None:
    sidelit("build", cwd=project)
    site = project / "build" / "site"
    for folder in (site, site / "ja"):
        assert links(folder / "low.html") == [("STEP", "#line-4"), ("size", "#line-10"), ("STEP", "#line-4")]
        assert links(folder / "up/high.html") == [
            ("low", "../low.html"),
            ("Thing", "../low.html#Thing"),
            ("Thing", "../low.html#Thing"),
            ("len", "https://docs.example.org/functions.html#len"),
            ("thing", "#line-6"),
            ("grow", "../low.html#Thing.grow"),
            ("thing", "#line-6"),
            ("grow", "../low.html#Thing.grow"),
        ]
        assert links(folder / "first.html")[:2] == [
            ("Thing", "low.html#Thing"),
            ("len", "https://docs.example.org/functions.html#len"),
        ]
        assert ("thing", "up/high.html#line-6") in links(folder / "first.html")


def test_printed_files_link_to_each_other(project: Path) -> None:
    (project / "src/two/__init__.py").touch()
    sidelit("print", "src/two", "--out", "out", cwd=project)
    assert ("grow", "low.html#Thing.grow") in links(project / "out" / "high.html")
    sidelit("print", "src/two/high.py", "--out", "one", cwd=project)
    assert {href for _, href in links(project / "one" / "high.html")} == {"#line-6"}


KINDS = '''\
"""What there is.

See :mod:`three.use`, :func:`three.use.use`, :func:`.use.use`, :func:`.use` and :mod:`three.kinds`.
"""

LIMIT = 8


class Kind:
    """A kind; see :meth:`make`, :attr:`~Kind.size`, :data:`LIMIT` and :class:`!Kind`."""

    def __init__(self):
        self.size = LIMIT

    def make(self):
        """Made by :py:func:`~three.use.use`, or :meth:`.make`."""


class Sub(Kind):
    """Has :meth:`Sub.make`, :meth:`.Kind.make`, no :meth:`break`; see :func:`len`, :func:`abs`."""


@overload
def load(name): ...
def load(name):
    """Not :func:`.load`."""
'''
USE = '''\
"""Use it."""

from three import kinds


def use():
    """Takes a :class:`three.Kind`, :class:`~three.kinds.Kind`, :class:`.Kind` or :class:`kinds.Kind`.

    Args:
        kind: :func:`words <three.kinds.load>` of :class:`Kind`, :class:`three.kinds.Secret`.
    """


# sidelit: hide
class Secret:
    """Nothing."""
# sidelit: show
'''
OTHER = '''\
"""Before :class:`three.use.Secret`, :mod:`.kinds`, :class:`.kinds.Kind` and :attr:`.Kind.size`."""
'''
# By their pages, the words of each role and where they lead.
ROLES = {
    "kinds": [
        *(("three.use", "use.html"), ("three.use.use", "use.html#use")),
        ("use.use", "use.html#use"),
        *(("make", "#Kind.make"), ("size", "#line-13"), ("LIMIT", "#line-6")),
        *(("use", "use.html#use"), ("make", "#Kind.make")),
        *(("Sub.make", "#Kind.make"), ("Kind.make", "#Kind.make")),
        ("len", "https://docs.example.org/functions.html#len"),
        ("load", "#load"),
    ],
    "use": [
        *(("three.Kind", "kinds.html#Kind"), ("Kind", "kinds.html#Kind"), ("Kind", "kinds.html#Kind")),
        *(("kinds.Kind", "kinds.html#Kind"), ("words", "kinds.html#load"), ("Kind", "kinds.html#Kind")),
    ],
    "other": [
        *(("kinds", "kinds.html"), ("kinds.Kind", "kinds.html#Kind"), ("Kind.size", "kinds.html#line-13")),
    ],
}


def roles(page: Path) -> list[tuple[str, str]]:
    words = "".join(re.findall(r'(?s)<div class="doc.*?<p class="acts">', page.read_text("utf-8")))
    found = re.findall(r'<a href="([^"]*)"(?: rel="noopener")?><code>([^<]*)</code></a>', unbroken(words))
    return [(name, href) for href, name in found]


@pytest.mark.parametrize("dialect", ["auto", "rest", "google", "numpy"])
def test_roles_of_sphinx_lead_to_what_they_name(project: Path, dialect: str) -> None:
    (project / "src/three").mkdir()
    files = {"__init__": "from three.kinds import Kind\n", "kinds": KINDS, "use": USE, "other": OTHER}
    for name, text in files.items():
        (project / f"src/three/{name}.py").write_text(text, "utf-8")
    part = f'[[parts]]\nlabel = "Three"\nfolder = "src/three"\ndialect = "{dialect}"\nchapters = ["*.py"]\n'
    (project / "site/sidelit.toml").write_text(CONFIG.replace("[course]", f"{part}\n[course]"), "utf-8")
    sidelit("build", cwd=project)
    for folder in (project / "build/site", project / "build/site/ja"):
        assert {name: roles(folder / f"three/{name}.html") for name in ROLES} == ROLES
    # Two functions are called `use`, so that `.use` is none of them.
    sidelit("print", "src", "--out", "out", "--dialect", dialect, cwd=project)
    printed = {name: [each for each in found if each[0] != "len"] for name, found in ROLES.items()}
    assert {name: roles(project / f"out/three/{name}.html") for name in ROLES} == printed


def test_what_sphinx_lists_is_read(project: Path) -> None:
    packed = zlib.compress(b"len py:function 1 functions.html#$ -\nlen std:label -1 other.html Len\n")
    head = b"# Sphinx inventory version 2\n# Project: P\n# Version: 1\n# The rest is packed with zlib.\n"
    (project / "site/names/objects.inv").write_bytes(head + packed)
    (project / "site/sidelit.toml").write_text(CONFIG.replace("python.txt", "objects.inv"), "utf-8")
    sidelit("build", cwd=project)
    assert ("len", "https://docs.example.org/functions.html#len") in links(
        project / "build/site/up/high.html"
    )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("names/python.txt", "names/missing.txt", "site/names/missing.txt: cannot be read: No such file"),
        ("names/python.txt", "../../etc.txt", "etc.txt"),
        ("{place}", "", "is no address with a {place} in it"),
        ('file = "names/python.txt"\n', "", "the key `file` is missing"),
    ],
)
def test_an_inventory_that_is_wrong_is_told(project: Path, old: str, new: str, told: str) -> None:
    path = project / "site/sidelit.toml"
    path.write_text(CONFIG.replace(old, new), "utf-8")
    assert told in sidelit("build", cwd=project, code=1).stderr


@pytest.mark.parametrize("line", ["len len len", "le-n", "@"])
def test_a_list_that_is_wrong_is_told_with_its_line(project: Path, line: str) -> None:
    (project / "site/names/python.txt").write_text(f"{NAMES}{line}\nabs\n", "utf-8")
    told = sidelit("build", cwd=project, code=1).stderr
    assert f"site/names/python.txt:{5 if line == '@' else 4}:" in told
