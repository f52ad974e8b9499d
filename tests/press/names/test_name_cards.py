"""The cards of names: what a page hands over about its definitions, in its language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from press.project import edit, sidelit, translate, tree

RING, JA = "src/sample/ring.py", "site/locale/ja/sample/ring.po"
MORE = '''

class Loud(
    Ring,  # not a quiet one
):
    """Says `put` at e.g. every item. Not more than that."""

    sign = ":"

    @property
    def strange(self, a: str = "):", *, b: dict[str, int] = {"x": 1}, **rest: int) -> "</script>\\u2028":
        """<object data=x onerror=alert(1)> & [a link](#Ring) says `a < b`! And more."""
        self.later, self.size = a, b
        self.told: int = 3
        return a


def bare(): return {1: 2}
'''


@pytest.fixture
def built(sample: Path) -> Path:
    edit(sample / RING, "LIMIT = 8", f"LIMIT = 8{MORE}")
    sidelit("sync", cwd=sample)
    translate(sample / JA, {"Make an empty ring.": "空のリングを作ります。次の文。", "A ring": "リング"})
    sidelit("build", cwd=sample)
    return sample / "build/site"


def cards(site: Path, name: str) -> tuple[str, str, dict[str, list[str]]]:
    text = (site / name).read_text("utf-8")
    assert text.startswith("cards=[")
    title, lang, rows = json.loads(text.removeprefix("cards=").removesuffix(";\n"))
    found: dict[str, Any] = {key: rest for key, *rest in rows}
    assert len(found) == len(rows)
    return title, lang, found


def test_a_card_says_the_signature_the_first_sentence_and_the_number(built: Path) -> None:
    title, lang, found = cards(built, "ring.cards.js")
    assert (title, lang) == ("A ring", "")
    assert found[""] == ["sample.ring", "A buffer that forgets what is oldest.", "1", ""]
    assert found["Ring"][:2] == ["class Ring", "Keeps the last items, in the order in which they came."]
    assert found["Ring.__init__"] == [
        "def Ring.__init__(self, size: int) -> None",
        "Make an empty ring.",
        "1.2",
        "",
    ]
    assert found["bare"] == ["def bare()", "", "1.7", ""]
    assert found["Loud"][:2] == ["class Loud(Ring)", "Says `put` at e.g. every item."]


def test_strings_end_no_signature_and_words_stay_as_they_are_written(built: Path) -> None:
    code, said, *_ = cards(built, "ring.cards.js")[2]["Loud.strange"]
    given = 'self, a: str = "):", *, b: dict[str, int] = {"x": 1}, **rest: int'
    assert code == f'def Loud.strange({given}) -> "</script>\\u2028"'
    assert said == "<object data=x onerror=alert(1)> & a link says `a < b`!"


def test_lines_that_bind_have_cards_and_a_comment_is_about_its_line(built: Path) -> None:
    found = {
        row[0]: row[1] for key, row in cards(built, "ring.cards.js")[2].items() if key.startswith("line-")
    }
    assert found == {
        "self._items: deque[object] = deque(maxlen=size)": (
            "A bounded deque drops items at its other end, which is all a ring has to do."
        ),
        "LIMIT = 8": "A comment may begin with a heading.",
        'sign = ":"': "",
        "self.later, self.size = a, b": "",
        "self.told: int = 3": "",
    }


def test_a_card_speaks_the_language_of_its_page_or_says_which(built: Path) -> None:
    title, lang, found = cards(built, "ja/ring.cards.js")
    assert (title, lang) == ("リング", "")
    assert found["Ring.__init__"][1:] == ["空のリングを作ります。", "1.2", ""]
    assert found["Ring.put"][1:] == ["Add an item; see why it is cheap.", "1.3", "en"]
    assert cards(built, "zh/ring.cards.js")[1] == "en"


def test_only_pages_with_such_links_ask_for_them(built: Path) -> None:
    assert {name for name in tree(built) if name.endswith("cards.js")} == {
        f"{lang}{page}.cards.js" for lang in ("", "ja/", "zh/") for page in ("ring", "tools/window")
    }
    assert "names-card.js" in (built / "ring.html").read_text("utf-8")
    assert "names-card.js" not in (built / "notes/reading.html").read_text("utf-8")


def test_a_file_of_that_name_is_refused(sample: Path) -> None:
    (sample / "site/pages/ring.cards.js").write_text("alert(1)", "utf-8")
    done = sidelit("build", cwd=sample, code=1)
    assert "two files would be written to ring.cards.js" in done.stderr


@pytest.mark.full
def test_an_edit_of_one_source_leaves_the_cards_of_the_others(sample: Path) -> None:
    sidelit("build", cwd=sample)
    before = tree(sample / "build/site")
    edit(sample / RING, "Add an item; see", "Append an item; see")
    sidelit("build", cwd=sample)
    after = tree(sample / "build/site")
    changed = {name for name in after if name.endswith("cards.js") and after[name] != before[name]}
    assert changed == {f"{lang}ring.cards.js" for lang in ("", "ja/", "zh/")}


def test_printed_files_have_cards(sample: Path) -> None:
    sidelit("print", "src/sample", "--out", "out", cwd=sample)
    assert (
        cards(sample / "out", "ring.cards.js")[2]["Ring.put"][0] == "def Ring.put(self, item: object) -> None"
    )
