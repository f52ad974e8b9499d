"""The glossary is read strictly, and the project's own says nothing that it forbids."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from press.project import page, sidelit
from sidelit.catalog import catalog, po_file
from sidelit.config import glossary
from sidelit.errors import SidelitError
from sidelit.lint import lint

OURS = Path(__file__).parents[3] / "site" / "glossary.toml"
LANGUAGES = ("en", "ja", "zh")
ROW = '[[term]]\nen = "layer"\nja = "層"\nzh = "层"\n'


def read(path: Path, text: str) -> glossary.Glossary:
    path.write_text(text, encoding="utf-8")
    return glossary.read(path, "site/glossary.toml", LANGUAGES)


def test_a_plain_row_needs_no_more_than_its_words(tmp_path: Path) -> None:
    (term,) = read(tmp_path / "g.toml", ROW).terms
    assert term == glossary.Term(
        name="layer",
        text={"ja": "層", "zh": "层"},
        match=("layer", "layers"),
        accept={"ja": ("層",), "zh": ("层",)},
        pattern={},
        note={},
        meaning={},
        line=1,
    )


def test_every_field_is_read(tmp_path: Path) -> None:
    text = (
        'allow = ["GPU"]\n\n'
        + ROW
        + (
            'match = ["layer"]\naccept = { zh = ["层", "层级"] }\nnever = ["图层"]\nwrong = ["面"]\n'
            "pattern = { ja = '(?<!a)b' }\nfirst_use = true\nnote = { en = \"One unit.\" }\n"
            'meaning = { en = "A part.", ja = "部分。", zh = "部分。" }\nsee = ["unit.py", "flat.py#Flat"]\n'
        )
    )
    found = read(tmp_path / "g.toml", text)
    assert found == glossary.Glossary(
        terms=(
            glossary.Term(
                name="layer",
                text={"ja": "層", "zh": "层"},
                match=("layer",),
                accept={"ja": ("層",), "zh": ("层", "层级")},
                never=("图层",),
                wrong=("面",),
                pattern={"ja": "(?<!a)b"},
                first_use=True,
                note={"en": "One unit."},
                meaning={"en": "A part.", "ja": "部分。", "zh": "部分。"},
                see=("unit.py", "flat.py#Flat"),
                line=3,
            ),
        ),
        allow=("GPU",),
    )


def test_a_site_may_have_no_glossary(tmp_path: Path) -> None:
    assert glossary.read(tmp_path / "none.toml", "none.toml", LANGUAGES) == glossary.Glossary()


def test_a_glossary_may_be_one_list(sample: Path) -> None:
    text = 'term = [\n  { en = "ring", ja = "リング", zh = "环" },\n]\n'
    (sample / "site/glossary.toml").write_text(text, encoding="utf-8")
    sidelit("build", cwd=sample)
    assert "term-ring" in page(sample / "build/site", "glossary.html").ids


WRONG = {
    "no TOML": ("[[term]\n", "not valid TOML"),
    "another table": ("[words]\n", ":1: unknown table 'words'; there are `allow` and [[term]]"),
    "one table": ("[term]\n", ":1: `allow` is a list of words and [[term]] a list of tables"),
    "no list": ("allow = 3\n", ":1: `allow` is a list of words"),
    "no English": ('[[term]]\nja = "層"\n', ":1: the row has no `en`; give it as `en = "),
    "no Chinese": (ROW + '\n[[term]]\nen = "a"\nja = "b"\n', ":6: the row has no `zh`"),
    "unknown field": (ROW + "nevers = []\n", ":1: unknown field `nevers`; there is en, ja, zh, match"),
    "never is a text": (ROW + 'never = "x"\n', ":1: `never` is a list of words"),
    "accept is a list": (ROW + 'accept = ["x"]\n', ":1: `accept` is a table by language"),
    "accept holds nothing": (ROW + "accept = { ja = [] }\n", ":1: `accept.ja` should be a list of words"),
    "no pattern": (ROW + 'pattern = { ja = "(" }\n', ":1: `pattern.ja` should be a regular expression"),
    "half a meaning": (
        ROW + 'meaning = { en = "One." }\n',
        ":1: `meaning` lacks 'ja'; give it as `meaning.ja",
    ),
    "first_use is a text": (ROW + 'first_use = "yes"\n', ":1: `first_use` is true or false"),
    "twice": (
        ROW + "\n" + ROW,
        ":6: 'layer' is also matched by the row at line 1; a form has one row",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), WRONG.values(), ids=WRONG.keys())
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(SidelitError) as caught:
        read(tmp_path / "g.toml", text)
    assert str(caught.value).startswith("site/glossary.toml:")
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "forms"),
    [
        ("Reduce-scatter, then gather.", ["Reduce-scatter", "gather"]),
        ("The forward-pass hook", ["forward-pass", "hook"]),
        ("two batches of micro-batches", ["batches", "micro-batches"]),
        ("latencies", ["latencies"]),
        ("a lossless flagship", []),
        ("ZeRO starts from zero", ["ZeRO"]),
        ("the optimizer states of an optimizer", ["optimizer states", "optimizer"]),
        ("forward\npasses", ["forward\npasses"]),
    ],
)
def test_terms_are_found_as_whole_words_and_the_longest_first(text: str, forms: list[str]) -> None:
    finder = glossary.Finder(glossary.read(OURS, "site/glossary.toml", LANGUAGES))
    assert [form for form, _ in finder.find(text)] == forms


def test_a_meaning_stands_on_the_page_in_its_language_and_links_to_what_explains_it(sample: Path) -> None:
    sidelit("build", cwd=sample)
    built = sample / "build/site"
    english, japanese = page(built, "glossary.html"), page(built, "ja/glossary.html")
    assert "What is seen of a Ring at once." in english.text
    assert "一度に見えるRingの部分。" in japanese.text
    for shown in (english, japanese):
        assert "tools/window.html#Window" in shown.addresses
    assert "What is seen" not in japanese.text


def test_a_link_of_a_row_that_leads_nowhere_is_named_with_its_line(sample: Path) -> None:
    path = sample / "site/glossary.toml"
    text = path.read_text("utf-8")
    path.write_text(text.replace("window.py#Window", "window.py#Door"), "utf-8")
    told = sidelit("build", cwd=sample, code=1).stderr
    assert "site/glossary.toml:6" in told
    assert "Door" in told


def test_each_of_our_own_terms_says_what_it_means() -> None:
    ours = glossary.read(OURS, "site/glossary.toml", LANGUAGES)
    assert [term.name for term in ours.terms if not term.meaning] == []
    # A term that no page explains says so by having no link, and those are few.
    assert len([term for term in ours.terms if not term.see]) <= 3


@pytest.mark.parametrize("lang", LANGUAGES[1:])
def test_our_own_words_pass_our_own_lints(lang: str) -> None:
    ours = glossary.read(OURS, "site/glossary.toml", LANGUAGES)
    assert len(ours.terms) > 100
    entries = {
        ("glossary", form): po_file.Entry("glossary", form, said, path="g", line=term.line)
        for term in ours.terms
        for form in term.match[:1]
        for said in term.accept[lang][:1]
    }
    found = lint.lint_catalog(catalog.Catalog("glossary", lang, entries), ours)
    assert [str(finding) for finding in found if finding.severity == "error"] == []
    # What a row shows, it accepts.
    for term in ours.terms:
        assert any(word in term.text[lang] for word in term.accept[lang]), term.name


# ---- Where a term is used ----

ZYGOTE = '\n[[term]]\nen = "zygote"\nja = "接合子"\nzh = "合子"\n'
RING = """

def told():
    '''A zygote is put into a zygote.'''


def once():
    '''A zygote.'''
"""


def listed(folder: Path, lang: str = "") -> dict[str, list[str]]:
    """The addresses that each row of the glossary lists."""
    html = (folder / "build/site" / lang / "glossary.html").read_text(encoding="utf-8")
    rows = re.finditer(r'(?s)<tr id="([^"]+)".*?(?=<tr id=|</tbody>)', html)
    return {row[1]: re.findall(r'<a href="([^"]+)"', row[0]) for row in rows}


def test_a_term_lists_the_sections_that_use_it_in_every_language(sample: Path) -> None:
    with (sample / "src/sample/ring.py").open("a", encoding="utf-8") as file:
        file.write(RING)
    with (sample / "site/pages/notes/reading.md").open("a", encoding="utf-8") as file:
        file.write("\n\n## A zygote\n\nA zygote is none.\n")
    with (sample / "site/glossary.toml").open("a", encoding="utf-8") as file:
        file.write(ZYGOTE)
    sidelit("build", cwd=sample)
    # A heading counts for more than sentences, and of a page the section that says it most is listed.
    wanted = ["notes/reading.html#a-zygote", "ring.html#told"]
    assert listed(sample)["term-zygote"] == wanted
    assert listed(sample, "ja")["term-zygote"] == wanted


def test_a_term_that_no_page_uses_lists_nothing(sample: Path) -> None:
    with (sample / "site/glossary.toml").open("a", encoding="utf-8") as file:
        file.write(ZYGOTE)
    sidelit("build", cwd=sample)
    assert listed(sample)["term-zygote"] == []
