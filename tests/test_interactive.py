"""What a reader can move on the site: the tour within its bounds, the sliders true to their programs."""

from __future__ import annotations

import ast
from itertools import product

import pytest

from built import CONFIG
from shardbook.memory import parse, planned
from shardbook.planning.overlap import Wire
from sidelit.figures import interactive, words
from sidelit.site import site
from sidelit.site.directives import section
from sidelit.site.directives.kind import ProjectIndex
from sidelit.text import directives

TOUR = "site/lessons/one_step.md"


@pytest.fixture(scope="module")
def book() -> ProjectIndex:
    """All pages of the site."""
    return site.book(CONFIG, site.texts(CONFIG))


@pytest.fixture(scope="module")
def taken(book: ProjectIndex) -> list[section.Taken]:
    """The sections that the tour shows; what is depth cannot be taken."""
    given = map(directives.read, directives.among(book.pages[TOUR].tokens))
    return [section.take(each, book) for each in given if each.name == "section"]


@pytest.mark.nightly
def test_the_tour_shows_one_step_in_25_sections_and_250_lines(taken: list[section.Taken]) -> None:
    assert len(taken) <= 25
    assert sum(each.stop - each.start for each in taken) <= 250


def test_the_tour_is_the_last_lesson() -> None:
    assert CONFIG.course.lessons[-1].source == TOUR


def test_the_tour_shows_the_lines_whose_absence_the_twins_replay(taken: list[section.Taken]) -> None:
    shown = {number for each in taken for number, _ in each.section.lines[each.start : each.stop]}
    made = interactive.read_stepper(CONFIG, "step")
    assert sorted(made.twins) == ["no_mean", "no_wait"]
    for twin in made.twins.values():
        (removed,) = {(event.path, event.definition, event.line) for event in twin.events if event.removed}
        text = (CONFIG.project / "src" / removed[0]).read_text("utf-8")
        first, last = definition(text, removed[1])
        (number,) = (
            number
            for number, line in enumerate(text.splitlines()[:last], 1)
            if number >= first and line.strip() == removed[2]
        )
        assert number in shown, removed


def definition(text: str, qualname: str) -> tuple[int, int]:
    """The first and the last line of a method."""
    owner, _, name = qualname.partition(".")
    (found,) = (
        node
        for each in ast.parse(text).body
        if isinstance(each, ast.ClassDef) and each.name == owner
        for node in each.body
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    return found.lineno, found.end_lineno or found.lineno


@pytest.mark.full
def test_every_point_of_the_planners_sliders_is_the_planners_answer() -> None:
    made = interactive.read_sliders(CONFIG, "planner")
    numels, ranks = made.recording.data["axes"]
    points = list(product(numels["values"], ranks["values"]))
    assert len(points) == len(made.points)
    for (numel, world_size), point in zip(points, made.points, strict=True):
        stages = planned(parse(["--params", str(numel), "--ranks", str(world_size)]))["zero"]
        sums = [sum(stage[part] for part in made.parts) for stage in stages]
        assert [row.text for row in point] == [words.size(each) for each in sums]
        for row, stage in zip(point, stages, strict=True):
            shares = [100 * stage[part] / max(sums) for part in made.parts]
            assert row.widths == pytest.approx(shares, abs=0.006)


def test_every_point_of_the_gathers_sliders_is_what_the_chapter_computes() -> None:
    made = interactive.read_sliders(CONFIG, "overlap")
    points = list(product(*(axis["values"] for axis in made.recording.data["axes"])))
    assert len(points) == len(made.points)
    for (flops, bandwidth, tokens), point in zip(points, made.points, strict=True):
        wire = Wire(flops, bandwidth, ranks=8)
        assert [row.text for row in point] == [
            words.duration(wire.compute_seconds(100e6, tokens)),
            words.duration(wire.gather_seconds(100e6)),
            words.number(1 + wire.waited(tokens)),
            words.number(wire.enough_tokens()),
        ]


def test_the_sliders_begin_with_the_cases_that_the_text_names() -> None:
    planner, overlap = (interactive.read_sliders(CONFIG, name) for name in ("planner", "overlap"))
    assert [axis.values[axis.start] for axis in planner.axes] == ["7.5", "64"]
    assert [row.text.replace("\u202f", " ") for row in planner.start] == [
        "120 GB",
        "31.4 GB",
        "16.6 GB",
        "1.88 GB",
    ]
    assert [row.text.replace("\u202f", " ") for row in overlap.start] == ["2.05 ms", "3.5 ms", "1.71", "7000"]
