"""What a reader types is found: names first, in each language, and in the sections that say it."""

from __future__ import annotations

import shutil
import unicodedata
from pathlib import Path

import pytest

from press.project import SAMPLE, edit, sidelit, translate, tree
from sidelit.site.search.ask import Answer, Index
from sidelit.site.search.index import folder
from sidelit.site.search.terms import terms

DEQUE = "A bounded deque drops items at its other end, which is all a ring has to do."
JAPANESE = "上限つきの両端キューは、反対側の勾配をもつ要素を捨てます。"
HOSTILE = '''class Odd:
    """Words of `__proto__`, `constructor` and </script><script>alert(1)</script> \\u2028 "'` ${x}."""

    # It has $\\frac{1}{2}$ of a phase, and $n$ of all.
    half = 1
'''


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the sample in three languages, one sentence of it translated."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("search") / "sample"))
    (sample / "src/sample/odd.py").write_text(HOSTILE, encoding="utf-8")
    edit(sample / "site/sidelit.toml", "chapters = [", 'chapters = [\n    { source = "odd.py" },')
    sidelit("sync", cwd=sample)
    translate(sample / "site/locale/ja/sample/ring.po", {DEQUE: JAPANESE})
    sidelit("build", cwd=sample)
    return tree(sample / "build/site")


@pytest.fixture(scope="module")
def english(files: dict[str, bytes]) -> Index:
    return index(files, "en")


def index(files: dict[str, bytes], lang: str) -> Index:
    return Index({name: text for name, text in files.items() if name.startswith(folder(lang))}, lang)


def marked(answer: Answer) -> list[str]:
    return [part for part, found in answer.excerpt if found]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("Ring.put", "ring.html#Ring.put"),
        ("ring.put()", "ring.html#Ring.put"),
        ("put", "ring.html#Ring.put"),
        ("ring.Ring.put", "ring.html#Ring.put"),
        ("Window", "tools/window.html#Window"),
        ("tools.window", "tools/window.html#module"),
        ("wind", "tools/window.html#Window"),
        ("a heading of its own", "ring.html#module/a-heading-of-its-own"),
        ("two columns", "notes/reading.html#the-two-columns"),
        ("The sample", "index.html"),
        ("bounded deque", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("boundet deqeu", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("seen at once", "glossary.html#term-window"),
        ("环形缓冲区", "glossary.html#term-ring"),
        ("Ring.pu", "ring.html#Ring.put"),
        ("Knuth", "bibliography.html#bib-knuth1973art"),
        ("maxlen", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
    ],
)
def test_a_query_finds_its_section(english: Index, query: str, first: str) -> None:
    assert english.ask(query)[0].address == first


@pytest.mark.parametrize(
    "sign", [each for each in map(chr, range(33, 127)) if not each.isalnum()] + ["’", "·"]
)
def test_a_sign_in_a_query_is_a_sign(english: Index, sign: str) -> None:
    (answer, *_) = english.ask(f"{sign}bounded{sign} deque{sign}")
    assert "".join(part for part, _ in answer.excerpt) == DEQUE


def test_an_excerpt_says_where_a_formula_was_left_out(english: Index) -> None:
    (answer, *_) = english.ask("phase")
    assert "".join(part for part, _ in answer.excerpt) == "It has … of a phase, and n of all."


def test_an_excerpt_marks_what_was_asked_for(english: Index) -> None:
    (answer, *_) = english.ask("bounded DEQUE")
    assert marked(answer) == ["bounded deque"]
    assert "".join(part for part, _ in answer.excerpt) == DEQUE
    # What only the code has is shown as a line of code.
    (answer, *_) = english.ask("maxlen")
    assert "".join(part for part, _ in answer.excerpt) == "self._items: deque[object] = deque(maxlen=size)"
    assert marked(answer) == ["maxlen"]


def test_a_translation_is_found_by_its_own_words_and_by_the_names(files: dict[str, bytes]) -> None:
    japanese = index(files, "ja")
    (answer, *_) = japanese.ask("両端キュー")
    assert answer.address == "ring.html#Ring.__init__/a-bounded-deque-drops-items"
    assert marked(answer) == ["両端キュー"]
    assert japanese.ask("勾配")[0].address == answer.address
    assert japanese.ask("Ring.put")[0].address == "ring.html#Ring.put"
    # A sentence that is not translated stands on the page in English, and is found there.
    assert japanese.ask("keeps last items")[0].address == "ring.html#Ring"
    # One that is translated is not.
    assert [each.address for each in japanese.ask("bounded")] == []
    # A term is found in any of its languages.
    assert japanese.ask("リング")[0].address == "glossary.html#term-ring"


@pytest.mark.parametrize("query", ["", "  ", ".*[(", "$&", "qqqqq", "\\", "—"])
def test_a_query_that_says_nothing_finds_nothing(english: Index, query: str) -> None:
    assert english.ask(query) == ()


@pytest.mark.parametrize("query", ["__proto__", "constructor", "alert", "Odd"])
def test_words_that_mean_something_to_a_script_are_words(english: Index, query: str) -> None:
    assert english.ask(query)[0].address == "odd.html#Odd"


def test_the_page_cuts_a_query_as_the_press_cuts_a_text(english: Index) -> None:
    words = [
        "reduce_scatter",
        "Unit.gather",
        "ＺｅＲＯの勾配",
        "優化器",
        "x",
        "度",
        "ภาษาไทย",
        "ﾃﾞｰﾀ",
        "naïve",
        "Größe",
        "한국어",
    ]
    # One character of each kind, in the middle of a word; what one side does not know yet is left out.
    known = "BasicLatin"
    for code in range(0x20, 0xFFFF, 7):
        char = chr(code)
        if unicodedata.category(char) not in ("Cn", "Cs", "Co", "Cc") and char.lower() == char:
            known += f" a{char}b"
    for text in (*words, known):
        assert english.terms(text) == terms(text)


def test_a_query_loads_only_what_it_needs(files: dict[str, bytes]) -> None:
    """In a site with more words than one file holds."""
    core = {name: text for name, text in files.items() if name == folder("en") + "core.js"}
    text = core[folder("en") + "core.js"].decode()
    starts = text[text.index('"starts":') :].partition("]")[0]
    asked = Index(
        {folder("en") + "core.js": text.replace(starts, '"starts":["0","g","n","x"').encode()}, "en"
    )
    assert asked.parts("bound") == ("words-0.js",)
    assert asked.parts("n") == ("words-2.js",)
    assert asked.parts("bound zoom") == ("words-0.js", "words-3.js")
    assert asked.parts("勾配") == ("words-3.js",)


def test_a_single_page_has_no_search_and_several_have_one(sample: Path) -> None:
    sidelit("print", "src/sample/ring.py", "--out", "one", cwd=sample)
    sidelit("print", "src", "--out", "several", "--lang", "ja", cwd=sample)
    assert b"data-index" not in (sample / "one/ring.html").read_bytes()
    assert not (sample / "one/assets/search").exists()
    page = (sample / "several/tools/window.html").read_text(encoding="utf-8")
    assert 'data-index="../assets/search/ja/" data-pages="../"' in page
    assert index(tree(sample / "several"), "ja").ask("Window")[0].address == "tools/window.html#Window"


def test_the_terminal_prints_what_a_page_shows(sample: Path) -> None:
    said = sidelit("search", "bounded", "deque", cwd=sample).stdout.splitlines()
    assert said[0] == "ring.html#Ring.__init__/a-bounded-deque-drops-items  Ring.__init__"
    assert said[1].strip().startswith("A [bounded deque] drops")
    assert sidelit("search", "qqqqq", cwd=sample, code=1).stdout == ""
    told = sidelit("search", "ring", "--lang", "fr", cwd=sample, code=1).stderr
    assert told == "'fr' is not a language of this site; it has en, ja, zh\n"


def test_a_file_in_the_place_of_the_index_is_refused(sample: Path) -> None:
    place = sample / "site/pages/assets/search/en"
    place.mkdir(parents=True)
    (place / "core.js").write_text("alert(1)", encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("site/pages/assets/search/en/core.js: two files would be written to")
