"""Headings of Markdown keep what readers have kept of them, once a release has published their ids."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from press.project import Done, edit, page, sidelit, translate, tree

CONFIG, LEDGER = "site/sidelit.toml", "site/anchors.json"
GUIDE = "site/pages/guide.md"
TEXT = """# The guide

> How to begin.

## Install it

Take the package with pip. It needs Python 3.10 or a later one.

## First steps

### On one machine

Start the program. It prints what it does.

### On many

Start it on each of them.

## Example

The first one opens a file.

## Example

The second one closes it again.

## Get help {#help}

Ask the people who wrote it.
"""


@pytest.fixture
def guide(sample: Path) -> Path:
    """The sample with one more page, as a release has published it."""
    edit(sample / CONFIG, '[[front]]\nsource = "notes/reading.md"', front("guide.md", "notes/reading.md"))
    (sample / GUIDE).write_text(TEXT, encoding="utf-8")
    sidelit("publish", cwd=sample)
    return sample


def front(*sources: str) -> str:
    return "\n[[front]]\n".join(["", *(f'source = "{each}"\n' for each in sources)]).strip()


def build(root: Path, code: int = 0) -> Done:
    return sidelit("build", cwd=root, code=code)


def ids(root: Path, name: str = "guide.html") -> list[str]:
    """The ids of the headings of a page and the other ones that lead to them, in order."""
    build(root)
    return [each for each in page(root / "build/site", name).ids if each in KNOWN]


KNOWN = {
    *("install-it", "set-it-up", "first-steps", "how-to-begin", "on-one-machine", "on-many", "on-a-cluster"),
    *("example", "example-2", "example-3", "help", "get-help", "support", "new"),
}
# A heading whose author gives its id has that of its words, too.
FIRST = ["install-it", "first-steps", "on-one-machine", "on-many", "example", "example-2", "help", "get-help"]


def test_a_release_publishes_headings_and_changes_no_page(sample: Path) -> None:
    build(sample)
    before = tree(sample / "build/site")
    told = sidelit("publish", cwd=sample).stdout
    assert told == "The ids of 2 chapters and 4 pages of Markdown are fixed in site/anchors.json.\n"
    build(sample)
    assert tree(sample / "build/site") == before
    ledger = json.loads((sample / LEDGER).read_text(encoding="utf-8"))
    assert ledger["pages/notes/reading"][""] == {"address": "notes/reading.html"}
    assert ledger["pages/notes/reading"]["the-two-columns"]["kind"] == "heading"


def test_a_ledger_of_sources_alone_is_read(guide: Path) -> None:
    path = guide / LEDGER
    ledger = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({name: each for name, each in ledger.items() if "sample" in name}), "utf-8")
    edit(guide / GUIDE, "## Install it", "## Set it up")
    assert ids(guide)[0] == "set-it-up"


def test_a_heading_that_was_reworded_has_the_id_of_its_words_and_the_published_one(guide: Path) -> None:
    assert ids(guide) == FIRST
    index = guide / "site/pages/index.md"
    index.write_text(f"{index.read_text('utf-8')}\n[Install](guide.md#install-it) it.\n", "utf-8")
    edit(guide / GUIDE, "## Install it", "## Set it up")
    assert ids(guide) == ["set-it-up", "install-it", *FIRST[1:]]
    assert "guide.html#install-it" in page(guide / "build/site", "index.html").addresses
    # It stays after the next release, and the one after that.
    sidelit("publish", cwd=guide)
    edit(guide / GUIDE, "## Set it up", "## New")
    sidelit("publish", cwd=guide)
    assert sorted(ids(guide)[:3]) == ["install-it", "new", "set-it-up"]
    # What it said at first is its id again.
    edit(guide / GUIDE, "## New", "## Install it")
    assert ids(guide)[0] == "install-it"
    assert {"new", "set-it-up"} <= set(ids(guide))


def test_the_other_languages_have_the_same_ids(guide: Path) -> None:
    edit(guide / GUIDE, "## Install it", "## Set it up")
    sidelit("sync", cwd=guide)
    translate(guide / "site/locale/ja/pages/guide.po", {"Set it up": "入れる"})
    assert ids(guide, "ja/guide.html") == ids(guide)
    assert "入れる" in page(guide / "build/site", "ja/guide.html").text


def test_a_heading_without_a_text_is_known_by_the_headings_below_it(guide: Path) -> None:
    edit(guide / GUIDE, "## First steps", "## How to begin")
    assert ids(guide)[1:3] == ["how-to-begin", "first-steps"]


def test_headings_that_say_the_same_keep_their_ids_when_they_change_places(guide: Path) -> None:
    first, second = "The first one opens a file.", "The second one closes it again."
    text = TEXT.replace(first, "…").replace(second, first).replace("…", second)
    (guide / GUIDE).write_text(text, encoding="utf-8")
    assert ids(guide) == [*FIRST[:4], "example-2", "example", *FIRST[6:]]
    # One more of them comes first and gets what is free.
    edit(guide / GUIDE, "Start it on each of them.", "Start it on each.\n\n## Example\n\nA third one.")
    assert ids(guide) == [*FIRST[:4], "example-3", "example-2", "example", *FIRST[6:]]
    sidelit("publish", cwd=guide)
    assert ids(guide) == [*FIRST[:4], "example-3", "example-2", "example", *FIRST[6:]]


def test_a_number_stays_what_a_release_has_published(guide: Path) -> None:
    gone = TEXT.replace("## Example\n\nThe second one closes it again.\n\n", "")
    (guide / GUIDE).write_text(gone, encoding="utf-8")
    sidelit("publish", "--redirect", "pages/guide#example-2=help", cwd=guide)
    edit(guide / GUIDE, "## Get help", "## Example\n\nOne that is new.\n\n## Get help")
    sidelit("publish", cwd=guide)
    ledger = (guide / LEDGER).read_text(encoding="utf-8")
    assert '"example-2-2": {' in ledger
    sidelit("publish", cwd=guide)
    assert (guide / LEDGER).read_text(encoding="utf-8") == ledger


def test_no_heading_gets_the_id_that_an_author_gives_to_another_one(guide: Path) -> None:
    # The readers of the first `example` find another page, so one that is new needs a number.
    gone = TEXT.replace("## Example\n\nThe first one opens a file.\n\n", "")
    (guide / GUIDE).write_text(gone.replace("## Example\n\nThe second one closes it again.\n\n", ""), "utf-8")
    redirects = ["--redirect", "pages/guide#example=help", "--redirect", "pages/guide#example-2=help"]
    sidelit("publish", *redirects, cwd=guide)
    edit(guide / GUIDE, "## First steps", "## First steps {#example-3}")
    edit(guide / GUIDE, "## Get help", "## Example\n\nOne that is new.\n\n## Get help")
    build(guide)
    found = page(guide / "build/site", "guide.html").ids
    assert found.count("example-3") == 1
    assert "example-4" in found


def test_headings_in_another_order_keep_their_ids(guide: Path) -> None:
    head, *rest = TEXT.split("\n## ")
    (guide / GUIDE).write_text("\n## ".join([head, *reversed(rest)]), encoding="utf-8")
    assert ids(guide) == [*FIRST[6:], "example-2", "example", *FIRST[1:4], "install-it"]


def test_an_id_that_an_author_gives_is_certain(guide: Path) -> None:
    # It stays whatever the heading says, and leads to another one if it is given to that.
    edit(guide / GUIDE, "## Get help {#help}\n\nAsk the people who wrote it.", "## Support {#help}\n\nNone.")
    assert ids(guide) == [*FIRST, "support"]
    edit(guide / GUIDE, "## Support {#help}", "## Support")
    edit(guide / GUIDE, "## On many", "## On many {#help}")
    assert ids(guide)[3:] == ["help", "on-many", "get-help", *FIRST[4:6], "support"]
    # One that is given later leaves the published one as it was.
    edit(guide / GUIDE, "## Install it", "## Install it {#new}")
    assert ids(guide)[:2] == ["new", "install-it"]


def test_a_heading_that_went_is_told_and_answered(guide: Path) -> None:
    text = (guide / GUIDE).read_text(encoding="utf-8")
    gone = text[: text.index("## Install it")] + text[text.index("## First steps") :]
    (guide / GUIDE).write_text(gone, encoding="utf-8")
    for command in ("build", "lint", "publish"):
        told = sidelit(command, cwd=guide, code=1).stderr
        assert told.startswith("site/pages/guide.md: the published id 'install-it' would lead nowhere; ")
        assert told.count("\n") == 1
    wrong = sidelit("publish", "--redirect", "pages/guide#instal-it=help", cwd=guide, code=1).stderr
    assert "no release has published the id 'pages/guide#instal-it'; did you mean 'install-it'?" in wrong
    sidelit("publish", "--redirect", "pages/guide#install-it=pages/notes/reading#the-works", cwd=guide)
    build(guide)
    site = guide / "build/site"
    assert "notes/reading.html#the-works" in page(site, "guide.html").addresses
    assert "install-it" in page(site, "guide.html").ids


def test_its_author_may_say_so_in_the_configuration(guide: Path) -> None:
    edit(guide / GUIDE, "## Install it\n\nTake the package with pip. It", "It")
    edit(guide / GUIDE, "## On many\n", "")
    moved = 'source = "guide.md"\n[front.moved]\ninstall-it = "notes/reading.md#the-works"\n'
    edit(guide / CONFIG, 'source = "guide.md"\n', f'{moved}on-many = "notes/reading.md"\n')
    build(guide)
    site = tree(guide / "build/site")
    assert b'"notes/reading.html#the-works"' in site["guide.html"]
    sidelit("publish", cwd=guide)
    build(guide)
    assert tree(guide / "build/site") == site
    # The release has noted the first one. A page as a whole has no id that it could be noted with.
    edit(guide / CONFIG, 'install-it = "notes/reading.md#the-works"\n', "")
    build(guide)
    assert tree(guide / "build/site").keys() == site.keys()
    shown = page(guide / "build/site", "guide.html")
    assert {"install-it", "on-many"} <= set(shown.ids)
    assert {"notes/reading.html", "notes/reading.html#the-works"} <= set(shown.addresses)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("notes/nowhere.md", "`moved` leads to site/pages/notes/nowhere.md, which is no page of the site"),
        ("notes/reading.md#the-work", "; did you mean 'the-works'?"),
    ],
)
def test_a_release_forgets_no_id_for_which_its_author_answers_wrongly(
    guide: Path, place: str, told: str
) -> None:
    edit(guide / GUIDE, "## Install it\n\nTake the package with pip. It", "It")
    moved = f'source = "guide.md"\n[front.moved]\ninstall-it = "{place}"\n'
    edit(guide / CONFIG, 'source = "guide.md"\n', moved)
    line = (guide / CONFIG).read_text(encoding="utf-8").partition("install-it")[0].count("\n") + 1
    before = (guide / LEDGER).read_bytes()
    for command in ("build", "publish"):
        said = sidelit(command, cwd=guide, code=1).stderr
        assert said.startswith(f"{CONFIG}:{line}: ")
        assert told in said
    assert (guide / LEDGER).read_bytes() == before


def test_what_an_author_says_counts_more_than_what_is_alike(guide: Path) -> None:
    edit(guide / GUIDE, "## Install it", "## Set it up")
    moved = 'source = "guide.md"\n[front.moved]\ninstall-it = "notes/reading.md#the-works"\n'
    edit(guide / CONFIG, 'source = "guide.md"\n', moved)
    assert ids(guide)[0] == "set-it-up"
    assert "notes/reading.html#the-works" in page(guide / "build/site", "guide.html").addresses


def test_a_heading_is_found_on_another_page(guide: Path) -> None:
    section = TEXT[TEXT.index("## Install it") : TEXT.index("## First steps")]
    edit(guide / GUIDE, section, "")
    path = guide / "site/pages/notes/reading.md"
    path.write_text(f"{path.read_text(encoding='utf-8')}\n{section}", encoding="utf-8")
    build(guide)
    site = tree(guide / "build/site")
    shown = page(guide / "build/site", "guide.html")
    assert "notes/reading.html#install-it" in shown.addresses
    assert "install-it" in shown.ids
    sidelit("publish", cwd=guide)
    build(guide)
    assert tree(guide / "build/site") == site
    assert "{sample:pages/notes/reading:install-it," in sidelit("cite", "guide#install-it", cwd=guide).stdout


def test_a_page_that_went_is_told(guide: Path) -> None:
    (guide / GUIDE).rename(guide / "site/pages/start.md")
    line = edit(guide / CONFIG, 'source = "guide.md"', 'source = "start.md"')
    told = build(guide, code=1).stderr
    assert told.startswith("site/anchors.json:")
    assert "the published page 'pages/guide' would vanish; write `was = [\"guide\"]` in the entry of " in told
    assert "site/pages/start.md" in told
    edit(guide / CONFIG, 'source = "start.md"', 'source = "start.md"\nwas = ["guide"]')
    edit(guide / "site/pages/start.md", "## Install it", "## Set it up")
    assert line
    build(guide)
    addresses = page(guide / "build/site", "guide.html").addresses
    assert {"start.html", "start.html#set-it-up", "start.html#help"} <= set(addresses)
    assert "install-it" in page(guide / "build/site", "guide.html").ids


def test_a_chapter_takes_in_a_page_of_markdown(guide: Path) -> None:
    (guide / GUIDE).unlink()
    edit(guide / CONFIG, '[[front]]\nsource = "guide.md"\n\n', "")
    edit(guide / CONFIG, 'source = "ring.py"', 'source = "ring.py", was = ["guide"]')
    told = build(guide, code=1).stderr
    assert "the published id 'pages/guide#example' and 6 more would lead nowhere" in told
    sidelit("publish", "--redirect", "pages/guide#*=Ring", cwd=guide)
    build(guide)
    addresses = page(guide / "build/site", "guide.html").addresses
    assert {"ring.html", "ring.html#Ring"} <= set(addresses)
