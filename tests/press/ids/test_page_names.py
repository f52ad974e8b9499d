"""What a page is called, where it stands, and what is at the addresses where it stood."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from press import project
from press.project import SAMPLE_PAGES, Html, edit, page, run, sidelit, tree
from sidelit.config import config
from sidelit.errors import SidelitError

RING = '{ source = "ring.py", run = "python -m sample.ring" }'
CONFIG = "site/sidelit.toml"


def move(sample: Path, entry: str, source: str = "deep/ring.py") -> int:
    """Move the ring's file and write another entry for it; returns the line of the entry."""
    path = sample / "src/sample" / source
    path.parent.mkdir(exist_ok=True)
    (sample / "src/sample/ring.py").rename(path)
    return edit(sample / CONFIG, RING, entry)


def built(sample: Path) -> Path:
    sidelit("build", cwd=sample)
    return sample / "build/site"


def pages(folder: Path) -> set[str]:
    return {name for name in tree(folder) if name.endswith(".html") and not name.startswith(("ja/", "zh/"))}


@pytest.mark.parametrize(
    ("entry", "name", "address", "old"),
    [
        ('source = "ring.py"', "sample/ring", "ring.html", []),
        ('source = "deep/ring.py"', "sample/ring", "ring.html", []),
        ('source = "deep/loop.py"', "sample/loop", "loop.html", []),
        ('source = "deep/loop.py", name = "ring"', "sample/ring", "ring.html", []),
        ('source = "deep/loop.py", output = "ring.html"', "sample/loop", "ring.html", []),
        ('source = "deep/ring.py", name = "deep/ring"', "sample/deep/ring", "deep/ring.html", []),
        ('source = "deep/loop.py", was = ["ring", "old/ring"]', "sample/loop", "loop.html",
         [("sample/ring", "ring.html"), ("sample/old/ring", "old/ring.html")]),
    ],
)  # fmt: skip
def test_the_name_decides_the_address(
    sample: Path, entry: str, name: str, address: str, old: list[tuple[str, str]]
) -> None:
    (sample / "src/sample/deep").mkdir()
    for stem in ("loop", "ring"):
        (sample / f"src/sample/deep/{stem}.py").write_text("", encoding="utf-8")
    edit(sample / CONFIG, RING, f"{{ {entry} }}")
    chapter = config.load(sample / CONFIG).chapters[0]
    assert (chapter.name, chapter.output) == (name, address)
    assert [(each.name, each.output) for each in chapter.former if each.told] == old


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("said", ['name = "ring"', 'output = "ring.html"', 'was = ["ring"]'])
def test_links_to_a_renamed_file_go_on_working(sample: Path, said: str) -> None:
    move(sample, f'{{ source = "deep/loop.py", {said} }}', "deep/loop.py")
    # The sources and the pages link to `ring.py`, which nobody mended.
    site = built(sample)
    now = "loop.html" if "was" in said else "ring.html"
    assert pages(site) == {*SAMPLE_PAGES, "contents.html", now}
    assert f"../{now}" in page(site, "tools/window.html").addresses
    assert f"{now}#Ring.put" in page(site, "index.html").addresses


def test_an_old_address_has_a_page_in_every_language_and_is_in_no_list(sample: Path) -> None:
    move(sample, '{ source = "deep/loop.py", was = ["old/ring"] }', "deep/loop.py")
    edit(sample / "src/sample/tools/window.py", "../ring.py", "../loop.py")
    edit(sample / "site/pages/index.md", "sample/ring.py", "sample/loop.py")
    site = built(sample)
    for prefix, lang in (("", "en"), ("ja/", "ja"), ("zh/", "zh-Hans")):
        html = (site / f"{prefix}old/ring.html").read_text(encoding="utf-8")
        shown = Html(html)
        assert shown.lang == lang
        assert '<link rel="canonical" href="../loop.html">' in html
        assert '<noscript><meta http-equiv="refresh" content="0; url=../loop.html"></noscript>' in html
        assert '<meta name="robots" content="noindex">' in html
        assert 'frame.js" defer' in html
        assert '<a class="forward" ' in html
        # One link a section, each under the id that it had.
        target = page(site, f"{prefix}loop.html")
        for name in target.sections:
            assert f'<li id="{name}"><a href="../loop.html#{name}">' in html
        assert not shown.sections
    linked = {
        address
        for name in tree(site)
        if name.endswith(".html") and "old/ring" not in name
        for address in page(site, name).addresses
    }
    assert not [address for address in linked if "old/ring" in address]
    assert 'class="forward"' not in (site / "loop.html").read_text(encoding="utf-8")


def test_a_release_notes_where_a_page_was_that_no_release_knew(sample: Path) -> None:
    entry = '{ source = "deep/loop.py", was = ["ring"] }'
    move(sample, entry, "deep/loop.py")
    site = tree(built(sample))
    sidelit("publish", cwd=sample)
    edit(sample / CONFIG, entry, '{ source = "deep/loop.py" }')
    assert tree(built(sample)) == site


def test_a_page_of_prose_is_renamed_too(sample: Path) -> None:
    edit(sample / CONFIG, 'source = "notes/reading.md"', 'source = "notes/how.md"\nwas = ["notes/reading"]')
    (sample / "site/pages/notes/reading.md").rename(sample / "site/pages/notes/how.md")
    site = built(sample)
    # The home page still links to `notes/reading.md#the-two-columns`.
    assert "notes/how.html#the-two-columns" in page(site, "index.html").addresses
    old = page(site, "notes/reading.html")
    assert {"how.html", "how.html#the-two-columns", "how.html#the-works"} <= set(old.addresses)
    assert "pictures/columns.svg" in tree(site)


READING = '[[front]]\nsource = "notes/reading.md"\n'


def test_a_section_of_prose_goes_to_another_page(sample: Path) -> None:
    # The home page links to `notes/reading.md#the-two-columns`, and that section is elsewhere now.
    told = 'was = ["notes/old"]\n[front.moved]\nthe-two-columns = "more.md#columns"\nall = "more.md"\n'
    edit(sample / CONFIG, READING, f'{READING}\n{told}\n[[front]]\nsource = "more.md"\n')
    edit(sample / "site/pages/notes/reading.md", "## The two columns", "## What is left")
    (sample / "site/pages/more.md").write_text("# More\n\n## Columns\n\nText.\n", encoding="utf-8")
    site = built(sample)
    assert "more.html#columns" in page(site, "index.html").addresses
    old = page(site, "notes/reading.html")
    assert {"../more.html#columns", "../more.html"} <= set(old.addresses)
    assert {"the-two-columns", "all"} <= set(old.ids)
    # The page had another address before that.
    assert {"../more.html#columns", "reading.html"} <= set(page(site, "notes/old.html").addresses)


@pytest.mark.parametrize(
    ("moved", "told"),
    [
        ('old = "index"', "'index' in `moved` is not a place on a page of prose; write a page and a heading"),
        ("old = 1", "1 in `moved` is not a place on a page of prose; write a page and a heading"),
        ('old = "no.md#a"', "`moved` leads to site/pages/no.md, which is no page of the site"),
        ('old = "notes/reading.md#the-two-column"', "`moved` leads to 'the-two-column', which is no section "
         "of site/pages/notes/reading.md; did you mean 'the-two-columns'?"),
        ('the-works = "index.md"', "'the-works' in `moved` is a section of site/pages/notes/reading.md"),
    ],
)  # fmt: skip
def test_a_section_that_is_not_there_is_named(sample: Path, moved: str, told: str) -> None:
    line = edit(sample / CONFIG, READING, f"{READING}\n[front.moved]\n{moved}\n") + 4
    assert f"{CONFIG}:{line}: {told}" in sidelit("build", cwd=sample, code=1).stderr


@pytest.mark.nightly
def test_mkdocs_writes_old_addresses_too(sample: Path) -> None:
    move(sample, '{ source = "deep/loop.py", was = ["ring"] }', "deep/loop.py")
    sidelit("build", "--out", sample / "alone", cwd=sample)
    done = run("mkdocs", "build", "--strict", cwd=sample)
    assert done.returncode == 0, done.stderr
    assert tree(sample / "build/site") == tree(sample / "alone")
    assert b'class="forward"' in (sample / "alone/ring.html").read_bytes()


# ## Links


def second_window(sample: Path) -> None:
    (sample / "src/sample/deep").mkdir()
    (sample / "src/sample/deep/window.py").write_text(
        '"""# Another window\n\n> Deeper.\n"""\n', encoding="utf-8"
    )
    edit(sample / CONFIG, RING, f'{RING},\n    {{ source = "deep/window.py" }}')


def test_a_link_finds_a_file_that_moved_by_its_name(sample: Path) -> None:
    # It leads from `deep/ring.py` to `tools/window.py`, and from `tools/window.py` to `../ring.py`.
    move(sample, '{ source = "deep/ring.py" }')
    site = built(sample)
    assert "tools/window.html#Window" in page(site, "ring.html").addresses
    assert "../ring.html" in page(site, "tools/window.html").addresses
    assert "ring.html#Ring.put" in page(site, "index.html").addresses


@pytest.mark.full
def test_a_link_to_one_of_several_files_says_which(sample: Path) -> None:
    second_window(sample)
    # `tools/window.py` lies where the link says; `window.py` is the end of two paths.
    sidelit("build", cwd=sample)
    line = edit(sample / "src/sample/ring.py", "(tools/window.py#Window)", "(window.py#Window)")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told == (
        f"src/sample/ring.py:{line}: the link 'window.py' may lead to several pages: "
        "src/sample/deep/window.py, src/sample/tools/window.py; "
        "write as much of the path as tells them apart\n"
    )
    # As much of the path as tells them apart need not be all of it, nor begin here.
    edit(sample / "src/sample/ring.py", "(window.py#Window)", "(elsewhere/tools/window.py#Window)")
    sidelit("build", cwd=sample)


# ## What is filed under the name


def test_a_renamed_page_is_cited_and_reviewed_under_either_name(sample: Path) -> None:
    sidelit("publish", cwd=sample)
    move(sample, '{ source = "deep/loop.py", was = ["ring"] }', "deep/loop.py")
    first = sidelit("cite", "sample/loop#Ring.put", cwd=sample).stdout
    assert "src/sample/deep/loop.py, section Ring.put" in first
    assert "@misc{sample:sample/loop:Ring.put," in first
    for old in ("sample/ring#Ring.put", "ring.html#Ring.put", "Ring.put"):
        assert sidelit("cite", old, cwd=sample).stdout == first
    assert "sample/loop " in sidelit("status", cwd=sample).stdout
    assert "0 translations" in sidelit("reviewed", "sample/loop", cwd=sample).stdout


def test_a_renamed_file_is_printed_with_its_translations(sample: Path) -> None:
    sidelit("sync", cwd=sample)
    path = sample / "site/locale/ja/sample/ring.po"
    edit(path, 'msgid "A ring"\nmsgstr ""', 'msgid "A ring"\nmsgstr "輪"')
    move(sample, '{ source = "deep/loop.py", was = ["ring"] }', "deep/loop.py")
    project.sidelit("print", "src/sample/deep/loop.py", "--lang", "ja", "--out", "printed", cwd=sample)
    assert "輪" in page(sample, "printed/loop.html").text


@pytest.mark.full
def test_a_ledger_and_catalogues_of_an_older_press_are_read(sample: Path) -> None:
    """It named pages by their paths and wrote no address, neither of the page nor of where it was."""
    sidelit("sync", cwd=sample)
    sidelit("publish", cwd=sample)
    path = sample / "site/anchors.json"
    ledger = json.loads(path.read_text(encoding="utf-8"))
    assert ledger["sample/tools/window"].pop("") == {"address": "tools/window.html"}
    path.write_text(json.dumps(ledger), encoding="utf-8")
    translation = sample / "site/locale/ja/sample/tools/window.po"
    edit(translation, 'msgid "The window"\nmsgstr ""', 'msgid "The window"\nmsgstr "窓"')
    # Without a name of its own the page is called by its stem.
    edit(sample / CONFIG, ', name = "tools/window"', "")
    site = built(sample)
    assert "窓" in page(site, "ja/window.html").text
    assert "window.html#Window.first" not in page(site, "tools/window.html").addresses
    assert {"../window.html", "../window.html#Window"} <= set(page(site, "tools/window.html").addresses)
    sidelit("sync", cwd=sample)
    assert not translation.exists()
    assert '"窓"' in (sample / "site/locale/ja/sample/window.po").read_text(encoding="utf-8")
    sidelit("publish", cwd=sample)
    assert tree(built(sample))["tools/window.html"] == tree(site)["tools/window.html"]


@pytest.mark.nightly
def test_a_new_page_may_take_a_name_that_is_free(sample: Path) -> None:
    sidelit("sync", cwd=sample)
    sidelit("publish", cwd=sample)
    translation = sample / "site/locale/ja/sample/ring.po"
    edit(translation, 'msgid "A ring"\nmsgstr ""', 'msgid "A ring"\nmsgstr "輪"')
    new = '{ source = "deep/loop.py", was = ["ring"] },\n    { source = "ring.py" }'
    move(sample, new, "deep/loop.py")
    (sample / "src/sample/ring.py").write_text(
        '"""# A bell\n\n> It rings.\n"""\nLOUD = 1\n', encoding="utf-8"
    )
    edit(sample / "site/pages/index.md", "sample/ring.py", "deep/loop.py")

    def look() -> None:
        site = built(sample)
        bell = page(site, "ring.html")
        assert "A bell" in bell.text
        assert "輪" in page(site, "ja/loop.html").text
        assert '<h1 lang="en">A bell</h1>' in (site / "ja/ring.html").read_text(encoding="utf-8")
        # Every old id leads on, that of the old head too, so the new head has one of its own.
        assert bell.sections == ["module-2"]
        for name in ("module", "Ring", "Ring.put", "module/a-heading-of-its-own"):
            assert f"loop.html#{name}" in bell.addresses
            assert name in bell.ids

    look()
    for command in ("sync", "publish", "sync"):
        sidelit(command, cwd=sample)
        look()
    assert translation.read_text(encoding="utf-8").count("msgid") == 3


def test_a_page_goes_to_another_package(sample: Path) -> None:
    sidelit("publish", cwd=sample)
    (sample / "src/other").mkdir()
    (sample / "src/sample/ring.py").rename(sample / "src/other/ring.py")
    text = (sample / CONFIG).read_text(encoding="utf-8").replace('folder = "src/sample"', 'folder = "src"')
    text = text.replace('"ring.py"', '"other/ring.py"').replace(
        '"tools/window.py"', '"sample/tools/window.py"'
    )
    (sample / CONFIG).write_text(text, encoding="utf-8")
    assert pages(built(sample)) == {*SAMPLE_PAGES, "contents.html"}
    assert "other/ring" in sidelit("status", cwd=sample).stdout


# ## Mistakes


TWO = "two pages would"


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ('name = "tools/window"', f"{TWO} be written to tools/window.html; give one of them another `name`"),
        ('name = "tools/window", output = "a.html"', f"{TWO} have the name sample/tools/window; give one"),
        ('output = "tools/window.html"', f"{TWO} be written to tools/window.html; give one"),
        ('was = ["old"] }, { source = "x.py", was = ["old"]', f"{TWO} once have been old.html; let `was`"),
        ('was = ["ring"]', "the page 'ring' is called so now; remove 'ring' from `was`"),
        ('was = ["a", "a"]', "`was` names 'a' twice; remove 'a' from `was`"),
        ('was = "a"', "`was` must be a list"),
        ('was = [1]', "'' in `was` is not the name of a page; write a stem"),
        ('name = "a.html"', "'a.html' in `name` is not the name of a page; write a stem"),
        ('name = "../a"', "'../a' in `name` is not the name of a page; write a stem"),
        ('name = "/a"', "'/a' in `name` is not the name of a page; write a stem"),
        ('name = "ja/a"', "the page ja/a.html would hide the folder ja/"),
        ('was = ["assets/a"]', "the page assets/a.html would hide the folder assets/"),
        ('output = "a"', "'a' in `output` is not the address of a page; write a path in the site"),
        ('output = "a/../b.html"', "'a/../b.html' in `output` is not the address of a page; write a path"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_name_is_one_line(sample: Path, entry: str, told: str) -> None:
    (sample / "src/sample/x.py").write_text('"""# X"""\n', encoding="utf-8")
    line = edit(sample / CONFIG, RING, f'{{ source = "ring.py", {entry} }}')
    # Of two pages in one place the second one is told of, here the window.
    line += told.startswith((f"{TWO} be", f"{TWO} have"))
    with pytest.raises(SidelitError) as caught:
        config.load(sample / CONFIG)
    assert str(caught.value).startswith(f"{CONFIG}:{line}: {told}")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('label = "Containers"', 'label = "Containers"\noutput = "../outside"'),
        ('source = "notes/reading.md"', 'source = "../reading.md"'),
    ],
)
def test_no_page_is_written_outside_the_site(sample: Path, old: str, new: str) -> None:
    edit(sample / CONFIG, old, new)
    (sample / "site/reading.md").write_text("# Notes\n", encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith(f"{CONFIG}:")
    assert "outside" in told
    assert told.count("\n") == 1
    assert not (sample / "build").exists()
