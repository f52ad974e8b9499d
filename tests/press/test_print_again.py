"""What `sidelit print` keeps of a folder makes the next run short, and changes no byte of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from press.project import edit, page, sidelit, tree
from sidelit.cache import store
from sidelit.site import content, making, printing

FILES = {
    "ring.py": '''"""# A ring

> A buffer that forgets what is oldest, as $n$ does.

See [the launcher](launch.py#start), and [nothing](nowhere.md).
"""

LIMIT = 3


class Ring:
    """Keeps the last items."""

    def put(self, item):
        """Add an item at the young end."""
        return item[:LIMIT]
''',
    "launch.py": '''"""# The launcher"""
from ring import Ring


def start(rank):
    """Start one rank.

    :param rank: a number, as in $\\nosuch{x}$
    """
    return Ring().put(rank)
''',
    "other.py": '"""# Another file"""\nX = 1\n',
    "broken.py": "a = = 1\n",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that somebody else has written, and a user who has printed nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "many").mkdir()
    for name, text in FILES.items():
        (tmp_path / "many" / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is read and what is made anew, in order."""
    found: list[str] = []
    chapter, made = content.chapter, making._made

    def reading(item: object, *rest: object, **more: object) -> object:
        found.append(f"read {item.source}")
        return chapter(item, *rest, **more)

    def making_(build: object, shown: object) -> bytes:
        found.append(f"made {shown.source.item.output}")
        return made(build, shown)

    monkeypatch.setattr(content, "chapter", reading)
    monkeypatch.setattr(making, "_made", making_)
    return found


def printed(folder: Path, *words: str) -> tuple[dict[str, bytes], str]:
    """The pages, and what was said of them."""
    done = sidelit("print", "many", "--out", "out", "--jobs", "1", *words, cwd=folder)
    return tree(folder / "out"), done.stderr


def without(folder: Path, *words: str) -> tuple[dict[str, bytes], str]:
    """The same where nothing is kept, as for a user without a home."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "home", lambda: None)
        return printed(folder, *words)


def test_a_second_run_makes_nothing_anew_and_says_the_same(folder: Path, made: list[str]) -> None:
    sources = tree(folder / "many")
    first = printed(folder)
    assert {"read many/ring.py", "made ring.html"} <= set(made)
    assert "warning: many/ring.py:5: the link 'nowhere.md'" in first[1]
    assert "skipped: many/broken.py:1: " in first[1]
    made.clear()
    assert printed(folder) == first
    # The list of all files is short, and made by every run.
    assert made == ["made index.html"]
    assert without(folder) == first
    assert tree(folder / "many") == sources
    assert {each.name for each in folder.iterdir()} == {"many", "out", "cache"}


@pytest.mark.cases(now=2, ci=5)
@pytest.mark.parametrize(
    ("name", "old", "new", "anew"),
    [
        # Words are on the page of their file alone; others show its title.
        ("ring.py", "at the young end", "at the end", {"made ring.html"}),
        # A line above it moves what other files link to.
        ("ring.py", "LIMIT = 3", "LIMIT = 3\nNONE = 0", {"made ring.html"}),
        # What was a class is none any more.
        ("ring.py", "class Ring:", "class Rings:", {"made ring.html", "made launch.html"}),
        ("other.py", "X = 1", "X = 2", {"made other.html"}),
        ("broken.py", "a = = 1", "a = 1", {"made broken.html"}),
    ],
)
def test_an_edit_of_one_file_shows(
    folder: Path, made: list[str], name: str, old: str, new: str, anew: set[str]
) -> None:
    before = printed(folder)
    made.clear()
    edit(folder / "many" / name, old, new)
    after = printed(folder)
    assert {each for each in made if each.startswith("read")} == {f"read many/{name}"}
    assert anew <= set(made)
    assert after != before
    assert after == without(folder)


def test_a_file_that_comes_or_goes_shows(folder: Path) -> None:
    printed(folder)
    (folder / "many/launch.py").unlink()
    (folder / "many/later.py").write_text("from other import X\n", encoding="utf-8")
    found = printed(folder)
    assert "launch.html" not in found[0]
    assert "other.html#line-2" in page(folder / "out", "later.html").addresses
    assert found == without(folder)


def test_what_was_asked_for_is_part_of_it(folder: Path) -> None:
    printed(folder)
    for words in (("--lang", "ja"), ("--dialect", "rest")):
        assert printed(folder, *words) == without(folder, *words)


def test_what_is_kept_may_be_lost(folder: Path) -> None:
    first = printed(folder)
    for path in sorted((folder / "cache/sidelit").rglob("*"))[::3]:
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    assert printed(folder) == first


def test_the_last_folders_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(printing, "KEPT", 2)
    kept = folder / "cache/sidelit/printed"
    found = []
    kept.mkdir(parents=True)
    (kept / "odd").symlink_to("nowhere")
    os.utime(kept / "odd", (0, 0), follow_symlinks=False)
    for name in ("a", "b", "c"):
        (folder / name).mkdir()
        (folder / name / "x.py").write_text("x = 1\n", encoding="utf-8")
        sidelit("print", name, "--out", "out", cwd=folder)
        found.append({each.name for each in kept.iterdir()} - {"odd"})
    assert [len(each) for each in found] == [1, 2, 2]
    assert found[2] - found[1]


def test_a_place_that_cannot_be_written_to_costs_time_alone(folder: Path) -> None:
    (folder / "cache/sidelit").mkdir(parents=True)
    (folder / "cache/sidelit/printed").write_bytes(b"")
    assert printed(folder) == without(folder)


def test_a_relative_place_is_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "kept")
    printed(folder)
    assert not (folder / "kept").exists()
