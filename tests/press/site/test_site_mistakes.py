"""A mistake ends in one line that names its place, and the site that is there stays as it is."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from press.project import edit, run, sidelit, tree

Break = Callable[[Path], int]


def in_ring(old: str, new: str) -> Break:
    return lambda sample: edit(sample / "src/sample/ring.py", old, new)


def in_page(old: str, new: str) -> Break:
    return lambda sample: edit(sample / "site/pages/notes/reading.md", old, new)


def in_config(old: str, new: str) -> Break:
    return lambda sample: edit(sample / "site/sidelit.toml", old, new)


def broken_catalogue(sample: Path) -> int:
    sidelit("sync", cwd=sample)
    path = sample / "site/locale/ja/sample/ring.po"
    lines = path.read_text(encoding="utf-8").splitlines()
    place = lines.index('msgid "A ring"')
    lines[place] = 'msgid "A ring'
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return place + 1


def strange_folder(sample: Path) -> int:
    (sample / "site/locale/xx").mkdir(parents=True)
    return 0


def not_text(sample: Path) -> int:
    (sample / "site/pages/notes/reading.md").write_bytes(b"# Notes\n\xff\n")
    return 0


def gone(sample: Path) -> int:
    (sample / "site/pages/pictures/columns.svg").unlink()
    return 7


def pipe(path: str) -> Break:
    """A file that would never end, under the name of one that is read."""

    def broken(sample: Path) -> int:
        place = sample / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.unlink(missing_ok=True)
        os.mkfifo(place)
        return 0

    return broken


def outside(path: str) -> Break:
    """A link that leads out of the project."""

    def broken(sample: Path) -> int:
        (sample.parent / "secret").write_text("# A secret\n", encoding="utf-8")
        (sample / path).unlink(missing_ok=True)
        (sample / path).symlink_to(sample.parent / "secret")
        return 0

    return broken


def deep(path: str, before: str = "", nest: str = "[") -> Break:
    """What a parser that calls itself for each bracket cannot read."""

    def broken(sample: Path) -> int:
        place = sample / path
        place.write_text(before + nest * 100_000, encoding="utf-8")
        return 1

    return broken


def replaced(path: str, text: str) -> Break:
    def broken(sample: Path) -> int:
        (sample / path).write_text(text, encoding="utf-8")
        return 1

    return broken


def beside(name: str, text: str = "x") -> Break:
    def broken(sample: Path) -> int:
        place = sample / "site/pages" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        return 0

    return broken


RING, PAGE, CONFIG = "src/sample/ring.py", "site/pages/notes/reading.md", "site/sidelit.toml"
MISTAKES: dict[str, tuple[str, Break, str]] = {
    "a syntax error": (RING, in_ring("LIMIT = 8", "LIMIT = = 8"), "syntax"),
    "a formula KaTeX refuses": (RING, in_ring("A ring of $N$", r"A ring of $\nosuch$"), "KaTeX refuses"),
    "a link to no file": (RING, in_ring("tools/window.py#Window", "tools/door.py"), "tools/door.py"),
    "a link to no section": (RING, in_ring("tools/window.py#Window", "tools/window.py#Windov"), "'Window'"),
    "a link to no section here": (RING, in_ring("(#Ring.__init__)", "(#Ring.init)"), "Ring.init"),
    "a work nobody entered": (RING, in_ring("bib:knuth1973art", "bib:knuth1974art"), "knuth1973art"),
    "a link to no page": (PAGE, in_page("../bibliography.md", "../bibliographie.md"), "bibliographie.md"),
    "a link to no heading": (PAGE, in_page("#term-ring", "#term-rang"), "term-rang"),
    "a missing picture": (PAGE, gone, "columns.svg"),
    "a page that is not text": (PAGE, not_text, "UTF-8"),
    "a malformed catalogue": ("site/locale/ja/sample/ring.po", broken_catalogue, ""),
    "an unknown language": (CONFIG, in_config('"zh"]', '"xx"]'), "'xx'"),
    "translations into no language": ("site/locale/xx", strange_folder, "'xx'"),
    "TOML that is none": (CONFIG, in_config('title = "Sample"', "title = Sample"), "TOML"),
    "a key nobody knows": (CONFIG, in_config("figures_torch =", "torch ="), "`torch`"),
    "a macro that is no command": (
        CONFIG,
        lambda sample: edit(sample / "site/sidelit.toml", "[[parts]]", "[macros]\nR = 'x'\n\n[[parts]]") + 1,
        "'R' is no command of TeX",
    ),
    "a formula that Python misreads": (
        "src/sample/tools/window.py",
        lambda sample: edit(
            sample / "src/sample/tools/window.py", "Shows the last", r"Shows $1 \times N$ last"
        ),
        "as an escape",
    ),
    "a source that is gone": (CONFIG, in_config("tools/window.py", "tools/door.py"), "tools/door.py"),
    "a source that is a pipe": (RING, pipe(RING), "it is no regular file"),
    "a page that is a pipe": (PAGE, pipe(PAGE), "it is no regular file"),
    "a catalogue that is a pipe": (
        "site/locale/ja/sample/ring.po",
        pipe("site/locale/ja/sample/ring.po"),
        "it is no regular file",
    ),
    "a source that lies elsewhere": (RING, outside(RING), "out of the project's folder"),
    "a page that lies elsewhere": (PAGE, outside(PAGE), "out of the project's folder"),
    "a picture that lies elsewhere": (
        "site/pages/pictures/other.svg",
        outside("site/pages/pictures/other.svg"),
        "out of the project's folder",
    ),
    "a configuration of deep lists": (CONFIG, deep(CONFIG, "title = "), "nested too deeply"),
    "a configuration of deep tables": (CONFIG, deep(CONFIG, "title = ", "{a="), "nested too deeply"),
    "a number without an end": (CONFIG, deep(CONFIG, "title = ", "9"), "not valid TOML"),
    "a glossary of deep lists": (
        "site/glossary.toml",
        deep("site/glossary.toml", "term = "),
        "nested too deeply",
    ),
    "works of deep lists": (
        "site/bibliography.toml",
        deep("site/bibliography.toml", "work = "),
        "nested too deeply",
    ),
    "a ledger of deep lists": ("site/anchors.json", deep("site/anchors.json"), "nested too deeply"),
    "a ledger of deep objects": (
        "site/anchors.json",
        deep("site/anchors.json", nest='{"a":'),
        "nested too deeply",
    ),
    "a ledger that is one number": ("site/anchors.json", deep("site/anchors.json", nest="9"), "not valid"),
    "an address that is a program": (
        CONFIG,
        in_config("https://example.org/blob/", "javascript:alert(1)//"),
        "`source_url` must be a web address",
    ),
    "a drawing with a script": (
        "site/pages/pictures/bad.svg",
        beside("pictures/bad.svg", "<svg><script>1</script></svg>"),
        "this drawing holds a program",
    ),
    "a ledger that writes elsewhere": (
        "site/anchors.json",
        replaced("site/anchors.json", '{"sample/ring": {"": {"address": "../../ring.html"}}}'),
        "not a ledger",
    ),
    "a day of publication that is none": (
        "CITATION.cff",
        replaced("CITATION.cff", "authors: [{name: A}]\ndate-released: soon\n"),
        "is no day",
    ),
    "a page of HTML": ("site/pages/ring.html", beside("ring.html"), "write it as Markdown"),
    "a script in the place of the press's own": (
        "site/pages/assets/sidelit.js",
        beside("assets/sidelit.js"),
        "two files would be written to assets/sidelit.js",
    ),
    "two pages whose names differ in capitals alone": (
        "src/sample/tools/window.py",
        lambda sample: edit(sample / "site/sidelit.toml", 'name = "tools/window"', 'name = "Ring"') * 0,
        "its page Ring.html and ring.html are one file on a disk that tells no capitals apart",
    ),
    "a work without a title": (
        "site/bibliography.toml",
        lambda sample: edit(sample / "site/bibliography.toml", 'title = "The Art', 'note = "The Art') - 2,
        "title",
    ),
}


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_and_the_old_site_stays(sample: Path, name: str) -> None:
    path, mistake, words = MISTAKES[name]
    sidelit("build", cwd=sample)
    line = mistake(sample)
    before = tree(sample / "build")
    told = sidelit("build", cwd=sample, code=1).stderr.rstrip("\n")
    assert "\n" not in told
    assert told.startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert words in told
    assert tree(sample / "build") == before


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["a syntax error", "a link to no heading", "a key nobody knows"])
def test_mkdocs_tells_the_same_and_leaves_the_old_site_too(sample: Path, name: str) -> None:
    path, mistake, words = MISTAKES[name]
    run("mkdocs", "build", "--strict", cwd=sample)
    line = mistake(sample)
    before = tree(sample / "build")
    done = run("mkdocs", "build", "--strict", cwd=sample)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"{path}:{line}: " in done.stderr
    assert words in done.stderr
    assert "site/ring.html" in before
    assert tree(sample / "build") == before


def test_all_mistakes_are_told_at_once(sample: Path) -> None:
    first = edit(sample / "src/sample/ring.py", "A ring of $N$", r"A ring of $\nosuch$")
    second = edit(sample / "site/pages/notes/reading.md", "#term-ring", "#term-rang")
    third = edit(sample / "site/pages/index.md", "$1 + 1$", r"$\frac1$")
    told = sidelit("build", cwd=sample, code=1).stderr.splitlines()
    assert len(told) == 3
    assert {re.match(r"(.*?:\d+): ", line)[1] for line in told} == {  # type: ignore[index]
        f"src/sample/ring.py:{first}",
        f"site/pages/notes/reading.md:{second}",
        f"site/pages/index.md:{third}",
    }


def test_a_build_that_is_asked_to_goes_on_and_tells_every_gap(sample: Path) -> None:
    wrong = edit(sample / "src/sample/ring.py", "A ring of $N$", r"A ring of $\nosuch$")
    broken = edit(sample / "src/sample/tools/window.py", "first = 0", "first = = 0")
    sidelit("build", cwd=sample, code=1)
    assert not (sample / "build/site").exists()
    done = sidelit("build", "--keep-going", cwd=sample)
    assert done.stdout.endswith(", and 1 file skipped\n")
    assert f"skipped: src/sample/tools/window.py:{broken}: not valid Python: invalid syntax\n" in done.stderr
    assert done.stderr.count(f"warning: src/sample/ring.py:{wrong}: KaTeX refuses") == 1
    # The link to the source that was left out stays words.
    assert any("tools/window.py#Window" in line for line in done.stderr.splitlines())
    html = (sample / "build/site/ring.html").read_text(encoding="utf-8")
    assert r"$\nosuch$" in html
    assert "The window" in html
    assert not (sample / "build/site/tools/window.html").exists()


@pytest.mark.full
def test_a_mistake_in_a_translation_is_told_at_its_place_in_the_catalogue(sample: Path) -> None:
    sidelit("sync", cwd=sample)
    path = sample / "site/locale/ja/sample/tools/window.po"
    lines = path.read_text(encoding="utf-8").splitlines()
    place = next(n for n, text in enumerate(lines) if text.startswith('msgid "It works on any [ring]')) + 1
    lines[place] = 'msgstr "[リング](../rong.py) で動く。"'
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith(f"site/locale/ja/sample/tools/window.po:{place + 1}: ")
    told = sidelit("build", "--keep-going", cwd=sample).stderr
    assert f"warning: site/locale/ja/sample/tools/window.po:{place + 1}: the link" in told


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


def test_outside_a_project_the_command_says_what_to_do(tmp_path: Path) -> None:
    told = sidelit("build", cwd=tmp_path, code=1).stderr
    assert "site/sidelit.toml" in told
    assert told.count("\n") == 1


def test_a_file_in_the_place_of_the_site_is_not_overwritten(sample: Path) -> None:
    (sample / "build").mkdir()
    (sample / "build/site").write_text("mine", encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.count("\n") == 1
    assert (sample / "build/site").read_text(encoding="utf-8") == "mine"


@pytest.mark.full
def test_a_folder_that_holds_something_else_is_not_overwritten(sample: Path) -> None:
    before = tree(sample)
    commands = (["build", "--out", "."], ["build", "--out", "src"], ["print", "src", "--out", "site"])
    for command in commands:
        told = sidelit(*command, cwd=sample, code=1).stderr
        assert "not a site" in told
        assert told.count("\n") == 1
    (sample / "build/site").mkdir(parents=True)
    (sample / "build/site/mine.txt").write_text("mine", encoding="utf-8")
    done = run("mkdocs", "build", "--strict", cwd=sample)
    assert done.returncode == 1
    assert "not a site" in done.stderr
    assert {
        name: data for name, data in tree(sample).items() if not name.startswith((".cache", "build"))
    } == before
    assert (sample / "build/site/mine.txt").read_text(encoding="utf-8") == "mine"


def test_the_hint_of_a_mistake_follows_the_page_that_a_link_leads_to(sample: Path) -> None:
    with (sample / "site/pages/index.md").open("a", encoding="utf-8") as index:
        index.write("\nSee [it](notes/reading.md#a-late-heading).\n")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert "has no section 'a-late-heading'" in told
    assert "did you mean" not in told
    with (sample / "site/pages/notes/reading.md").open("a", encoding="utf-8") as reading:
        reading.write("\n## A later heading\n\nWords.\n")
    assert "did you mean 'a-later-heading'?" in sidelit("build", cwd=sample, code=1).stderr
