"""Depth on a page: one line that unfolds its sections, in every language."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polib
import pytest

from press.project import edit, page, sidelit
from sidelit.config import config
from sidelit.site import content, site

WORDS = "A ring of $N = 0$ places & `None` in it."
BEGIN = f"    # sidelit: depth {WORDS}\n\n"
PUT = "    def put(self"
LINKED = "a link cannot stand in the line above depth; put it into the text of a section"


@pytest.fixture
def marked(sample: Path) -> Path:
    """The sample with a stretch of depth that ends with its class, and one of two new sections."""
    ring = sample / "src/sample/ring.py"
    edit(ring, PUT, BEGIN + PUT)
    with ring.open("a", encoding="utf-8") as file:
        file.write("\n\n# sidelit: depth Rare uses.\n\n\ndef one(): ...\n\n\n# Two.\nTWO = 2\n")
    return sample


def folds(folder: Path, name: str) -> list[str]:
    """The HTML of each fold of a page."""
    html = (folder / "build/site" / name).read_text(encoding="utf-8")
    return re.findall(r'(?s)<details class="depth">.*?</details>', html)


def test_the_sections_of_a_stretch_are_in_one_fold_under_its_words(marked: Path) -> None:
    sidelit("build", cwd=marked)
    first, second = folds(marked, "ring.html")
    assert re.findall('<section id="([^"]+)"', first) == ["Ring.put"]
    assert re.findall('<section id="([^"]+)"', second) == ["one", "module/two"]
    summary = re.search("(?s)<summary>(.*?)</summary>", first)
    assert summary
    assert "In depth" in summary[1]
    assert "places &amp; <code>None</code> in it." in summary[1]
    assert 'class="katex"' in summary[1]
    # Its lines keep their numbers: two lines were added above them.
    assert "Code, lines 44 to 50" in summary[1]
    assert 'id="line-50"' in first
    assert "Code, lines 62 to 66" in second
    assert "sidelit:" not in page(marked / "build/site", "ring.html").text


@pytest.mark.nightly
def test_what_is_in_a_fold_keeps_its_address(sample: Path) -> None:
    sidelit("build", "--out", sample / "before", cwd=sample)
    before = page(sample / "before", "ring.html")
    edit(sample / "src/sample/ring.py", PUT, BEGIN + PUT)
    sidelit("build", cwd=sample)
    after = page(sample / "build/site", "ring.html")
    assert after.sections == before.sections
    assert "#Ring.put" in after.addresses
    assert "ring.html#Ring.put" in page(sample / "build/site", "index.html").addresses


@pytest.mark.nightly
def test_only_pages_with_depth_have_a_switch_for_it(marked: Path) -> None:
    sidelit("build", cwd=marked)
    for name, asked in (("ring.html", True), ("ja/ring.html", True), ("tools/window.html", False)):
        html = (marked / "build/site" / name).read_text(encoding="utf-8")
        assert ("data-depth-show" in html) == asked
        assert ("data-depth-show=" in html) == asked
        # The script brings the control, so that none is dead without it. Browsers open the contents.
        assert re.findall(r"<button(?![^>]* popovertarget=)", html) == []
    assert (marked / "build/site/assets/depth.js").is_file()


@pytest.mark.full
def test_the_contents_of_the_page_lead_into_depth_and_say_so(marked: Path) -> None:
    sidelit("build", cwd=marked)
    html = (marked / "build/site/ring.html").read_text(encoding="utf-8")
    entries = re.findall(r'<li class="d\d( folded)?"><a href="#([^"]+)"( title="In depth")?>', html)
    assert set(entries) >= {(" folded", "Ring.put", ' title="In depth"'), ("", "Ring.__init__", "")}


def say(path: Path, words: str) -> None:
    """Translate the words above the fold."""
    catalogue = polib.pofile(str(path), wrapwidth=0)
    (entry,) = (entry for entry in catalogue if entry.msgid == WORDS)
    assert entry.msgctxt == "Ring"
    entry.msgstr = words
    catalogue.save()


@pytest.mark.nightly
def test_its_words_are_translated_like_any_others(marked: Path) -> None:
    sidelit("sync", cwd=marked)
    say(marked / "site/locale/ja/sample/ring.po", "0個の場所（$N = 0$）と`None`。")
    sidelit("build", cwd=marked)
    japanese, chinese = folds(marked, "ja/ring.html")[0], folds(marked, "zh/ring.html")[0]
    # A line may end between phrases.
    japanese, chinese = (html.partition("</summary>")[0].replace("<wbr>", "") for html in (japanese, chinese))
    assert '<span class="said">0個の場所' in japanese
    assert "詳細" in japanese
    assert "badge" not in japanese
    assert '<span class="said" lang="en">A ring of' in chinese
    assert '<span class="badge missing">尚未翻译，显示原文</span>' in chinese
    assert "badge" not in folds(marked, "ring.html")[0].partition("</summary>")[0]


def test_its_translation_lasts_while_the_code_below_it_changes(marked: Path) -> None:
    sidelit("sync", cwd=marked)
    say(marked / "site/locale/ja/sample/ring.po", "0個の場所（$N = 0$）と`None`。")
    before = current(marked)
    ring = marked / "src/sample/ring.py"
    edit(ring, "self._items.append(item)", "self._items.extend([item])")
    edit(ring, BEGIN, f"    # A comment.\n    limit = 1\n\n{BEGIN}")
    sidelit("sync", cwd=marked)
    assert current(marked) == before > 0


def current(folder: Path) -> int:
    rows = json.loads(sidelit("status", "--json", cwd=folder).stdout)
    return sum(row["current"] for row in rows if row["lang"] == "ja")


@pytest.mark.nightly
def test_a_reworded_line_keeps_its_old_translation_at_hand_and_does_not_show_it(marked: Path) -> None:
    sidelit("sync", cwd=marked)
    say(marked / "site/locale/ja/sample/ring.po", "0個の場所（$N = 0$）と`None`。")
    edit(marked / "src/sample/ring.py", WORDS, WORDS.replace("None", "0"))
    sidelit("sync", cwd=marked)
    sidelit("build", cwd=marked)
    summary = folds(marked, "ja/ring.html")[0].partition("</summary>")[0]
    assert 'lang="en"' in summary
    assert "badge stale" in summary


@pytest.mark.nightly
def test_equal_words_in_two_stretches_are_two_folds(sample: Path) -> None:
    marks = "\n# sidelit: depth Rare.\ndef {0}(): ...\n# sidelit: core\n"
    with (sample / "src/sample/ring.py").open("a", encoding="utf-8") as file:
        file.write(marks.format("one") + marks.format("two"))
    sidelit("build", cwd=sample)
    assert [re.findall('<section id="([^"]+)"', html) for html in folds(sample, "ring.html")] == [
        ["one"],
        ["two"],
    ]


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize("words", ["2. Later.", "# Later.", "- Later.", "> Later."])
def test_a_line_is_a_sentence_whatever_it_begins_with(sample: Path, words: str) -> None:
    edit(sample / "src/sample/ring.py", PUT, f"    # sidelit: depth {words}\n{PUT}")
    sidelit("build", cwd=sample)
    (html,) = folds(sample, "ring.html")
    assert f'<span class="said">{words.replace(">", "&gt;")}</span>' in html


def test_a_lesson_can_see_which_sections_are_depth(marked: Path) -> None:
    (ring,) = (
        page for page in site.texts(config.load(marked / "site/sidelit.toml")) if "ring" in page.item.source
    )
    depth = {section.id: section.fold for section in ring.sections}
    fold = depth["Ring.put"]
    assert isinstance(fold, content.Fold)
    assert depth["Ring"] is depth["Ring.__init__"] is None


# ## What is wrong with marks


def test_a_build_tells_all_wrong_marks_and_writes_nothing(marked: Path) -> None:
    window = marked / "src/sample/tools/window.py"
    line = len(window.read_text(encoding="utf-8").splitlines()) + 1
    with window.open("a", encoding="utf-8") as file:
        file.write("# sidelit: core\n# More.\nmore = 1\n")
    edit(marked / "src/sample/ring.py", WORDS, "")
    told = sidelit("build", cwd=marked, code=1).stderr.splitlines()
    assert [text.partition(": ")[0] for text in told] == [
        "src/sample/ring.py:42",
        f"src/sample/tools/window.py:{line}",
    ]
    assert "does not say what it guards against" in told[0]
    assert not (marked / "build/site").exists()
    linted = sidelit("lint", cwd=marked, code=1).stderr
    assert linted.replace(": source: ", ": ").splitlines() == told


@pytest.mark.full
def test_a_link_in_the_line_is_refused_where_it_was_written(marked: Path) -> None:
    edit(marked / "src/sample/ring.py", WORDS, "A [ring](#Ring) of none.")
    told = sidelit("build", cwd=marked, code=1).stderr
    assert told == f"src/sample/ring.py:42: {LINKED}\n"


@pytest.mark.nightly
def test_a_link_in_its_translation_is_refused_there(marked: Path) -> None:
    sidelit("sync", cwd=marked)
    path = marked / "site/locale/ja/sample/ring.po"
    say(path, "0個の[場所](#Ring)（$N = 0$）と`None`。")
    told = sidelit("build", cwd=marked, code=1).stderr
    line = next(
        n for n, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if "#Ring)" in text
    )
    assert told.startswith(f"site/locale/ja/sample/ring.po:{line}: a link cannot stand")


@pytest.mark.full
def test_a_formula_that_is_wrong_is_told_at_the_mark(marked: Path) -> None:
    edit(marked / "src/sample/ring.py", WORDS, r"A ring of $\nosuch{1}$.")
    assert "src/sample/ring.py:42: KaTeX refuses" in sidelit("build", cwd=marked, code=1).stderr


# ## Files that belong to no site

FOREIGN = '''"""Words."""

# sidelit: depth What `f` refuses, see [there](#f).
def f():
    # sidelit: depth
    """Doc."""

# sidelit: core
x = 1
'''


@pytest.mark.full
def test_a_file_of_no_site_is_printed_with_its_depth(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text(FOREIGN, encoding="utf-8")
    done = sidelit("print", "one.py", "--out", "build/site", cwd=tmp_path)
    (html,) = folds(tmp_path, "one.html")
    assert "What <code>f</code> refuses, see there." in html
    assert re.findall('<section id="([^"]+)"', html) == ["f"]
    assert done.stderr.splitlines() == [
        "warning: one.py:5: this `depth` begins inside the one of line 3; "
        "end that one with `# sidelit: core` first",
        f"warning: one.py:3: {LINKED}",
    ]
    sidelit("print", "one.py", "--out", "strict", "--strict", cwd=tmp_path, code=1)
    assert not (tmp_path / "strict").exists()
