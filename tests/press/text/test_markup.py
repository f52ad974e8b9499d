"""Tokens: what is a unit of translation, where a chapter's title ends, and on which line things stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it.utils import read_fixture_file

from sidelit.text import markup

DATA = Path(__file__).parents[1] / "data" / "markup"
CHAPTER = "# The *layer*\n\n> Whole only\n> while used.\n\nText.\n\n> A quotation.\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(text, expected, id=title)
        for _, title, text, expected in read_fixture_file(DATA / "units.md")
    ],
)
def test_units(text: str, expected: str) -> None:
    units = [unit.content.replace("\n", "⏎") for unit in markup.units(markup.parse(text))]
    assert "".join(f"{unit}\n" for unit in units) == expected


def test_a_chapter_opens_with_title_and_lede() -> None:
    opening = markup.opening(markup.parse(CHAPTER))
    assert opening.title is not None
    assert opening.title.content == "The *layer*"
    assert markup.plain(opening.lede) == "Whole only while used."
    assert markup.plain(opening.rest) == "Text. A quotation."


@pytest.mark.parametrize("text", ["", "Text.\n", "## Second level\n", "> No title.\n"])
def test_a_text_without_title_is_all_rest(text: str) -> None:
    tokens = markup.parse(text)
    assert markup.opening(tokens) == markup.Opening(None, (), tokens)


def test_plain_keeps_words_alone() -> None:
    token = markup.parse("**Bold**, `code`, $N_d$,\n[a link](x), ![a *picture*](y), 1 < 2[^n]\n\n[^n]: z\n")[
        1
    ]
    assert markup.plain(token) == "Bold, code, N_d, a link, a picture, 1 < 2"


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("Wait for the optimizer", "wait-for-the-optimizer"),
        ("Why `resize_(0)`, and not `del`?", "why-resize-0-and-not-del"),
        ("Café au lait", "cafe-au-lait"),
        ("one two three four five six seven eight nine", "one-two-three-four-five-six-seven-eight"),
        # Dashes and quotes that ASCII lacks have always been left out.
        ("It’s a mean – 1×2 … ½", "its-a-mean-12-12"),
        ("層", "層"),
        ("安装 PyTorch：第一步", "安装-pytorch-第一步"),
        ("ガイド（概要）", "ガイド-概要"),
        ("हिन्दी में", "हिन्दी-में"),
        ("Й и ё", "й-и-ё"),
        ("Smørrebrød", "smørrebrød"),
        ("→ …", ""),
    ],
)
def test_slug(text: str, slug: str) -> None:
    assert markup.heading_slug(text) == slug


def slugs(text: str, *, old: bool = False) -> list[str]:
    headings = [token for token in markup.parse(text) if token.type == "heading_open"]
    return ["".join(token.meta["aliases"]) if old else token.meta["slug"] for token in headings]


def test_every_heading_has_its_own_slug() -> None:
    assert slugs("# a\n\n## a\n\n## a 2\n\n## 層\n\n## 列\n") == ["a", "a-2", "a-2-2", "層", "列"]
    assert slugs("## →\n\n## …\n") == ["section", "section-2"]


def test_no_heading_has_the_id_of_a_footnote() -> None:
    text = "## Note\n\n## Note\n\n## Note 2\n\n## Ref 1\n\n## Ref 1\n"
    assert slugs(text) == ["note", "note-heading-2", "note-2-2", "ref-1", "ref-1-heading-2"]


def test_a_heading_that_got_its_slug_from_ascii_alone_answers_to_it() -> None:
    text = "## 安装 PyTorch\n\n## 卸载 PyTorch\n\n## PyTorch\n\n## 概要\n"
    assert slugs(text) == ["安装-pytorch", "卸载-pytorch", "pytorch", "概要"]
    # What another heading is called now is nobody's old name.
    assert slugs(text, old=True) == ["", "pytorch-2", "pytorch-3", "section"]


@pytest.mark.parametrize("written", ["{#install}", "{ #install }", "{: #install}", "{#install .wide}"])
@pytest.mark.parametrize("directives", [False, True])
def test_an_author_may_say_the_id_of_a_heading(written: str, directives: bool) -> None:
    tokens = markup.parse(f"## Install\n\n## 安装 {written} ##\n", directives=directives)
    assert [token.meta["slug"] for token in tokens if "slug" in token.meta] == ["install-2", "install"]
    assert [token.content for token in markup.units(tokens)] == ["Install", "安装"]
    assert list(markup.anchors(tokens)) == ([] if directives else ["install"])


@pytest.mark.parametrize("heading", ["`{#x}`", "{#}", "{#a b", "f{x}", r"\{#x\}"])
def test_what_only_looks_like_an_id_stays_in_the_heading(heading: str) -> None:
    assert [token.content for token in markup.units(markup.parse(f"## {heading}\n"))] == [heading]


def test_lines_of_what_stands_inside_a_paragraph() -> None:
    text = "# T\n\nOne `a\nb` [x](y)\n$z$ and  \n![p](q) end[^1]\n\n- i\n  [l](m)\n\n[^1]: f\n    [n](o)\n"
    lines = {
        child.attrs.get("href") or child.attrs.get("src") or child.content: markup.line_of(child, token)
        for token in markup.units(markup.parse(text, path="a.py", first_line=100))
        for child in token.children or ()
        if child.type in ("code_inline", "link_open", "math_inline", "image")
    }
    assert lines == {"a b": 102, "y": 103, "z": 104, "q": 105, "m": 108, "o": 111}


def test_a_translation_takes_the_place_of_the_english() -> None:
    tokens = markup.parse("See [it][r] and[^1].\n\n[r]: x.py\n\n[^1]: Note.\n", path="a.py", first_line=7)
    english = tokens[1]
    same = markup.reinline(english, "[これ][r]と[^1]。")
    assert [child.type for child in same.children or () if child.nesting >= 0] == [
        *("link_open", "text", "text", "footnote_ref", "text"),
    ]
    assert (markup.path_of(same), markup.line_of(same)) == ("a.py", 7)
    carried = markup.reinline(english, "訳", path="a.po", line=30)
    assert (markup.path_of(carried), markup.line_of(carried)) == ("a.po", 30)
    assert english.content == "See [it][r] and[^1]."
    assert (markup.path_of(english), markup.line_of(english)) == ("a.py", 7)


@given(st.text())
def test_any_text_has_tokens_whose_lines_are_in_it(text: str) -> None:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").count("\n") + 1
    tokens = markup.parse(text, first_line=1)
    for token in tokens:
        assert 1 <= markup.line_of(token) <= lines
    for unit in markup.units(tokens):
        assert all(1 <= markup.line_of(child, unit) <= lines for child in unit.children or ())
        assert "\n" not in markup.plain(unit)


def test_on_a_page_an_indented_line_goes_on_with_its_paragraph_as_in_any_markdown() -> None:
    text = "Text:\n    - a\n    - b\n"
    kinds = {how: [token.type for token in markup.parse(text, directives=how)] for how in (True, False)}
    assert kinds[True] == ["paragraph_open", "inline", "paragraph_close"]
    assert "bullet_list_open" in kinds[False]
