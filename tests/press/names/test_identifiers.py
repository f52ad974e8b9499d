"""Names in code are links on the pages of a site, of a lesson, and of files that are only printed."""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest

from press.project import sidelit

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
