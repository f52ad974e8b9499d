"""What a reader types is found: names first, in each language, and in the sections that say it."""

from __future__ import annotations

import shutil
import unicodedata
from pathlib import Path

import pytest

from press.project import SAMPLE, edit, sidelit, translate, tree
from sidelit.config import languages
from sidelit.errors import SidelitError
from sidelit.site.search import synonyms
from sidelit.site.search.ask import Answer, Index
from sidelit.site.search.index import folder
from sidelit.site.search.tokenizer import Tokenizer

DEQUE = "A bounded deque drops items at its other end, which is all a ring has to do."
JAPANESE = "上限つきの両端キューは、反対側の勾配をもつ要素を捨てます。"
HOSTILE = '''class Odd:
    """Words of `__proto__`, `constructor` and </script><script>alert(1)</script> \\u2028 "'` ${x}."""

    # It has $\\frac{1}{2}$ of a phase, and $n$ of all.
    half = 1

    # A café with a zebra.
    first = 1

    # sidelit: depth What few ask for.

    # Another zebra.
    second = 2
'''
GERMAN = """[language]
name = "Deutsch"
short = "DE"
fallback = "en"

[search]
stop = ["der die das"]
fold = { "ß" = "ss" }
"""
SYNONYMS = """[[synonyms]]
en = ["bounded deque", "circular queue"]
ja = ["両端キュー", "円環"]
zh = ["双端队列"]
also.en = ["queue.Full"]

[[keywords]]
at = "tools/window.html"
en = ["porthole"]
ja = ["舷窓"]

[[keywords]]
at = "ring.html#Ring.put"
en = ["append an element"]
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of the sample in three languages, one sentence of it translated."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("search") / "sample"))
    (sample / "src/sample/odd.py").write_text(HOSTILE, encoding="utf-8")
    edit(sample / "site/sidelit.toml", "chapters = [", 'chapters = [\n    { source = "odd.py" },')
    with (sample / "site/pages/notes/reading.md").open("a", encoding="utf-8") as page:
        page.write("\n## A note\n\nHere is a zebra, too.\n")
    (sample / "site/search.toml").write_text(SYNONYMS, encoding="utf-8")
    sidelit("sync", cwd=sample)
    translate(sample / "site/locale/ja/sample/ring.po", {DEQUE: JAPANESE})
    sidelit("build", cwd=sample)
    return tree(sample / "build/site")


@pytest.fixture(scope="module")
def english(files: dict[str, bytes]) -> Index:
    return index(files, "en")


def index(files: dict[str, bytes], lang: str) -> Index:
    return Index(files.__getitem__, lang)


def tokenizer(*langs: str) -> Tokenizer:
    return Tokenizer([languages.load(lang).search for lang in langs])


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
        ("what is the bounded deque for", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("hippopotamus in a bounded deque", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("ｂｏｕｎｄｅｄ", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("bound", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("dropping of items", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("a circular queue", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("双端队列是什么", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("queue.Full", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("BoundedDeque", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("drops_items", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("ValueError: a bounded deque of 1973", "ring.html#Ring.__init__/a-bounded-deque-drops-items"),
        ("porthole", "tools/window.html#module"),
        ("how do I append elements", "ring.html#Ring.put"),
    ],
)
def test_a_query_finds_its_section(english: Index, query: str, first: str) -> None:
    assert english.ask(query)[0].address == first


def test_pages_of_use_stand_before_chapters_and_chapters_before_depth(english: Index) -> None:
    assert [answer.address for answer in english.ask("zebra")] == [
        "notes/reading.html#a-note",
        "odd.html#Odd/a-cafe-with-a-zebra",
        "odd.html#Odd/another-zebra",
    ]


@pytest.mark.parametrize("query", ["cafe", "café", "CAFÉ", "ｃａｆé"])
def test_an_accent_is_typed_or_not(english: Index, query: str) -> None:
    (answer, *_) = english.ask(query)
    assert marked(answer) == ["café"]


@pytest.mark.parametrize(
    ("query", "marks"),
    [
        ("what drops the items", ["drops items"]),
        ("which ring is bounded", ["bounded", "ring"]),
        ("circular queue", ["bounded deque"]),
        ("all items of the other end", ["items", "other end", "all"]),
        ("dropped item", ["drops items"]),
    ],
)
def test_stop_words_are_not_marked_and_synonyms_are(english: Index, query: str, marks: list[str]) -> None:
    found = {answer.address: answer for answer in english.ask(query)}
    assert marked(found["ring.html#Ring.__init__/a-bounded-deque-drops-items"]) == marks


def test_a_project_says_how_its_language_is_searched(tmp_path: Path) -> None:
    (tmp_path / "de.toml").write_text(GERMAN, encoding="utf-8")
    cut = Tokenizer([languages.load("de", tmp_path).search])
    assert cut.terms("Die Größe der GRÖẞE") == ["grosse", "grosse"]


def test_japanese_is_cut_where_its_words_end() -> None:
    terms = tokenizer("ja", "en").terms
    assert terms("勾配を分割しているのはなぜですか") == ["勾配", "分割"]
    assert terms("the サーバーの切り替え") == terms("サーバ 切替え")
    assert tokenizer("zh", "en").terms("梯度和参数的区别是什么") == ["梯度", "参数", "区别"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[[synonyms]]\nen = ["a"]\n', "1: a row joins two words or more"),
        ('[[synonyms]]\n\nen = ["a", " "]\n', "3: a word is empty"),
        ('[[synonyms]]\nen = "a"\n', "2: `en` must be a list"),
        ('[[synonyms]]\nen = ["a", "b"]\nfrench = ["c"]\n', "3: unknown key `french`"),
        ("[synonyms]\n", "1: `synonyms` must be a list"),
        ("synonym = []\n", "1: unknown key `synonym`"),
        ("[[synonyms]\n", "1: not valid TOML"),
        ('[[synonyms]]\nen = ["a"]\nalso.en = ["b", ""]\n', "3: a word is empty"),
        ('[[keywords]]\nen = ["a"]\n', "1: the key `at` is missing"),
        ('[[keywords]]\nat = "a.html"\nen = [" "]\n', "3: a word is empty"),
        ('[[keywords]]\nat = "a.html"\nalso = ["b"]\n', "3: unknown key `also`"),
    ],
)
def test_a_mistake_in_the_synonyms_is_told_with_its_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "search.toml").write_text(text, encoding="utf-8")
    with pytest.raises(SidelitError) as error:
        synonyms.read(tmp_path / "search.toml", "site/search.toml", ("en", "ja"))
    assert str(error.value).startswith(f"site/search.toml:{told}")


def test_synonyms_may_serve_more_languages_than_a_site_shows(tmp_path: Path) -> None:
    (tmp_path / "search.toml").write_text('[[synonyms]]\nen = ["a"]\nfr = ["b"]\n', "utf-8")
    (row,) = synonyms.read(tmp_path / "search.toml", "search.toml", ["en", "ja"]).rows
    assert row.words == {"en": ("a",), "ja": ()}


def test_a_build_reads_the_synonyms(sample: Path) -> None:
    (sample / "site/search.toml").write_text("rows = 1\n", encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told == "site/search.toml:1: unknown key `rows`; remove it or mend its spelling\n"


@pytest.mark.parametrize("at", ["ring.htm", "ring.html#Ring.putt"])
def test_keywords_of_a_place_that_is_not_there_are_refused(sample: Path, at: str) -> None:
    (sample / "site/search.toml").write_text(f'[[keywords]]\nat = "{at}"\nen = ["a"]\n', encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told == f"site/search.toml:2: there is no place {at} to find by keywords\n"


def test_keywords_of_no_place_hide_no_mistake_of_a_page(sample: Path) -> None:
    text = '[[keywords]]\nat = "ring.html#Ring.gone"\nen = ["a"]\n'
    (sample / "site/search.toml").write_text(text, encoding="utf-8")
    with (sample / "site/pages/index.md").open("a", encoding="utf-8") as index:
        index.write("\nSee [it](nowhere.md).\n")
    for _ in range(2):
        told = sidelit("build", cwd=sample, code=1).stderr
        assert "the link 'nowhere.md' leads to no page or file of the site" in told


def test_keywords_are_found_in_the_language_of_a_page_and_in_the_first(files: dict[str, bytes]) -> None:
    japanese = index(files, "ja")
    for query in ("舷窓", "porthole"):
        assert japanese.ask(query)[0].address == "tools/window.html#module"
    assert not index(files, "zh").ask("舷窓")


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


def test_an_excerpt_cuts_no_sign_in_two(sample: Path) -> None:
    """Each of these takes two places of a script's string."""
    words = "😀" * 60 + "x" + "目标甲乙" + "😀" * 100
    (sample / "src/sample/odd.py").write_text(f'"""# Odd\n\n> {words}\n"""\n', encoding="utf-8")
    edit(sample / "site/sidelit.toml", "chapters = [", 'chapters = [\n    { source = "odd.py" },')
    sidelit("build", cwd=sample)
    assert "目标" in sidelit("search", "目标", cwd=sample).stdout
    assert "目标" in sidelit("search", "x目标", cwd=sample).stdout


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
        assert english.terms(text) == tokenizer("en").terms(text)


def test_a_query_loads_only_what_it_needs(files: dict[str, bytes]) -> None:
    """In a site with more words than one file holds."""
    core = folder("en") + "core.js"
    text = files[core].decode()
    starts = text[text.index('"starts":') :].partition("]")[0]
    other = files | {core: text.replace(starts, '"starts":["0","g","n","x"').encode()}
    asked = Index(other.__getitem__, "en")
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
    sidelit("build", cwd=sample)
    said = sidelit("search", "bounded", "deque", cwd=sample).stdout.splitlines()
    assert said[0] == "ring.html#Ring.__init__/a-bounded-deque-drops-items  Ring.__init__"
    assert said[1].strip().startswith("A [bounded deque] drops")
    nothing = sidelit("search", "qqqqq", "q", cwd=sample, code=1)
    assert (nothing.stdout, nothing.stderr) == ("", "Nothing in this site is found by 'qqqqq q'.\n")
    # An option is a word as well.
    assert sidelit("search", "--bounded", "deque", cwd=sample).stdout.splitlines() == said
    assert "name a word" in sidelit("search", cwd=sample, code=2).stderr
    told = sidelit("search", "ring", "--lang", "fr", cwd=sample, code=1).stderr
    assert told == "'fr' is not a language of this site; it has en, ja, zh\n"
    # Its own language, and no configuration, for a site that lies elsewhere.
    (sample / "build/site").rename(sample.parent / "elsewhere")
    said = sidelit("search", "リング", "--lang", "ja", "--site", "../elsewhere", cwd=sample).stdout
    assert said.startswith("glossary.html#term-ring")
    said = sidelit("search", "bounded", "--site", "elsewhere", cwd=sample.parent).stdout
    assert said.startswith("ring.html#Ring.__init__/a-bounded-deque-drops-items")
    told = sidelit("search", "ring", cwd=sample, code=1).stderr
    hint = "run `sidelit build`, or name the folder of a site with --site"
    assert told == f"{sample / 'build/site'}: there is no built site here; {hint}\n"


def test_the_terminal_tells_why_a_site_answers_nothing(sample: Path) -> None:
    sidelit("print", "src/sample/ring.py", "--out", "one", cwd=sample)
    told = sidelit("search", "ring", "--site", "one", cwd=sample, code=1).stderr
    assert told == "one: this site has no search, as it has a single page\n"
    sidelit("print", "src", "--out", "several", "--lang", "ja", cwd=sample)
    assert sidelit("search", "Window", "--site", "several", cwd=sample).stdout.startswith(
        "tools/window.html#Window"
    )
    (sample / "several/assets/search/ja/core.js").write_text("searching.begin();", encoding="utf-8")
    told = sidelit("search", "ring", "--site", "several", cwd=sample, code=1).stderr
    assert told.startswith("several/assets/search/ja: the index of this site cannot be read: ")
    assert told.endswith("; build the site again\n")


def test_a_file_in_the_place_of_the_index_is_refused(sample: Path) -> None:
    place = sample / "site/pages/assets/search/en"
    place.mkdir(parents=True)
    (place / "core.js").write_text("alert(1)", encoding="utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert told.startswith("site/pages/assets/search/en/core.js: two files would be written to")
