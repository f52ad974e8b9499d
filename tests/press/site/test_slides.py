"""Slides: a lesson cut into a deck, and nothing but what the deck asks for."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from press.project import edit, page, sidelit, tree
from press.site.lessons import ROW, give_lessons
from sidelit.text import columns

HERE = "build/slides/row"


@pytest.fixture
def course(sample: Path) -> Path:
    """The sample project with two lessons."""
    give_lessons(sample)
    return sample


def deck(folder: Path, name: str = "row.html") -> str:
    return (folder / HERE / name).read_text(encoding="utf-8")


def cut(text: str) -> list[str]:
    """What stands on each slide behind the first: its heading or the section that goes on, and its tags."""
    found = re.findall(
        r'(?s)<div class="text"( data-section="[^"]*")?>\n(.*?)(?=</div>\n(?:<div class="text"|</article>))',
        text,
    )
    return [
        (above.partition("=")[2].strip('"'), [tag for tag, _ in columns.elements(words)])
        for above, words in found
    ]


@pytest.mark.full
def test_a_section_is_a_slide_and_a_quoted_one_has_its_own(course: Path) -> None:
    told = sidelit("slides", "row", cwd=course).stdout.splitlines()
    assert told == [str(course / HERE / name) for name in ("row.html", "ja/row.html", "zh/row.html")]
    assert cut(deck(course)) == [
        ("", ["p", "section"]),
        ("", ["h2", "div"]),
        ("What it keeps", ["section"]),
        ("What it keeps", ["section"]),
        ("What it keeps", ["div", "div"]),
    ]
    assert [tags for _, tags in cut(deck(course, "zh/row.html"))] == [tags for _, tags in cut(deck(course))]
    # The page of the site has nothing of that.
    sidelit("build", cwd=course)
    assert "slides" not in (course / "build/site/row.html").read_text(encoding="utf-8")


@pytest.mark.full
def test_every_word_of_the_lesson_is_on_a_slide_once(course: Path) -> None:
    sidelit("build", cwd=course)
    sidelit("slides", "lessons/row", cwd=course)
    for name in ("row.html", "ja/row.html"):
        ids = page(course / "build/site", name).ids
        assert page(course / HERE, name).ids == [each for each in ids if each != "sidelit-contents"]
        assert words(deck(course, name)) == words((course / "build/site" / name).read_text("utf-8"))


def words(text: str) -> str:
    found = re.search(r"(?s)<main.*</main>", text)
    assert found
    return " ".join(re.sub(r"<[^>]*>", " ", found[0]).split())


def test_a_deck_holds_what_it_asks_for_and_leads_nowhere_else(course: Path) -> None:
    sidelit("slides", "row", cwd=course)
    files = tree(course / HERE)
    for name in ("row.html", "ja/row.html", "zh/row.html"):
        for address in page(course / HERE, name).addresses:
            path = address.partition("#")[0]
            if path and not re.match("https://", path):
                assert posixpath.normpath(posixpath.join(posixpath.dirname(name), unquote(path))) in files
        assert "data-index" not in deck(course, name)
    assert "assets/slides.js" in files
    assert not [name for name in files if name.startswith("assets/search/")]


def test_links_lead_to_the_public_address_where_there_is_one(course: Path) -> None:
    edit(course / "site/sidelit.toml", "title = ", 'url = "https://example.org/book/"\ntitle = ')
    sidelit("slides", "row", "--lang", "ja", cwd=course)
    assert 'href="https://example.org/book/ja/notes/reading.html"' in deck(course, "ja/row.html")
    assert not (course / HERE / "row.html").exists()


@pytest.mark.full
def test_a_deck_is_replaced_whole_and_nothing_else_is(course: Path) -> None:
    sidelit("slides", "row", cwd=course)
    before = tree(course / HERE)
    edit(course / ROW, "by itself", "[by itself](nowhere.md)")
    assert "nowhere.md" in sidelit("slides", "row", cwd=course, code=1).stderr
    assert tree(course / HERE) == before
    (course / "mine").mkdir()
    (course / "mine/thesis.txt").write_text("mine")
    told = sidelit("slides", "row", "--out", "mine", cwd=course, code=1).stderr
    assert "this folder holds something that is not a site" in told


def test_what_is_no_lesson_or_no_language_is_refused(course: Path, sample: Path) -> None:
    told = sidelit("slides", "ring", cwd=course, code=1).stderr
    assert told == "'ring' is not a lesson of this site; it has lessons/row, lessons/view\n"
    told = sidelit("slides", "row", "--lang", "fr", cwd=course, code=1).stderr
    assert told.startswith("'fr' is not a language of this site")


NESTED = st.recursive(
    st.sampled_from(["words", "<br>", '<img src="a>b">', "a\nb", "<path d='M0'/>", "&lt;p&gt;"]),
    lambda inner: st.builds(
        lambda tag, parts: f"<{tag}>{''.join(parts)}</{tag}>",
        st.sampled_from(["p", "div", "section", "svg", "h2"]),
        st.lists(inner, max_size=3),
    ),
    max_leaves=12,
)


@given(st.lists(st.tuples(st.sampled_from(["p", "div", "h2", "figure"]), NESTED), min_size=1, max_size=5))
def test_the_elements_of_a_text_are_those_it_was_made_of(parts: list[tuple[str, str]]) -> None:
    text = [(tag, f"<{tag}>{inner}</{tag}>\n") for tag, inner in parts]
    assert list(columns.elements("".join(each for _, each in text))) == text
