"""The words of the command line, each typed as a reader types it."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest

from press.project import SAMPLE, edit, page, run, sidelit, tree

RING = SAMPLE / "src/sample/ring.py"


def test_sections_are_json_and_give_the_file_back(tmp_path: Path) -> None:
    objects = json.loads(sidelit("sections", RING, cwd=tmp_path).stdout)
    assert "".join(each["source"] for each in objects) == RING.read_text(encoding="utf-8")
    assert all(
        list(each) == ["id", "kind", "commentary", "code", "source", "first_line", "last_line", "depth"]
        for each in objects
    )
    found = {each["id"]: each for each in objects}
    assert found["Ring.put"]["kind"] == "function"
    assert found["Ring.put"]["code"] == (
        "    def put(self, item: object) -> None:\n        self._items.append(item)"
    )
    assert found["module"]["commentary"].startswith("# A ring\n")


def test_one_object_stands_on_each_line(tmp_path: Path) -> None:
    lines = sidelit("sections", RING, cwd=tmp_path).stdout.splitlines()
    assert lines[0] == "["
    assert lines[-1] == "]"
    assert all(json.loads(line.removesuffix(","))["id"] for line in lines[1:-1])


@pytest.mark.full
def test_sections_of_a_file_of_a_site_have_the_ids_that_the_site_prints(sample: Path) -> None:
    kept = "Ring.__init__/a-bounded-deque-drops-items"
    sidelit("publish", cwd=sample)
    path = sample / "src/sample/ring.py"
    edit(path, "A bounded deque drops items at its other end", "Old items go by themselves")
    sidelit("build", cwd=sample)
    printed = page(sample / "build/site", "ring.html").sections
    assert kept in printed
    assert kept in ids_of(path)
    sidelit("print", path, "--out", "one", cwd=sample)
    assert page(sample / "one", "ring.html").sections == printed
    # Where the site is broken, the file is still cut, and the reason told.
    (sample / "site/anchors.json").write_text("[", encoding="utf-8")
    told = sidelit("sections", path, cwd=sample)
    assert told.stderr.startswith("warning: ")
    assert "site/anchors.json:1: " in told.stderr
    assert "Ring.__init__/old-items-go-by-themselves" in told.stdout


def test_the_version_is_that_of_the_distribution(tmp_path: Path) -> None:
    told = sidelit("--version", cwd=tmp_path).stdout
    assert re.fullmatch(r"sidelit \d+\.\d+\.\d+\S*, Python 3\.\d+\.\d+\S*\n", told)


def ids_of(path: Path) -> list[str]:
    return [each["id"] for each in json.loads(sidelit("sections", path, cwd=path.parent).stdout)]


def test_a_file_that_is_not_python_is_refused_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("a = 1\nb = = 2\n", encoding="utf-8")
    for command in (["sections", "odd.py"], ["print", "odd.py", "--out", "out"]):
        told = sidelit(*command, cwd=tmp_path, code=1).stderr
        assert told.startswith("odd.py:2: ")
        assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert sidelit("sections", "none.py", cwd=tmp_path, code=1).stderr.startswith("none.py: ")
    assert sidelit("print", "none.py", "--out", "out", cwd=tmp_path, code=1).stderr.startswith("none.py: ")


def test_sync_writes_catalogues_once_and_status_counts_them(sample: Path) -> None:
    first = sidelit("sync", cwd=sample).stdout
    assert "site/locale/ja/sample/ring.po" in first
    before = tree(sample / "site/locale")
    assert sidelit("sync", cwd=sample).stdout == "0 catalogues written.\n"
    assert tree(sample / "site/locale") == before
    rows = json.loads(sidelit("status", "--json", cwd=sample).stdout)
    ring = next(row for row in rows if (row["page"], row["lang"]) == ("sample/ring", "ja"))
    assert ring["missing"] > 10
    assert ring["current"] == ring["recheck"] == ring["stale"] == 0
    table = sidelit("status", cwd=sample).stdout
    assert table.splitlines()[0].split() == ["page", "lang", "current", "recheck", "stale", "missing"]
    assert len(table.splitlines()) == 1 + len(rows)


def test_reviewed_clears_what_a_change_of_code_has_raised(sample: Path) -> None:
    sidelit("sync", cwd=sample)
    path = sample / "site/locale/ja/sample/ring.po"
    edit(
        path,
        'msgid "Make an empty ring."\nmsgstr ""',
        'msgid "Make an empty ring."\nmsgstr "空のリングを作る。"',
    )
    sidelit("sync", cwd=sample)
    assert counts(sample) == (1, 0)
    edit(sample / "src/sample/ring.py", "def __init__(self, size: int)", "def __init__(self, size: int = 2)")
    assert counts(sample) == (0, 1)
    assert (
        "1 translations"
        in sidelit("reviewed", "sample/ring#Ring.__init__", "--lang", "ja", cwd=sample).stdout
    )
    assert counts(sample) == (1, 0)
    told = sidelit("reviewed", "sample/rang", cwd=sample, code=1).stderr
    assert "sample/rang" in told


def counts(sample: Path) -> tuple[int, int]:
    """How many sentences of the Japanese ring are current, and how many want a second look."""
    rows = json.loads(sidelit("status", "--json", cwd=sample).stdout)
    ring = next(row for row in rows if (row["page"], row["lang"]) == ("sample/ring", "ja"))
    return ring["current"], ring["recheck"]


def test_lint_passes_the_sample_and_stops_at_a_wrong_word(sample: Path) -> None:
    assert sidelit("lint", cwd=sample).stdout.endswith("0 errors, 0 warnings.\n")
    with (sample / "site/glossary.toml").open("a", encoding="utf-8") as file:
        file.write('never = ["窗户"]\n')
    sidelit("sync", cwd=sample)
    path = sample / "site/locale/zh/sample/tools/window.po"
    edit(path, 'msgid "The window"\nmsgstr ""', 'msgid "The window"\nmsgstr "窗户"')
    done = sidelit("lint", cwd=sample, code=1)
    assert "site/locale/zh/sample/tools/window.po:" in done.stderr


def test_a_doubtful_escape_of_the_author_is_no_matter_of_the_press(sample: Path) -> None:
    edit(sample / "src/sample/ring.py", "LIMIT = 8", 'LIMIT = 8\nDIGITS = "\\d"')
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sidelit("lint", cwd=sample)
        sidelit("build", cwd=sample)
    assert [str(each.message) for each in told if "escape" in str(each.message)] == []


def test_cite_gives_a_sentence_and_bibtex(sample: Path) -> None:
    (sample / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n', encoding="utf-8")
    told = sidelit("cite", "Ring.put", cwd=sample).stdout
    assert told.startswith("The Sample authors. (n.d.). A ring, § 1.3 Ring.put. In Sample (version 1.2.3).\n")
    assert "src/sample/ring.py, section Ring.put, version 1.2.3" in told
    assert "@misc{sample:sample/ring:Ring.put," in told
    # Every page has a section called module.
    several = sidelit("cite", "module", cwd=sample, code=1).stderr
    assert "sample/ring#module" in several
    for name in ("sample/tools/window#module", "tools/window", "window.py", "2"):
        assert " The window. In Sample" in sidelit("cite", name, cwd=sample).stdout
    assert sidelit("cite", "1.3", cwd=sample).stdout == told
    assert "'nothing'" in sidelit("cite", "nothing", cwd=sample, code=1).stderr


def test_a_published_id_may_not_vanish(sample: Path) -> None:
    sidelit("publish", cwd=sample)
    ledger = json.loads((sample / "site/anchors.json").read_text(encoding="utf-8"))
    assert "Ring.put" in ledger["sample/ring"]
    path = sample / "src/sample/ring.py"
    text = path.read_text(encoding="utf-8")
    start = text.index("    def put(")
    path.write_text(text[:start] + text[text.index("# # A heading") :], encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("src/sample/ring.py: ")
    assert "'Ring.put'" in told
    edit(sample / "site/pages/index.md", "#Ring.put", "#Ring")
    sidelit("publish", "--redirect", "sample/ring#Ring.put=Ring", cwd=sample)
    sidelit("build", cwd=sample)
    assert 'id="Ring.put"' in (sample / "build/site/ring.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("nopage#x=Ring", "no published page is called 'nopage'"),
        ("sample/rin#x=Ring", "no published page is called 'sample/rin'; did you mean 'sample/ring'?"),
        (
            "sample/ring#Ring.pot=Ring",
            "no release has published the id 'sample/ring#Ring.pot'; did you mean 'Ring.",
        ),
        ("sample/ring#Ring.put=Ring", "the section 'sample/ring#Ring.put' is still there, and only an id"),
        ("sample/ring#*=Rong", "the redirect of 'sample/ring#*' names 'Rong', which is on no page; `sidelit"),
        ("sample/ring#*=sample/rong#Ring", "the redirect of 'sample/ring#*' names 'sample/rong#Ring', which"),
    ],
)
def test_a_redirect_that_means_nothing_is_refused(sample: Path, said: str, told: str) -> None:
    done = sidelit("publish", cwd=sample)
    assert done.stdout == "The ids of 2 chapters and 4 pages of Markdown are fixed in site/anchors.json.\n"
    before = (sample / "site/anchors.json").read_bytes()
    refused = sidelit("publish", "--redirect", said, cwd=sample, code=1).stderr
    assert refused.startswith(f"site/anchors.json: {told}")
    assert (sample / "site/anchors.json").read_bytes() == before


def test_the_ids_of_one_chapter_are_fixed(sample: Path) -> None:
    entry = '    { source = "tools/window.py", name = "tools/window" },\n'
    edit(sample / "site/sidelit.toml", entry, "")
    assert sidelit("publish", cwd=sample).stdout.startswith("The ids of 1 chapter and 4 pages")


def test_a_ledger_that_is_broken_is_told_with_its_line(sample: Path) -> None:
    (sample / "site/anchors.json").write_text('{\n"a": \n', encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("site/anchors.json:")
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


def test_the_project_is_found_from_a_folder_inside_it(sample: Path) -> None:
    sidelit("build", cwd=sample / "src" / "sample")
    assert (sample / "build/site/index.html").is_file()
    sidelit("build", "--config", sample / "site/sidelit.toml", "--out", "here", cwd=sample.parent)
    assert tree(sample.parent / "here") == tree(sample / "build/site")


@pytest.mark.cases(now=0, ci=1)
@pytest.mark.parametrize("wrong", [[], ["nothing"], ["build", "--nothing"]])
def test_a_wrong_call_says_how_to_call(tmp_path: Path, wrong: list[str]) -> None:
    done = run("sidelit", *wrong, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_every_command_explains_itself(tmp_path: Path) -> None:
    told = sidelit("--help", cwd=tmp_path).stdout
    for command in (
        "build serve print sections sync status reviewed lint cite publish".split()  # noqa: SIM905
    ):
        assert f"    {command} " in told
        assert sidelit(command, "--help", cwd=tmp_path).stdout.startswith("usage: ")
