"""The contents of a small project: groups, the workshop, and the list that all pages share."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import polib
import pytest

from press.project import edit, page, sidelit, unbroken

GROUPS = """[[parts]]
number = "I"
label = "Containers"
folder = "src/sample"

[[parts.groups]]
label = "Rings"
chapters = [{ source = "ring.py", run = "python -m sample.ring" }]

[[parts]]
label = "Workshop"
workshop = true

[[parts.groups]]
label = "Tools"
folder = "src/sample/tools"
chapters = [{ source = "window.py", name = "tools/window", was = ["tools/pane"] }]

[[parts.groups]]
label = "Extras"
folder = "src/sample/tools"
languages = ["en"]
chapters = ["extra.py", "more.py"]
"""


@pytest.fixture
def grouped(sample: Path) -> Path:
    """The sample project with a part in groups, and with a workshop."""
    path = sample / "site/sidelit.toml"
    text = path.read_text("utf-8")
    start, end = text.index("[[parts]]"), text.index("[[back]]")
    path.write_text(f'back_label = "Reference"\n{text[:start]}{GROUPS}\n{text[end:]}', encoding="utf-8")
    for name in ("extra", "more"):
        words = f'"""# The {name} tool\n\n> It is a tool.\n"""\n'
        (sample / f"src/sample/tools/{name}.py").write_text(words, encoding="utf-8")
    return sample


def html(folder: Path, name: str) -> str:
    return unbroken((folder / "build/site" / name).read_text(encoding="utf-8"))


def ways(folder: Path, name: str) -> list[str]:
    return re.findall(r'<link rel="(?:prev|next)" href="([^"]+)"', html(folder, name))


def listed(folder: Path, lang: str = "en") -> list[Any]:
    found: list[Any] = json.loads(html(folder, f"assets/contents/{lang}.js").removeprefix("listed=")[:-2])
    return found


def test_the_way_through_the_book_passes_the_workshop_over(grouped: Path) -> None:
    sidelit("build", cwd=grouped)
    assert ways(grouped, "ring.html") == ["notes/reading.html", "glossary.html"]
    assert ways(grouped, "glossary.html") == ["ring.html", "bibliography.html"]
    assert ways(grouped, "bibliography.html") == ["glossary.html"]
    # There it stays in its group.
    assert ways(grouped, "tools/window.html") == []
    assert ways(grouped, "sample/tools/extra.html") == ["more.html"]
    assert ways(grouped, "sample/tools/more.html") == ["extra.html"]


def test_a_page_of_the_workshop_says_where_it_is(grouped: Path) -> None:
    sidelit("sync", cwd=grouped)
    for lang, words in {"ja": ("工房", "道具"), "zh": ("工坊", "工具")}.items():
        path = grouped / f"site/locale/{lang}/site.po"
        book = polib.pofile(str(path), wrapwidth=0)
        for entry in book:
            entry.msgstr = dict(zip(("Workshop", "Tools"), words, strict=True)).get(entry.msgid, entry.msgstr)
        book.save()
    sidelit("build", cwd=grouped)
    assert '<p class="eyebrow">Workshop · Tools</p>' in html(grouped, "tools/window.html")
    assert '<p class="eyebrow">工房 · 道具</p>' in html(grouped, "ja/tools/window.html")
    assert '<p class="eyebrow">Part I · Containers</p>' in html(grouped, "ring.html")
    # An address from before leads on as it did.
    assert 'href="window.html"' in html(grouped, "tools/pane.html")


def test_a_page_of_the_workshop_that_nobody_translated_says_so_once(grouped: Path) -> None:
    sidelit("sync", cwd=grouped)
    path = grouped / "site/locale/zh/sample/tools/window.po"
    sidelit("build", cwd=grouped)
    assert html(grouped, "zh/tools/window.html").count('class="badge') == 1
    assert "本页没有译文，以下为原文" in page(grouped / "build/site", "zh/tools/window.html").text
    assert html(grouped, "zh/ring.html").count('class="badge') > 1
    # With more than half of it there, the rest is marked sentence by sentence.
    book = polib.pofile(str(path), wrapwidth=0)
    for entry in book[:-1]:
        entry.msgstr = f"译{entry.msgid}"
    book.save()
    sidelit("build", cwd=grouped)
    assert "译" in html(grouped, "zh/tools/window.html")
    assert "本页没有译文，以下为原文" not in page(grouped / "build/site", "zh/tools/window.html").text


def test_status_counts_the_workshop_apart(grouped: Path) -> None:
    told = sidelit("status", cwd=grouped).stdout.split("\n\n")
    assert [line.split()[0] for line in told[1].splitlines()[1:]] == ["sample/tools/window"] * 2
    assert "sample/tools/window" not in told[0]
    rows = json.loads(sidelit("status", "--json", cwd=grouped).stdout)
    assert {row["page"] for row in rows if row["optional"]} == {"sample/tools/window"}


def test_a_page_lists_its_own_group_and_shares_the_rest(grouped: Path) -> None:
    sidelit("build", cwd=grouped)
    panel = re.search(r"(?s)<nav class=\"panel\".*?</nav>", html(grouped, "tools/window.html"))
    assert panel
    assert re.findall(r'<details class="group" data-at="([^"]+)" open>', panel[0]) == ["group-3", "group-3-0"]
    # Without scripts the others are to be found in the list of all pages.
    links = re.findall(r'<a class="group" href="([^"]+)">.*?<span>(\w+)</span></a>', panel[0])
    assert links == [
        ("../contents.html#group-1", "Containers"),
        ("../contents.html#group-2", "Reference"),
        ("../contents.html#group-3-1", "Extras"),
    ]
    assert "Ring" not in panel[0]
    contents = html(grouped, "contents.html")
    for address, _ in links:
        assert f'id="{address.partition("#")[2]}"' in contents
    assert re.findall(r'<li>(?:<b.*?</b> )?<a href="([^"]+)"', contents.partition("<main")[2]) == [
        *("index.html", "notes/reading.html", "ring.html", "glossary.html", "bibliography.html"),
        *("tools/window.html", "sample/tools/extra.html", "sample/tools/more.html"),
    ]


@pytest.mark.parametrize("lang", ["en", "ja"])
def test_the_shared_list_has_every_page_in_its_group(grouped: Path, lang: str) -> None:
    sidelit("build", cwd=grouped)
    groups = [
        [(label, [row[0] for row in rows]) for label, _, rows in group] for group in listed(grouped, lang)
    ]
    assert groups == [
        [("", ["index.html", "notes/reading.html"])],
        [("Rings", ["ring.html"])],
        [("", ["glossary.html", "bibliography.html"])],
        [("Tools", ["tools/window.html"]), ("Extras", ["sample/tools/extra.html", "sample/tools/more.html"])],
    ]


def test_a_project_may_have_a_page_of_that_name(sample: Path) -> None:
    front = '[[front]]\nsource = "contents.md"\n\n[[parts]]'
    edit(sample / "site/sidelit.toml", "[[parts]]", front)
    (sample / "site/pages/contents.md").write_text("# Our contents\n", encoding="utf-8")
    sidelit("build", cwd=sample)
    assert "<h1>Our contents</h1>" in html(sample, "contents.html")
    assert '<a href="all-contents.html">' in html(sample, "ring.html")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('label = "Rings"', 'label = "Rings"\nnumber = "1"', "unknown key `number`"),
        ('label = "Rings"\n', "", "the key `label` is missing"),
        ("workshop = true", 'workshop = "yes"', "`workshop` must be a"),
    ],
)
def test_a_group_that_is_wrong_is_told_with_its_line(grouped: Path, old: str, new: str, said: str) -> None:
    edit(grouped / "site/sidelit.toml", old, new)
    told = sidelit("build", cwd=grouped, code=1).stderr
    assert re.match(rf"site/sidelit.toml:\d+: {re.escape(said)}", told), told
