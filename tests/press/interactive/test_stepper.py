"""A stepper in a small project: the strip that is printed, its words in the catalogues, and all mistakes."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from press.interactive import studio
from press.project import edit, sidelit, translate

LESSON = "site/lessons/steps.md"
WORDS = "site/steppers/put.toml"
PRINTED = "steps.html"


@pytest.fixture
def project(sample: Path) -> Path:
    """The sample project with a lesson that has a stepper, and a moment of it."""
    studio.furnish(sample)
    return sample


def events(text: str) -> list[dict[str, str]]:
    """The data of each event in the strip."""
    found = re.findall(r'<li class="event" ([^>]*)>', text)
    return [dict(re.findall(r'([\w-]+)="([^"]*)"', attributes)) for attributes in found]


# ## The strip


def test_the_strip_has_every_scene_event_and_line(project: Path) -> None:
    text = studio.built(project, PRINTED)
    assert re.findall(r'<p class="sentence">(.*?)</p>', text) == ["A ring is made.", "An item goes round."]
    found = events(text)
    assert [each["id"] for each in found] == ["put-1", "put-2", "put-3", "put-4"]
    assert [each["data-states"] for each in found] == ["00", "01", "01", "22"]
    assert [each["data-stacks"] for each in found] == ["0,10 0,20", "0,10 0,20", "50,10 0,20", "50,10 80,20"]
    source = (project / "src/sample/ring.py").read_text("utf-8").splitlines()
    assert [source[int(each["data-line"]) - 1].strip() for each in found] == [studio.DEQUE] * 2 + [
        studio.APPEND
    ] * 2
    # Two lines that stand near each other are shown once.
    assert [each["data-excerpt"] for each in found] == ["0", "0", "1", "1"]
    assert text.count('class="excerpt"') == 2


def test_an_event_leads_to_its_line_and_says_what_travels(project: Path) -> None:
    text = studio.built(project, PRINTED)
    line = events(text)[2]["data-line"]
    assert f'href="ring.html#line-{line}"' in text
    assert f'id="line-{line}"' in (project / "build/site/ring.html").read_text("utf-8")
    assert "rank 1 sends 1.5\u202fkB" in text
    assert "each rank sends 900\u202fB" in text
    # The unit is counted in the order of the states, not by its name.
    assert [each.get("data-unit") for each in events(text)] == [None, None, "0", "1"]
    assert [each.get("data-from") for each in events(text)] == [None, None, "1", "all"]


def test_a_twin_is_told_where_it_differs(project: Path) -> None:
    text = studio.built(project, PRINTED)
    assert "<b>Without the item.</b> Nothing is put: 2 items are missing." in text
    assert [each.get("data-removed") for each in events(text)] == [None, None, "no_put", None]
    assert re.findall(
        r'<span class="remark(?: known)?"( data-twin="no_put" hidden)?>(?:the|2)(.*?)</span>', text
    ) == [
        ("", " sum is 3 and 4"),
        (' data-twin="no_put" hidden', " items are lost, first <code>x</code>"),
        (' data-twin="no_put" hidden', " sum is 6 and 8"),
    ]


@pytest.mark.full
def test_a_moment_is_the_end_of_its_scene(project: Path) -> None:
    (moment,) = re.findall(r'(?s)<div class="moment">(.*)</div>', studio.built(project, PRINTED))
    assert 'href="#put-2"' in moment
    assert re.findall(r"Rank (\d) <b>(.*?)</b>", moment)[:2] == [("0", "10\u202fB"), ("1", "20\u202fB")]


@pytest.mark.full
def test_a_moment_on_another_page_leads_to_the_stepper_and_brings_its_legend(project: Path) -> None:
    assert 'class="kinds"' not in re.findall(r'(?s)<div class="moment">.*', studio.built(project, PRINTED))[0]
    with (project / "site/pages/notes/reading.md").open("a", encoding="utf-8") as notes:
        notes.write("\n::: moment put put\n:::\n")
    text = studio.built(project, "notes/reading.html")
    assert 'href="../steps.html#put-4"' in text
    assert re.findall(r'<i class="k\d"></i> (.*?)</li>', text) == ["items of the ring", "all else"]


def test_a_page_has_the_script_only_where_it_needs_it(project: Path) -> None:
    with_it, without = studio.built(project, PRINTED), studio.built(project, "ring.html")
    for file in ("stepper.js", "stepper.css"):
        assert file in with_it
        assert file not in without


def test_the_words_are_translated_and_what_is_not_is_marked(project: Path) -> None:
    sidelit("sync", cwd=project)
    translate(project / "site/locale/ja/steppers/put.po", {"A ring is made.": "リングを作る。"})
    text = studio.built(project, "ja/steps.html")
    assert '<p class="sentence"><span class="whole">リングを作る。</span></p>' in text
    assert '<p class="sentence"><span lang="en">An item goes round.</span></p>' in text
    assert "ランク0" in text
    assert [each["id"] for each in events(text)] == ["put-1", "put-2", "put-3", "put-4"]


# ## Mistakes


change = studio.change
words = partial(studio.words, WORDS)
MISTAKES = {
    "no such stepper": (
        words("stepper put", "stepper putt", LESSON),
        "no stepper 'putt'; did you mean 'put'",
    ),
    "no such scene": (words("put make", "put mak", LESSON), "no scene 'mak'; did you mean 'make'"),
    "words": (words("stepper put\n", "stepper put\nSo.\n", LESSON), "`stepper` takes no words"),
    "no recording": (words('"put.json"', '"puts.json"'), "puts.json"),
    "no sentence": (words('make = "A ring is made."\n', ""), "[scenes] has no sentence for 'make'"),
    "no such word": (words("EMPTY =", 'GONE = "gone"\nEMPTY ='), "the recording has no 'states/GONE'"),
    "no note": (words('sum = "the', 'sums = "the'), "[notes] has no sentence for 'sum'"),
    "no value": (words("{missing}", "{number}"), "nothing is put into the blank {number}; there is missing"),
    "no string": (
        words('make = "A ring is made."', "make = 3"),
        "the word `make` of [scenes] must be a string",
    ),
    "no run": (
        change("put", lambda data: data.pop("events")),
        "`data` is no run that can be replayed: KeyError",
    ),
    "no line": (
        change("put", lambda data: [event.update(line="x = 1") for event in data["events"][:1]]),
        "the twin 'no_put' goes another way from event 0 on; record both again",
    ),
    "no way": (
        change("no_put", lambda data: data["events"].pop()),
        "the twin 'no_put' goes another way from event 0 on",
    ),
    "scenes": (
        change("put", lambda data: data["scenes"][1].update(first=9)),
        "its scenes do not follow each other from the first event on",
    ),
    "kinds": (
        change("put", lambda data: data["kinds"].pop()),
        "another number of kinds or units than the run",
    ),
    "unit": (
        change("put", lambda data: data["events"][0].update(unit="c")),
        "an event is about a unit that the run has not",
    ),
}


@pytest.mark.cases(now=9, ci=9)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_its_place(project: Path, mistake: str) -> None:
    make, told = MISTAKES[mistake]
    make(project)
    said = studio.refused(project)
    assert told in said
    assert re.match(r"site/(steppers/put.toml|recorded/\w+.json|lessons/steps.md):\d+: ", said)


@pytest.mark.cases(now=1, ci=1)
@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (studio.APPEND, "self._items.append( item)", "which is not there, or in depth"),
        (studio.APPEND, f"{studio.APPEND}\n        {studio.APPEND}", "which is there 2 times"),
    ],
)
def test_a_line_that_was_changed_has_to_be_recorded_again(
    project: Path, old: str, new: str, why: str
) -> None:
    edit(project / "src/sample/ring.py", old, new)
    said = studio.refused(project)
    assert f"the recording names the line '{studio.APPEND}' of sample/ring.py#Ring.put, {why}" in said
    assert said.endswith("record the run again")
