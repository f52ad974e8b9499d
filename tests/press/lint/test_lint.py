"""Every rule finds what it is for, and nothing in a good translation."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from press.project import edit, sidelit
from sidelit.catalog import catalog, po_file, sync
from sidelit.config import glossary
from sidelit.config.toml import read_toml
from sidelit.lint import lint
from sidelit.source import source

DATA = Path(__file__).parents[1] / "data"
TERMS = glossary.read(DATA / "lint_glossary.toml", "lint_glossary.toml", ("en", "ja", "zh"))
CASES = read_toml(DATA / "lint.toml", "lint.toml")["case"]


def findings(
    lang: str, en: str, said: str, *, notes: tuple[str, ...] = (), **flags: bool
) -> list[lint.Finding]:
    entry = po_file.Entry("module", en, said, notes=notes, path="ja/page.po", line=7, **flags)
    return list(lint.lint_catalog(catalog.Catalog("page", lang, {entry.key: entry}), TERMS))


def rules(found: list[lint.Finding]) -> set[str]:
    return {finding.rule for finding in found}


@pytest.mark.parametrize(
    "case", CASES, ids=[f"{case['rule']}-{case['lang']}-{case['bad']}" for case in CASES]
)
def test_a_rule_finds_its_mistake_and_only_that(case: dict[str, Any]) -> None:
    assert findings(case["lang"], case["en"], case["good"]) == []
    found = findings(case["lang"], case["en"], case["bad"])
    assert rules(found) == {case["rule"], *case.get("also", [])}
    assert any(case["says"] in finding.sentence for finding in found)
    assert {str(finding).split(" ")[0] for finding in found} == {"ja/page.po:7:"}


def test_every_rule_has_a_case() -> None:
    assert {case["rule"] for case in CASES} == {rule.name for rule in lint.RULES} | {lint.FIRST_USE}


def test_only_meaning_and_first_use_are_warnings() -> None:
    assert [rule.name for rule in lint.RULES if rule.severity == "warning"] == ["negation"]
    assert findings("ja", "The forward pass.", "順伝播。")[0].severity == "warning"


@pytest.mark.parametrize(
    ("en", "said"),
    [
        # A double negation is a "must", and "asynchronous" is no negation.
        ("Each rank has to wait.", "各ランクは待たなければなりません。"),
        ("It runs asynchronously.", "非同期に動きます。"),
        # The words of a link, and strong text that ends with punctuation.
        ("**Wait.** Then see [that](x.md).", "**待ちます。**次に[それ](x.md)を見ます。"),
        # An address, a name with a capital inside, a letter.
        (
            "See https://example.org/a-page, then PyTorch or A.",
            "https://example.org/a-pageとPyTorchかAを見ます。",
        ),
        ("The number of values, without padding.", "値の個数（パディングを除く）。"),
        ("1-D, of one dtype.", "1次元で、データ型は1つです。"),
        ("Not only the shard.", "シャードだけではありません。"),
    ],
)
def test_good_japanese_passes(en: str, said: str) -> None:
    assert findings("ja", en, said) == []


def test_what_readers_do_not_see_is_not_linted() -> None:
    assert findings("ja", "It is so.", "そう です ( )", fuzzy=True) == []
    assert findings("ja", "It is so.", "It is so.", same=True) == []
    assert findings("ja", "It is so.", "It is so.") == []


def test_a_term_needs_its_english_only_once_on_a_page() -> None:
    texts = {
        "The forward pass.": "順伝播。",
        "A forward-pass hook.": "順伝播（forward pass）のフック。",
        "Forward passes.": "順伝播。",
    }
    entries = {("m", en): po_file.Entry("m", en, said, path="p.po", line=1) for en, said in texts.items()}
    assert lint.lint_catalog(catalog.Catalog("p", "ja", entries), TERMS) == ()


def test_a_rule_may_be_overruled_for_a_reason() -> None:
    en, said = "The gradient.", "傾き。"
    assert rules(findings("ja", en, said)) == {"term"}
    assert findings("ja", en, said, notes=("allow: term, geometry, not training",)) == []
    assert findings("ja", "The forward pass.", "順伝播。", notes=("allow: first-use, a heading",)) == []


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        ("allow: term", "say why: `# allow: term, because …`"),
        ("allow: terms, because", "there is no rule 'terms'"),
        ("allow: please, because", "nothing here breaks the rule 'please' any more"),
    ],
)
def test_an_allowance_is_checked_itself(note: str, sentence: str) -> None:
    found = findings("ja", "The gradient.", "傾き。", notes=(note,))
    assert any(finding.rule == "allow" and sentence in finding.sentence for finding in found)


def test_a_finding_points_at_the_line_of_the_translation(tmp_path: Path) -> None:
    page = sync.PageUnits("page", (sync.SectionUnits("module", ("First.", "The gradient.")),))
    locale = tmp_path / "site" / "locale"
    catalog.sync([page], locale, ["ja"])
    po = locale / "ja" / "page.po"
    text = po.read_text(encoding="utf-8").replace('gradient."\nmsgstr ""', 'gradient."\nmsgstr "傾き。"')
    po.write_text(text, encoding="utf-8")
    (found,) = lint.lint_catalog(catalog.load([page], locale, ["ja"]).catalog("page", "ja"), TERMS)
    line = text.split("\n").index('msgstr "傾き。"') + 1
    assert str(found) == f"site/locale/ja/page.po:{line}: term: 'gradient' is 勾配 in the glossary"


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from(["ja", "zh"]))
def test_no_text_breaks_a_lint(en: str, said: str, lang: str) -> None:
    for finding in findings(lang, en, said):
        assert re.fullmatch(r"ja/page\.po:7: [a-z-]+: .+", str(finding).replace("\n", " "), re.DOTALL)


RAW = [
    ("module", '"""# A\n\nIt is $\\alpha$."""\n', 3),
    ("function", 'def f():\n    """$x$ and\n    $\\text{a}$."""\n', 3),
    ("class", 'class A:\n    u"""A $\\beta$."""\n', 2),
    ("display", '"""A\n\n$$\nx \\frac{1}{2}\n$$\n"""\n', 4),
    ("after a byte-order mark", '\ufeff"""\n$\\tau$"""\n', 2),
    ("async", 'async def f():\n    "$\\tau$"\n', 2),
]


@pytest.mark.parametrize(("text", "line"), [case[1:] for case in RAW], ids=[case[0] for case in RAW])
def test_tex_in_a_docstring_wants_a_raw_one(text: str, line: int) -> None:
    (found,) = lint.lint_source(source.parse(text, "a.py"))
    assert str(found) == (
        f"a.py:{line}: tex-not-raw: a formula has a backslash, and Python reads it first; "
        'start the docstring with r"""'
    )


@pytest.mark.parametrize(
    "text",
    [
        'r"""It is $\\alpha$."""\n',
        'R"""It is $\\alpha$."""\n',
        '"""A tab \\t and $x$."""\n',
        '"""It is $\\\\alpha$, for $5.\\n"""\n',
        '"""It is $x$."""\nx = "$\\\\alpha$"\n',
        "# It is $\\alpha$.\n",
        "",
    ],
)
def test_other_sources_pass(text: str) -> None:
    assert lint.lint_source(source.parse(text, "a.py")) == ()


def test_what_nobody_sees_is_told_with_its_line(sample: Path) -> None:
    line = edit(sample / "src/sample/ring.py", "LIMIT = 8", "LIMIT = 8  # \u202eeight\u202c")
    told = sidelit("lint", cwd=sample, code=1).stderr
    assert (
        f"src/sample/ring.py:{line}: hidden-character: U+202E, RIGHT-TO-LEFT OVERRIDE, is not seen by who "
        "reads this line; remove it, or write its escape" in told
    )
    configuration = sample / "site/sidelit.toml"
    before = configuration.read_text("utf-8")
    section = re.search(r"escape \[(.+)\]", told)
    assert section
    allowed = f'source = "src/sample/ring.py"\nsection = "{section[1]}"\nbecause = "it is an example"\n'
    for added in (
        '[lint.rules]\nhidden-character = "off"\n',
        f'[[lint.allow]]\nrule = "hidden-character"\n{allowed}',
    ):
        configuration.write_text(f"{before}\n{added}", encoding="utf-8")
        assert "hidden-character" not in sidelit("lint", cwd=sample).stderr


def test_a_hide_without_a_show_is_linted(sample: Path) -> None:
    line = edit(sample / "src/sample/ring.py", "LIMIT = 8", "# sidelit: hide\nLIMIT = 8")
    told = sidelit("lint", cwd=sample, code=1).stderr
    assert f"src/sample/ring.py:{line}: " in told
    (finding,) = lint.lint_source(source.parse("x = 1\n# sidelit: show\n", "some.py"))
    assert (finding.line, finding.severity) == (2, "error")
    assert lint.lint_source(source.parse("# sidelit: hide\nx = 1\n# sidelit: show\n", "some.py")) == ()
