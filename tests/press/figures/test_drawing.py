"""A figure is drawn from its recording, in each language, and refused where something of it is missing."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from press.figures import studio
from press.project import edit, sidelit, translate
from sidelit.errors import SidelitError


@pytest.fixture
def site(sample: Path) -> Path:
    return studio.furnish(sample)


def texts(svg: str) -> list[str]:
    """What is written in a drawing, in order."""
    return ["".join(each.itertext()) for each in ElementTree.fromstring(svg).iter("text")]


def widths(svg: str, kind: int) -> list[float]:
    bars = ElementTree.fromstring(svg).iter("rect")
    return [float(bar.attrib["width"]) for bar in bars if f"kind-{kind}" in bar.get("class", "")]


def test_a_drawing_shows_the_data_and_nothing_else(sample: Path, site: Path) -> None:
    drawn = studio.draw(sample)
    # 900 bytes on an axis that ends at 1000: nine tenths of the 550 units between the margins.
    assert widths(drawn.wide, 1) == [pytest.approx(220)]
    assert widths(drawn.wide, 2) == [pytest.approx(495)]
    assert "url(#hatch-2)" in drawn.wide
    assert "url(#hatch-1)" not in drawn.wide
    assert texts(drawn.wide)[:3] == ["bytes of a Ring", "size 4", "size 9"]
    assert texts(drawn.wide)[3:] == [
        "0\u202fB",
        *(f"{tick}\u202fB" for tick in (200, 400, 600, 800)),
        "1\u202fkB",
    ]
    assert [[str(cell) for cell in row] for row in drawn.rows] == [["4", "400\u202fB"], ["9", "900\u202fB"]]
    assert drawn.title[1].content == "Ring holds 900\u202fB at most"
    assert drawn.caption[1].content == "The second ring is 2.25 times as large. See `Ring`."
    assert drawn.narrow is not None
    assert widths(drawn.narrow, 2) == [pytest.approx(225)]


def test_another_recording_makes_another_drawing(sample: Path, site: Path) -> None:
    before = studio.draw(sample)
    studio.record(site, {**studio.RECORDED, "data": [{"size": 4, "bytes": 400}, {"size": 9, "bytes": 500}]})
    after = studio.draw(sample)
    assert after.wide != before.wide
    assert after.caption[1].content == "The second ring is 1.25 times as large. See `Ring`."


def test_a_figure_is_drawn_in_each_language(sample: Path, site: Path) -> None:
    sidelit("sync", cwd=sample)
    catalogue = site / "locale" / "ja" / "figures" / "bars.po"
    translate(
        catalogue, {"size {n}": "大きさ{n}", "bytes of a `Ring`": "`Ring` のバイト数", "Size": "大きさ"}
    )
    drawn = studio.draw(sample, "ja")
    assert texts(drawn.wide)[:3] == ["Ring のバイト数", "大きさ4", "大きさ9"]
    assert [str(head) for head in drawn.heads] == ["大きさ", "Bytes"]
    # The title is not translated: it is English, and the page is told so.
    assert drawn.state == "missing"
    assert drawn.title[0].attrs["lang"] == "en"
    assert drawn.heads[1].lang == "en"
    assert texts(studio.draw(sample, "zh").wide)[1] == "size 4"
    assert 'lang="en"' in studio.draw(sample, "zh").wide


def test_translators_see_the_words_of_a_figure(sample: Path, site: Path) -> None:
    sidelit("sync", cwd=sample)
    told = sidelit("status", cwd=sample).stdout
    rows = [line.split() for line in told.splitlines() if line.startswith("figures/bars")]
    assert rows == [["figures/bars", lang, "0", "0", "0", "7"] for lang in ("ja", "zh")]
    catalogue = site / "locale" / "ja" / "figures" / "bars.po"
    translate(catalogue, {"size {n}": "大きさ"})
    found = sidelit("lint", cwd=sample, code=1).stderr
    assert "figures/bars.po" in found
    assert "blanks: " in found
    with pytest.raises(SidelitError, match=r"site/locale/ja/figures/bars.po:\d+: .* other blanks .* \{n\}"):
        studio.draw(sample, "ja")


def test_code_from_the_data_is_set_as_code_and_is_no_markup(sample: Path, site: Path) -> None:
    edit(site / "figures" / "bars.svg", 'word("bytes")', 'code("a < *b*")')
    edit(site / "figures" / "bars.toml", 'bytes = "bytes of a `Ring`"\n', "")
    drawn = studio.draw(sample)
    assert '<tspan class="code">a &lt; *b*</tspan>' in drawn.wide


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('data = ["rings.json"]', 'data = ["knots.json"]', "bars.toml:4: there is no recording knots.json"),
        ('data = ["rings.json"]', "data = []", "bars.toml:4: .* names no file"),
        ('title = "', 'titel = "', "bars.toml:1: the key `title` is missing"),
        ('table = ["Size", "Bytes"]', "table = []", "bars.toml:5: `table` names the columns"),
        ('size = "size {n}"', "size = 3", "bars.toml:8: the word 'size' must be a string"),
        ('size = "size {n}"', 'size = "size {m}"', r"bars.toml:8: nothing is put into the blank \{m\}"),
        ('size = "size {n}"', 'size = "*size* {n}"', "bars.toml:8: 'em' has no place"),
        ("See `Ring`", "See {where}", r"bars.toml:3: nothing is put into the blank \{where\}"),
        ("[words]\n", '[words]\nspare = "spare"\n', "bars.toml:8: the word 'spare' stands nowhere"),
        ('size = "size {n}"\n', "", "bars.svg:7: .* there is no word 'size' in site/figures/bars.toml"),
        ("[words]\n", "[wrods]\n", "bars.toml:7: unknown key `wrods`"),
    ],
)
def test_a_mistake_in_the_words_has_its_line(sample: Path, site: Path, old: str, new: str, said: str) -> None:
    edit(site / "figures" / "bars.toml", old, new)
    with pytest.raises(SidelitError) as refused:
        studio.draw(sample)
    assert str(refused.value).startswith("site/figures/")
    refused.match(said)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("row(ring.size,", "row(ring.sizes,", "bars.svg:9: .* no attribute 'sizes'"),
        ("data.rings %}", "data.knots %}", "bars.svg:5: .* no attribute 'knots'"),
        ("{{ row(ring.size, size(ring.bytes)) }}", "{{ row(ring.size) }}", "bars.svg:9: .* a row of 1 cells"),
        ("{{ row(ring.size, size(ring.bytes)) }}", "", "bars.svg:1: the template has no row"),
        ('word("bytes")', '"bytes"', "bars.svg:4: .* 'bytes' comes from no catalogue"),
        ("{% endfor %}", "", "bars.svg:.* not a valid template"),
        ("</svg>", "<text>Ring</text></svg>", "bars.svg:14: 'Ring' is typed into the drawing"),
        ("</svg>", "</g>", "bars.svg:1: what it draws is not well-formed, near '</g>'"),
        ("</svg>", '<path id="a"/></svg>', 'bars.svg:1: <path id="a"> does not follow the page'),
        ("</svg>", '<path fill="#fff"/></svg>', 'bars.svg:1: <path fill="#fff"> does not follow'),
        ("</svg>", '<path onclick="go()"/></svg>', "bars.svg:1: .* does not follow the page"),
        ("</svg>", "<script/></svg>", "bars.svg:1: <script> has no place"),
        ("{{ width }} 120", "600 120", 'bars.svg:1: the drawing begins with <svg viewBox="0 0 640'),
        (".bytes > data", ".bytes < data", "bars.svg:13: .* no longer says that the second ring is larger"),
    ],
)
def test_a_mistake_in_the_drawing_has_its_line(
    sample: Path, site: Path, old: str, new: str, said: str
) -> None:
    edit(site / "figures" / "bars.svg", old, new)
    with pytest.raises(SidelitError) as refused:
        studio.draw(sample)
    assert str(refused.value).startswith("site/figures/")
    refused.match(said)


@pytest.mark.parametrize(
    ("recorded", "said"),
    [
        ([], "rings.json:1: a recording is an object"),
        ({**studio.RECORDED, "commit": 3}, "rings.json:1: 'commit' has the wrong type"),
        (
            {key: value for key, value in studio.RECORDED.items() if key != "machine"},
            "rings.json:1: .* 'machine'",
        ),
        ({key: value for key, value in studio.RECORDED.items() if key != "data"}, "rings.json:1: .* 'data'"),
        ({**studio.RECORDED, "data": [{"size": 4, "bytes": 400}]}, "bars.svg:3: "),
        ({**studio.RECORDED, "data": [{"size": 4}, {"size": 4}]}, "bars.svg:3: .* no attribute 'bytes'"),
    ],
)
def test_a_recording_that_lacks_something_is_refused(
    sample: Path, site: Path, recorded: object, said: str
) -> None:
    studio.record(site, recorded)
    with pytest.raises(SidelitError, match=said):
        studio.draw(sample)


def test_a_recording_that_is_no_json_is_refused_with_its_line(sample: Path, site: Path) -> None:
    (site / "recorded" / "rings.json").write_text('{\n"data": [,]}', "utf-8")
    with pytest.raises(SidelitError, match=r"site/recorded/rings.json:2: not valid JSON"):
        studio.draw(sample)


def test_words_and_drawing_come_together(sample: Path, site: Path) -> None:
    (site / "figures" / "bars.toml").unlink()
    with pytest.raises(SidelitError, match=r"site/figures/bars.*svg:1: .* bars.toml is missing"):
        studio.draw(sample)
    studio.furnish(sample)
    (site / "figures" / "bars.svg").unlink()
    with pytest.raises(SidelitError, match=r"site/figures/bars.toml:1: there is no drawing bars.svg"):
        studio.draw(sample)


def test_a_name_that_no_figure_has_is_refused_where_it_is_asked_for(sample: Path, site: Path) -> None:
    from sidelit.figures.drawing import Gallery

    with pytest.raises(SidelitError, match=r"page.md:7: there is no figure 'bar'; this site has none"):
        Gallery().draw("bar", "en", "page.md", 7)
