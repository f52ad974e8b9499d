"""What commentary looks like as HTML: cases that stand as data, and laws that hold for any text."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it.utils import read_fixture_file

from sidelit.errors import SidelitError
from sidelit.text import inlines, markup, prose
from sidelit.text.inlines import Slots
from sidelit.text.math import Typesetter

DATA = Path(__file__).parents[1] / "data" / "markup"
VOID = {"br", "hr", "img"}
TAGS = {
    *VOID,
    *("a", "aside", "blockquote", "caption", "code", "div", "em", "li", "ol", "p", "pre", "span", "strong"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"),
    *("cite", "del", "ins", "kbd", "mark", "samp", "small", "sub", "u", "var"),
}
ATTRIBUTES = {
    *(
        "alt",
        "aria-label",
        "class",
        "data-label",
        "data-state",
        "href",
        "id",
        "lang",
        "loading",
        "rel",
        "role",
        "scope",
    ),
    *("src", "start", "tabindex", "title"),
}


class Bare:
    """A typesetter that shows what it was given, so that cases stay readable."""

    def render(self, tex: str, *, display: bool, path: str | None, line: int | None) -> str:
        return f"<b>{tex.strip().replace('<', '&lt;')}</b>"


def resolve(target: str, line: int) -> str:
    if target.startswith("missing"):
        raise SidelitError(f"{target} does not exist", hint="correct the link")
    return target if target.startswith(("#", "//", "other:", "java")) else f"../{target}"


def html(text: str, **settings: object) -> str:
    values = {"resolve": resolve, "math": Bare(), **settings}
    tokens = markup.parse(text, path="page.md", first_line=10)
    return prose.render(tokens, context=inlines.RenderContext(**values))


def cases(name: str) -> list[object]:
    return [
        pytest.param(text, expected, id=title) for _, title, text, expected in read_fixture_file(DATA / name)
    ]


@pytest.mark.parametrize(("text", "expected"), [*cases("html.md"), *cases("cjk.md")])
def test_html(text: str, expected: str) -> None:
    assert html(text, section="S.f") == expected


@pytest.mark.parametrize(("count", "printed"), [(500, "“"), (1_000, '"')])
def test_a_text_of_thousands_of_quotes_keeps_them_as_they_were_typed(count: int, printed: str) -> None:
    assert html('"a" ' * count).startswith(f"<p>{printed}a")


@pytest.mark.parametrize(("text", "expected"), cases("xss.md"))
def test_nothing_in_a_text_becomes_a_program(text: str, expected: str) -> None:
    assert html(text) == expected
    assert_safe(expected)


@pytest.mark.parametrize(("text", "expected"), cases("fatal.md"))
def test_a_mistake_is_one_sentence_with_its_own_line(text: str, expected: str) -> None:
    with pytest.raises(SidelitError) as caught:
        html(text, math=Typesetter())
    assert str(caught.value) == expected.rstrip("\n")


@pytest.mark.parametrize(("text", "expected"), cases("fatal.md"))
def test_a_lenient_page_shows_a_mistake_as_it_was_typed(text: str, expected: str) -> None:
    shown = html(text, math=Typesetter(), strict=False)
    assert shown
    assert_safe(shown)


def test_the_sieve_holds_even_where_escaping_would_fail() -> None:
    slots = Slots()
    place = slots.inline('<img src="a.png" onclick="ours">')
    words = (
        f'<p class="untranslated evil" onclick="x" lang="en" style="color: red">{place}<script>x</script>'
        '<a href="javascript:x" data-slot="zero">a</a><iframe src="x"></iframe><!-- c --><b>b</b></p>'
    )
    assert slots.fill(words) == (
        '<p class="untranslated" lang="en"><img src="a.png" onclick="ours"><a data-slot="zero">a</a>b</p>'
    )


def test_what_fills_a_place_is_not_searched_for_places() -> None:
    slots = Slots()
    places = slots.block('<span data-slot="1"></span>') + slots.inline("second")
    assert slots.fill(places) == '<span data-slot="1"></span>second'


def test_without_a_typesetter_formulas_are_shown_as_typed() -> None:
    assert html("a $x<y$\n\n$$\nz\n$$\n", math=None) == (
        "<p>a <code>$x&lt;y$</code></p>\n<p><code>$$\nz\n$$</code></p>\n"
    )


def test_headings_keep_the_ids_of_the_english() -> None:
    tokens = list(markup.parse("# The layer\n\n## The layer\n\n## 層\n"))
    tokens[1] = markup.reinline(tokens[1], "層")
    context = inlines.RenderContext(resolve=resolve, heading_ids=True)
    assert prose.render(tokens, context=context) == (
        '<h1 id="the-layer">層</h1>\n<h2 id="the-layer-2">The layer</h2>\n'
        '<h2 id="層"><span id="section"></span>層</h2>\n'
    )


def test_labels_are_the_readers_and_english_for_the_rest() -> None:
    text = "!!! note\n    x\n\n:param y: z\n"
    shown = html(text, labels={"note": "注意", "parameter": "<引数>"})
    assert '<p class="admonition-title">注意</p>' in shown
    assert '<th scope="col">&lt;引数&gt;</th><th scope="col">Meaning</th>' in shown


def test_marks_of_an_untranslated_block_survive() -> None:
    marks = {"lang": "en", "class": "untranslated", "data-state": "stale"}
    tokens = [
        token.copy(attrs={**token.attrs, **marks}) if token.type in ("paragraph_open", "td_open") else token
        for token in markup.parse("a\n\n- tight\n\n|h|\n|:-:|\n|b|\n\n:param x: y\n")
    ]
    shown = prose.render(tokens, context=inlines.RenderContext(resolve=resolve))
    assert attributes_of(shown, "a") == attributes_of(shown, "tight") == attributes_of(shown, "y") == marks
    assert attributes_of(shown, "b") == {**marks, "class": "untranslated center"}


def attributes_of(page: str, text: str) -> dict[str, str]:
    """The attributes of the innermost element around `text`."""
    found: list[dict[str, str]] = []

    class Search(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.last = {key: value or "" for key, value in attrs}

        def handle_data(self, data: str) -> None:
            if data == text:
                found.append(self.last)

    Search().feed(page)
    assert len(found) == 1
    return found[0]


def test_an_error_in_a_translation_names_the_catalogue() -> None:
    token = markup.parse("Fine [link](a.py).", path="page.md", first_line=10)[1]
    wrong = markup.reinline(token, "だめな[リンク](missing.py)。", path="ja/page.po", line=77)
    with pytest.raises(SidelitError, match=r"^ja/page\.po:77: missing\.py does not exist; correct the link$"):
        prose.render_inline(wrong, context=inlines.RenderContext(resolve=resolve))


def test_footnotes_of_a_translation_lead_back_as_often_as_it_refers() -> None:
    tokens = [
        markup.reinline(token, "一度[^a]、二度[^a]。") if token.content.startswith("Once") else token
        for token in markup.parse("Once[^a].\n\n[^a]: Note.\n")
    ]
    shown = prose.render(tokens, context=inlines.RenderContext(resolve=resolve, section="f"))
    assert shown.count('href="#f:note-1"') == 2
    assert [f'href="#f:ref-1-{n}"' in shown for n in (1, 2, 3)] == [True, True, False]


class Strict(HTMLParser):
    """Accepts only balanced elements from the press's list, without anything that runs."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names))
        assert set(names) <= ATTRIBUTES
        for name, value in attrs:
            if name in ("href", "src"):
                assert urlsplit(value or "").scheme in ("", "http", "https", "mailto")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    handle_decl = handle_pi = unknown_decl = handle_comment  # type: ignore[assignment]


def assert_safe(page: str) -> None:
    parser = Strict()
    parser.feed(page.replace("<b>", "<em>").replace("</b>", "</em>"))
    parser.close()
    assert parser.open == []


MARKS = (
    *("*", "**", "_", "`", "``", "$", "$$", "\\", "[", "](", ")", "![", "<", ">", "&", '"', "'", "^", "[^a]"),
    *(
        "[^a]: ",
        ": ",
        "|",
        "---",
        "- ",
        "1. ",
        "# ",
        "> ",
        ">>> ",
        "!!! ",
        "```",
        "~~~",
        ":param ",
        ":returns:",
    ),
)
WORDS = (
    *("<script>", "</p>", "<!--", "javascript:", '<span data-slot="0"></span>', "</span>", " onclick="),
    *("日本", "「", "」", "。", "かな", "a", "\\frac{a}{b}", "é"),
)
BLANKS = ("\n", "\n\n", "\n    ", "  ", " ", "\t", "\x00", "\ud800", "\u2028", "\r\n")
PIECES = st.sampled_from((*MARKS, *WORDS, *BLANKS))
TEXTS = st.one_of(st.text(), st.lists(PIECES, max_size=40).map("".join))


@given(TEXTS)
def test_any_text_is_printed_safely_or_refused(text: str) -> None:
    refusal = None
    try:
        assert_safe(html(text, resolve=lambda target, line: target))
    except SidelitError as error:
        refusal = str(error)
    assert refusal is None or (refusal.startswith("page.md:") and "\n" not in refusal)


@given(TEXTS)
def test_any_text_is_printed_when_mistakes_are_allowed(text: str) -> None:
    assert_safe(html(text, resolve=lambda target, line: target, strict=False))


@given(TEXTS)
def test_a_translation_that_says_the_same_looks_the_same(text: str) -> None:
    tokens = markup.parse(text, path="page.md", first_line=10)
    copies = [markup.reinline(token, token.content) if token.type == "inline" else token for token in tokens]
    context = inlines.RenderContext(resolve=lambda target, line: "x", strict=False)
    assert prose.render(copies, context=context) == prose.render(tokens, context=context)
