"""Sliders in a small project: the answer that is printed, all others beside it, words, mistakes."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from press.interactive import studio
from press.project import sidelit, translate

WORDS = "site/sliders/rings.toml"
PAGE = "site/pages/notes/reading.md"
PRINTED = "notes/reading.html"


@pytest.fixture
def project(sample: Path) -> Path:
    """The sample project with sliders on a page of prose."""
    studio.ask(sample)
    return sample


def answers(text: str) -> list[tuple[str, str]]:
    """The rows that are shown: label and number."""
    return re.findall(r'<li class="result"><span>(.*?)</span> <b>(.*?)</b>', text)


def test_the_page_shows_the_answer_at_the_start(project: Path) -> None:
    text = studio.built(project, PRINTED)
    assert re.findall(r'<li class="choice"[^>]*><span>(.*?)</span> <b>(.*?)</b>', text) == [
        ("places of the ring", "4"),
        ("items that were put", "1"),
    ]
    assert answers(text) == [
        ("kept", "1\u202fB"),
        ("forgotten", "0\u202fB"),
        ("part that is kept", "100%"),
    ]
    assert "<code>make record ARGS=rings</code>" in text
    assert "sliders.js" in text


def test_all_answers_stand_in_the_page_in_the_order_of_the_axes(project: Path) -> None:
    (points,) = re.findall(r'data-points="([^"]*)"', studio.built(project, PRINTED))
    assert points.replace("\u202f", "_").split(";") == [
        "1_B 0 100|0_B 0 0|100%",
        "1_B 0 100|1_B 100 0|50%",
        "1_B 0 12.5|8_B 100 0|11%",
        "1_B 0 100|0_B 0 0|100%",
        "2_B 50 50|0_B 0 0|100%",
        "4_B 60 20|5_B 100 0|44%",
    ]


def test_the_words_are_translated(project: Path) -> None:
    sidelit("sync", cwd=project)
    translate(project / "site/locale/zh/sliders/rings.po", {"kept": "保留"})
    text = studio.built(project, f"zh/{PRINTED}")
    assert "<span>保留</span> <b>1\u202fB</b>" in text
    assert '<span><span lang="en">forgotten</span></span> <b>0\u202fB</b>' in text


change = partial(studio.change, "rings")
words = partial(studio.words, WORDS)
MISTAKES = {
    "no sliders": (words("sliders rings", "sliders ring", PAGE), "no sliders 'ring'; did you mean 'rings'"),
    "words": (words("sliders rings\n", "sliders rings\nSo.\n", PAGE), "`sliders` takes no words"),
    "no recording": (words('"rings.json"', '"ring.json"'), "ring.json"),
    "no sentence": (words('kept = "kept"\n', ""), "[rows] has no sentence for 'kept'"),
    "no such word": (words("old =", 'gone = "gone"\nold ='), "the recording has no 'parts/gone'"),
    "no format": (words('puts = "number"\n', ""), "[formats] does not say how 'puts' is written"),
    "another format": (
        words('"bytes"', '"byte"'),
        "there is no format 'byte'; there is number, billions, bytes",
    ),
    "a format of nothing": (words('rows = "', 'cows = "number"\nrows = "'), "the recording has no 'cows'"),
    "a key": (words("title =", "titel = 1\ntitle ="), "unknown key `titel`"),
    "no table": (change(lambda data: data.pop("axes")), "`data` is no table of answers: KeyError('axes')"),
    "start": (change(lambda data: data["axes"][0].update(start=2)), "an axis starts outside of its values"),
    "list": (change(lambda data: data["answers"][1].pop()), "a list of the answers has 2 entries and not 3"),
    "row": (
        change(lambda data: data["answers"][1][2][0].pop()),
        "a row of an answer has another number of parts than there are",
    ),
}


@pytest.mark.cases(now=10, ci=10)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_place(project: Path, mistake: str) -> None:
    make, told = MISTAKES[mistake]
    make(project)
    said = studio.refused(project)
    assert told in said
    assert re.match(r"site/(sliders/rings.toml|recorded/\w+.json|pages/notes/reading.md):\d+: ", said)
