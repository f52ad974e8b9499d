"""Formulas: set without a network or a browser, refused with their line, remembered on disk."""

from __future__ import annotations

import hashlib
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidelit.cache.store import Store
from sidelit.errors import SidelitError
from sidelit.files.assets import templates_folder
from sidelit.text import math
from sidelit.text.math import Typesetter

FORMULAS = (
    r"N_d",
    r"\frac{4\Psi}{N_d}",
    r"\sqrt[3]{x^2 + 1}",
    r"\left\lceil \frac{\Psi}{N_d} \right\rceil \cdot N_d",
    r"\sum_{r=0}^{N_d - 1} \nabla L_r",
    r"\begin{aligned} a &= b \\ c &= d \end{aligned}",
    r"\underset{x}{\arg\max}\; f(x)",
    r"\stackrel{!}{=}",
    r"a < b \mathbin{\&} c > d",
    r"\overbrace{a + b}^{\text{合計 sum}}",
)


@pytest.fixture
def typesetter() -> Typesetter:
    return Typesetter()


def test_a_formula_is_for_the_eye_and_for_a_screen_reader(typesetter: Typesetter) -> None:
    html = typesetter.render(r"N_d")
    assert html.startswith('<span class="katex"><span class="katex-mathml"><math xmlns=')
    assert '<annotation encoding="application/x-tex">N_d</annotation>' in html
    assert '<span class="katex-html" aria-hidden="true">' in html


def test_a_displayed_formula_is_another_one(typesetter: Typesetter) -> None:
    html = typesetter.render(r"\sum_i i", display=True)
    assert html.startswith('<span class="katex-display">')
    assert 'display="block"' in html
    assert html != typesetter.render(r"\sum_i i")


def test_words_in_chinese_or_japanese_get_a_font_of_their_own(typesetter: Typesetter) -> None:
    assert '<span class="mord cjk_fallback">合計</span>' in typesetter.render(r"\text{合計}")


def test_macros(typesetter: Typesetter) -> None:
    with pytest.raises(SidelitError):
        typesetter.render(r"\ranks")
    html = Typesetter(macros={r"\ranks": "N_d"}).render(r"\ranks")
    assert "<msub><mi>N</mi><mi>d</mi></msub>" in html
    assert "<mtext>for all</mtext>" in typesetter.render(r"x \mbox{for all} y").replace("\u00a0", " ")


def test_a_definition_inside_a_formula_does_not_reach_the_next(typesetter: Typesetter) -> None:
    assert typesetter.render(r"\gdef\ranks{N_d}\ranks")
    with pytest.raises(SidelitError, match=r"Undefined control sequence: \\ranks"):
        typesetter.render(r"1\ranks")


@pytest.mark.parametrize("display", [False, True])
@pytest.mark.parametrize("tex", FORMULAS)
def test_mathml_is_what_html_allows(typesetter: Typesetter, tex: str, display: bool) -> None:
    mathml = re.search(r"<math.*?</math>", typesetter.render(tex, display=display), re.DOTALL)
    assert mathml is not None
    stack: list[str] = []
    for ending, name in re.findall(r"<(/?)(\w+)[^>]*?(?<!/)>", mathml[0]):
        if ending:
            assert stack.pop() == name
        else:
            assert not stack or stack[-1] not in ("mi", "mo", "mn", "mtext")
            stack.append(name)
    assert stack == []


def test_the_cells_of_a_numbered_formula_have_no_width(typesetter: Typesetter) -> None:
    assert "<mtd width" not in typesetter.render(r"x \tag{1}", display=True)


@pytest.mark.parametrize(
    ("tex", "line"),
    [
        ("\\oops", 7),
        ("\n\n  \\oops", 9),
        ("a\n\\begin{aligned}\n b \\\\\n \\oops\n\\end{aligned}", 10),
        ("{", 7),
    ],
)
def test_a_refusal_names_the_line_inside_the_formula(typesetter: Typesetter, tex: str, line: int) -> None:
    with pytest.raises(SidelitError) as caught:
        typesetter.render(tex, path="a.py", line=7)
    assert (caught.value.path, caught.value.line) == ("a.py", line)
    assert "\n" not in str(caught.value)


def test_a_long_formula_is_shortened_in_the_message(typesetter: Typesetter) -> None:
    with pytest.raises(SidelitError, match=r"`(a\+){29}a…`: Undefined control sequence: \\oops"):
        typesetter.render("a+" * 200 + r"\oops")


@pytest.mark.parametrize(
    "tex",
    [
        r"\href{javascript:alert(1)}{x}",
        r"\url{https://example.org}",
        r"\includegraphics{https://example.org/a.png}",
        r"\htmlClass{a}{x}",
        r"\htmlId{a}{x}",
        r"\htmlStyle{color: red}{x}",
        r"\htmlData{a=b}{x}",
    ],
)
def test_commands_that_reach_into_the_page_are_refused(typesetter: Typesetter, tex: str) -> None:
    with pytest.raises(SidelitError, match=r"is not allowed in a formula|HTML extension is disabled"):
        typesetter.render(tex)


@pytest.mark.parametrize("tex", [r"\def\a{\a\a}\a", "{" * 5000, r"\def\a#1{\a{#1#1}}\a{aa}"])
def test_a_formula_without_end_is_refused_and_the_next_is_set(typesetter: Typesetter, tex: str) -> None:
    with pytest.raises(SidelitError):
        typesetter.render(tex)
    assert typesetter.render("x")


def test_an_engine_out_of_time_is_replaced(typesetter: Typesetter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math, "_engine", None)
    monkeypatch.setattr(math, "_SECONDS", 0.01)
    with monkeypatch.context() as broken:
        broken.setattr(math, "_DOOR", "function press() { for (;;) {} }")
        with pytest.raises(SidelitError, match="takes too much time or memory"):
            typesetter.render("y")
    monkeypatch.setattr(math, "_SECONDS", 10.0)
    assert typesetter.render("y")
    monkeypatch.setattr(math, "_engine", None)


def test_threads_share_the_engine() -> None:
    alone = [Typesetter().render(tex) for tex in FORMULAS]
    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(Typesetter().render, FORMULAS * 8))
    assert together == alone * 8


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store of a user who has a home of his own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    return Store(tmp_path / "work")


def entries(kept: Store) -> list[str]:
    """The names of what is kept."""
    assert kept.path
    with closing(sqlite3.connect(kept.path)) as database:
        return [name for (name,) in database.execute("select name from kept")]


def asleep(request: str) -> dict[str, object]:
    raise AssertionError(f"the engine was asked: {request}")


def test_what_was_set_once_is_read_from_disk(
    kept: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = [Typesetter(store=kept).render(tex) for tex in FORMULAS]
    assert len(entries(kept)) == len(FORMULAS)
    monkeypatch.setattr(math, "_ask", asleep)
    assert [Typesetter(store=kept).render(tex) for tex in FORMULAS] == first
    for changed in (
        lambda: Typesetter(store=kept).render(FORMULAS[0], display=True),
        lambda: Typesetter(store=kept).drawn(FORMULAS[0]),
        lambda: Typesetter(store=kept, macros={r"\a": "b"}).render(FORMULAS[0]),
        lambda: Typesetter(store=Store(tmp_path / "other")).render(FORMULAS[0]),
    ):
        with pytest.raises(AssertionError, match="the engine was asked"):
            changed()


def test_a_formula_that_somebody_else_has_put_there_is_not_shown(kept: Store, tmp_path: Path) -> None:
    html = Typesetter(store=kept).render("x")
    assert kept.path
    with closing(sqlite3.connect(kept.path, isolation_level=None)) as database:
        ((content,),) = database.execute("select content from kept").fetchall()
        database.execute("update kept set content = ?", (content[:-7] + b"<script",))
    assert Typesetter(store=kept).render("x") == html


def test_another_katex_has_other_entries(
    kept: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Typesetter(store=kept).render("x")
    monkeypatch.setattr(math, "_script_digest", lambda: "another")
    Typesetter(store=kept).render("x")
    assert len(entries(kept)) == 2


def test_a_refused_formula_is_refused_again(kept: Store, tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(SidelitError):
            Typesetter(store=kept).render(r"\oops")
    assert entries(kept) == []


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("", encoding="utf-8")
    assert Typesetter(store=Store(file)).render("x")


@given(st.text(), st.booleans())
def test_any_text_is_set_or_refused(tex: str, display: bool) -> None:
    refusal = None
    try:
        assert "<script" not in Typesetter().render(tex, display=display, path="a.py", line=1)
    except SidelitError as error:
        refusal = str(error)
    assert refusal is None or (refusal.startswith("a.py:") and "\n" not in refusal)


def test_the_vendored_files_are_those_of_one_release() -> None:
    folder = templates_folder() / "katex"
    listed = dict(
        reversed(line.split("  ")) for line in (folder / "CHECKSUMS").read_text(encoding="utf-8").splitlines()
    )
    for name, digest in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
    assets = folder.parent / "assets" / "katex"
    present = {f"../assets/katex/{file.relative_to(assets).as_posix()}" for file in assets.rglob("*.*")}
    assert present | {"katex.min.js", "LICENSE", "../assets/katex/LICENSE"} == set(listed)
    css = (assets / "katex-swap.min.css").read_text(encoding="utf-8")
    script = (folder / "katex.min.js").read_text(encoding="utf-8")
    assert 'content:"0.19.1"' in css
    assert 'version:"0.19.1"' in script


def test_the_stylesheet_asks_only_for_fonts_that_are_there() -> None:
    assets = templates_folder() / "assets" / "katex"
    css = (assets / "katex-swap.min.css").read_text(encoding="utf-8")
    fonts = set(re.findall(r"url\(([^)]+)\)", css))
    assert fonts == {f"fonts/{file.name}" for file in (assets / "fonts").iterdir()}
    assert len(fonts) == 20
    assert "//" not in css.replace("/*", "")
