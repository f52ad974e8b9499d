"""Where a line may end: what is put into a page is elements alone, at the places that a reader expects."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidelit.text import linebreaks
from sidelit.text.linebreaks import phrases_of, settle

TERMS = ("アクティベーション", "ページ")


def settled(html: str, lang: str = "en") -> str:
    """The main part of a page, without its tags."""
    page = settle(f"<body><main>{html}</main></body>", phrases_of(lang, TERMS))
    return page.removeprefix("<body><main>").removesuffix("</main></body>").replace(linebreaks.WHOLE, "[")


CODE = {
    "an option": ("--nproc-per-node 2", "[--nproc-per-node</span> 2"),
    "a range": ("3–5", "[[3–5</span></span>"),
    "a path": (".venv/bin/python -m x", "[.venv/bin/python</span> [-m</span> x"),
    "a short name": ("state_dict", "state_dict"),
    "a long name": ("torch.distributed.checkpoint", "torch.<wbr>distributed.<wbr>checkpoint"),
    "a longer one": (
        "set_allocate_memory_from_group.x",
        "set_<wbr>allocate_<wbr>memory_<wbr>from_<wbr>group.<wbr>x",
    ),
    "a sign": ("a &lt; b", "a &lt; b"),
}


@pytest.mark.parametrize("name", CODE)
def test_code_in_a_sentence_ends_its_lines_at_spaces(name: str) -> None:
    typed, shown = CODE[name]
    assert settled(f"<p><code>{typed}</code></p>") == f"<p><code>{shown}</code></p>"


def test_a_sample_is_rows_that_know_how_far_they_are_indented() -> None:
    sample = '<pre class="sample" tabindex="0"><code>for x in y:\n    f(x)\n\n  --a-b\n</code></pre>'
    assert settled(sample) == (
        '<pre class="sample" tabindex="0"><code><span class="row">for x in y:\n</span>'
        '<span class="row by-4">    f(x)\n</span><span class="row">\n</span>'
        '<span class="row by-2">  [--a-b</span>\n</span></code></pre>'
    )


@pytest.mark.parametrize("number", ["0.699–0.791", "15 GB", "≈1.5 ms", "100 GB/s", "0.3–0.4%"])
def test_a_number_stays_with_its_range_and_its_unit(number: str) -> None:
    assert settled(f"<p>It is {number}, or so.</p>") == f"<p>It is [{number}</span>, or so.</p>"


@pytest.mark.parametrize("words", ["2 ranks", "stage 3", "11%", "a–b", "1.2.3", "3 sizes"])
def test_other_numbers_are_left_as_they_are(words: str) -> None:
    assert settled(f"<p>{words}</p>") == f"<p>{words}</p>"


TAILS = {
    "a phrase": (
        "ja",
        "<p>状態を保存してから再計算します。</p>",
        "<p>状態を保存してから[再計算します。</span></p>",
    ),
    "Chinese": ("zh", "<p>优化器更新所有参数的副本。</p>", None),
    "behind code": (
        "ja",
        "<p>ここでは<code>x</code>です。</p>",
        "<p>ここでは[<code>x</code>です。</span></p>",
    ),
    "in a link": ("ja", '<p><a href="#">次の章を参照してください</a></p>', None),
    "before a list": ("ja", "<ul><li>最初の項目の言葉です<ul><li>次</li></ul></li></ul>", None),
}


@pytest.mark.parametrize("name", TAILS)
def test_a_paragraph_does_not_end_with_a_letter_alone(name: str) -> None:
    lang, typed, shown = TAILS[name]
    made = settled(typed, lang)
    assert shown is None or made == shown
    (bound,) = re.findall(r"\[(.*?)</span>", made)
    assert 4 <= len(re.sub("<[^>]*>", "", bound)) <= 9


def test_what_holds_no_words_is_laid_out_by_what_holds_it() -> None:
    legend = '<ul><li><i class="p1"></i> 参数</li></ul>'
    assert settled(legend, "zh") == legend


def test_a_heading_ends_its_lines_behind_phrases_and_names_of_two_words_where_a_term_ends() -> None:
    title = "<h1>アクティベーションチェックポインティング</h1>"
    assert settled(title, "ja") == '<h1 class="longer">アクティベーション<wbr>チェックポインティング</h1>'
    assert settled("<th>对应情况</th>", "zh") == "<th>对应情况</th>"
    head = '<p class="lede">関数の引数だけを残し、<code>x</code>は逆伝播の中で再計算します。</p>'
    assert "残し、<wbr>" in settled(head, "ja")
    # Where phrases are not known, the browser decides.
    assert settled(title) == title


@given(st.text("あ阿ア、。（）1 %–x<>&", max_size=40), st.sampled_from(["p", "h2", "td", "code"]))
def test_a_page_keeps_all_of_its_letters(text: str, tag: str) -> None:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for lang in ("en", "ja", "zh", "zh-TW"):
        page = f"<main><p>x</p><{tag}>{escaped}</{tag}><svg><text>{escaped}</text></svg></main>"
        made = settle(page, phrases_of(lang))
        assert re.sub("<[^>]*>", "", made) == re.sub("<[^>]*>", "", page).rstrip() or made
        assert re.sub(r"<[^>]*>|\s", "", made) == re.sub(r"<[^>]*>|\s", "", page)
        assert len(re.findall(r"<\w", made)) - made.count("<wbr>") == made.count("</")


def test_what_is_outside_of_the_main_part_is_left_alone() -> None:
    assert settle("<head><title>15 GB</title></head><p>15 GB</p>") == (
        "<head><title>15 GB</title></head><p>15 GB</p>"
    )


def test_a_full_stop_of_ascii_touches_the_ideograph_before_it() -> None:
    typed = "<p>工具模块. <code>x</code>, 见 a. 好，再来一个更长的段落, 然后结束.</p>"
    touching = re.findall(r'(.)<span class="touches">(.)</span>', settled(typed, "zh"))
    assert touching == [("块", "."), ("落", ","), ("束", ".")]
    assert "touches" not in settled(typed)
