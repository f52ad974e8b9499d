"""A figure on its page: in every language, beside its numbers, and never twice under one id."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from press.figures import studio
from press.project import edit, page, sidelit, translate
from sidelit.config import config
from sidelit.errors import SidelitError
from sidelit.site import site as press

SHOWN = "\n::: figure bars\n:::\n"


@pytest.fixture
def site(sample: Path) -> Path:
    site = studio.furnish(sample)
    with (site / "pages" / "index.md").open("a", encoding="utf-8") as index:
        index.write(SHOWN)
    return site


def built(sample: Path) -> dict[str, str]:
    files = press.whole_files(config.load(sample / "site" / "sidelit.toml"))
    return {name: content.decode() for name, content in files.items() if name.endswith(".html")}


def figure(html: str) -> str:
    """The figure of a page, from its tag to its end."""
    return html[html.index('<figure class="drawing"') : html.index("</figure>")]


def test_a_page_shows_the_figure_its_numbers_and_their_origin(sample: Path, site: Path) -> None:
    sidelit("build", "--out", "out", cwd=sample)
    html = figure((sample / "out" / "index.html").read_text("utf-8"))
    assert html.count('role="img" aria-labelledby="figure-bars-title"') == 2
    assert '<desc id="figure-bars-wide-desc">Two bars, one for each size.</desc>' in html
    for said in ("python -m sample.ring", "0123456789ab", "two cores", "python 3.11"):
        assert said in re.sub("<[^>]*>", "", html), said
    assert re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", html) == [
        "Size",
        "Bytes",
        "4",
        "400\u202fB",
        "9",
        "900\u202fB",
    ]
    whole = page(sample / "out", "index.html")
    assert len(whole.ids) == len(set(whole.ids))
    assert {"hatch-2", "figure-bars"} <= set(whole.ids)


def test_only_pages_with_figures_load_what_figures_need(sample: Path, site: Path) -> None:
    made = built(sample)
    for name, html in made.items():
        needs = name.endswith("index.html")
        assert ("assets/figures.css" in html, "assets/figures.js" in html, "hatch-2" in html) == (
            needs,
        ) * 3, name


def test_a_figure_may_stand_twice_on_a_page(sample: Path, site: Path) -> None:
    with (site / "pages" / "index.md").open("a", encoding="utf-8") as index:
        index.write(SHOWN)
    sidelit("build", "--out", "out", cwd=sample)
    ids = page(sample / "out", "index.html").ids
    assert {"figure-bars", "figure-bars-2", "figure-bars-2-wide-desc"} <= set(ids)
    assert len(ids) == len(set(ids))


@pytest.mark.full
def test_any_section_of_a_chapter_may_name_one(sample: Path, site: Path) -> None:
    with (sample / "src/sample/ring.py").open("a", encoding="utf-8") as ring:
        ring.write("\n\n# Two sizes.\n#\n# :figure: bars\n")
    html = next(text for name, text in built(sample).items() if name.endswith("ring.html"))
    section = html[html.index("Two sizes.") :]
    assert section.index('<figure class="drawing"') < section.index("</section>")
    assert ":figure:" not in html


def test_a_changed_recording_changes_the_page(sample: Path, site: Path) -> None:
    before = built(sample)
    studio.record(site, {**studio.RECORDED, "data": [{"size": 4, "bytes": 400}, {"size": 9, "bytes": 800}]})
    after = built(sample)
    assert {name for name in before if before[name] != after[name]} == {
        "index.html",
        "ja/index.html",
        "zh/index.html",
    }
    assert "Ring holds 800\u202fB at most" in after["index.html"]


@pytest.mark.parametrize("name", ["parts/mark.svg", "mark.txt", "other.svg"])
def test_a_changed_drawing_that_another_one_includes_changes_the_page(
    sample: Path, site: Path, name: str
) -> None:
    drawings = site / "figures"
    (drawings / "parts").mkdir()
    (drawings / "other.toml").write_text(studio.WORDS, "utf-8")
    (drawings / "other.svg").write_text("", "utf-8")
    (drawings / name).write_text('<rect class="first"/>', "utf-8")
    edit(drawings / "bars.svg", "{{ axis_below", f'{{% include "{name}" %}}\n{{{{ axis_below')
    assert '<rect class="first"/>' in built(sample)["index.html"]
    (drawings / name).write_text('<rect class="second"/>', "utf-8")
    assert '<rect class="second"/>' in built(sample)["index.html"]


def test_a_page_is_in_its_language_and_says_what_is_missing(sample: Path, site: Path) -> None:
    sidelit("sync", cwd=sample)
    words = {
        "Ring holds {most} at most": "Ringは最大{most}です",
        "The second ring is {ratio} times as large. See `Ring`.": "2番目は{ratio}倍です。`Ring` を参照。",
        "Two bars, one for each size.": "2本の棒です。",
        "size {n}": "大きさ{n}",
    }
    translate(site / "locale" / "ja" / "figures" / "bars.po", words)
    made = built(sample)
    html = re.sub("<wbr>", "", figure(made["ja/index.html"]))
    assert "Ringは最大900\u202fBです" in html
    assert "2番目は2.25倍です" in html
    assert '<desc id="figure-bars-wide-desc">2本の棒です。</desc>' in html
    assert '<p class="badge missing">' in html
    assert '<text x="80" y="14" lang="en">' in html
    assert '<p class="claim" id="figure-bars-title" lang="en">' in figure(made["zh/index.html"])


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pages/index.md", "figure bars", "figure bar", r"site/pages/index.md:\d+: there is no figure 'bar'"),
        (
            "figures/bars.toml",
            "See `Ring`",
            "See [it](nowhere.md)",
            r"site/figures/bars.toml:3: .*nowhere.md",
        ),
        ("figures/bars.toml", "See `Ring`", "See $\\\\frac$", r"site/figures/bars.toml:3: .*frac"),
        ("recorded/rings.json", '"bytes": 900', '"octets": 900', r"site/figures/bars.svg:3: .*'bytes'"),
    ],
)
def test_a_mistake_stops_the_build_at_its_line(
    sample: Path, site: Path, file: str, old: str, new: str, said: str
) -> None:
    edit(site / file, old, new)
    with pytest.raises(SidelitError, match=said):
        built(sample)


def test_a_caption_links_to_a_section_from_any_page(sample: Path, site: Path) -> None:
    edit(site / "figures" / "bars.toml", "See `Ring`", "See [`Ring`](src:sample/ring.py#Ring)")
    made = built(sample)
    assert '<a href="ring.html#Ring"><code>Ring</code></a>' in figure(made["index.html"])
