"""Every figure of the book: drawn from its recordings, and in no number without them."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from built import CONFIG, ROOT, file_of
from built import NAMES as PAGES
from sidelit.errors import SidelitError
from sidelit.figures.drawing import Drawing, Easel
from sidelit.figures.figure import FOLDER, Figure, read

SITE = ROOT / "site"
NAMES = sorted(path.stem for path in (SITE / FOLDER).glob("*.toml"))
# How many of a recording's numbers are changed, one after the other.
TRIES = 120


@cache
def figure(name: str) -> Figure:
    """A figure as it was written."""
    return read(CONFIG, name)


def draw(of: Figure) -> Drawing:
    """Draw it in English."""
    return Easel(SITE / FOLDER, "site/figures").draw(of, None)


def numbers(data: Any) -> Iterator[tuple[Any, Any]]:
    """Where each number of a recording lies: what holds it, and its key there."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data):
        if isinstance(value, (dict, list)):
            yield from numbers(value)
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield data, key


def changed(of: Figure, place: int) -> Iterator[Figure]:
    """The same figure with another number in one of its recordings, again and again."""
    recording = of.recordings[place]
    count = sum(1 for _ in numbers(recording.data))
    for number in random.Random(0).sample(range(count), min(TRIES, count)):
        data = copy.deepcopy(recording.data)
        holder, key = list(numbers(data))[number]
        holder[key] = holder[key] * 2 + 1
        other = [*of.recordings]
        other[place] = replace(recording, data=data)
        yield replace(of, recordings=tuple(other))


def shown(drawing: Drawing) -> tuple[Any, ...]:
    """All that a reader sees of it."""
    said = (drawing.title[1].content, drawing.description, drawing.caption[1].content)
    return (*said, str(drawing.wide), str(drawing.narrow), drawing.rows)


PAIRS = [
    pytest.param(name, place, id=f"{name}-{recording.name}")
    for name in NAMES
    for place, recording in enumerate(figure(name).recordings)
]


@pytest.mark.cases(now=4, ci=4)
@pytest.mark.parametrize(("name", "place"), PAIRS)
def test_another_recording_makes_another_drawing_or_none(name: str, place: int) -> None:
    before, drawn, refused = shown(draw(figure(name))), 0, 0
    for other in changed(figure(name), place):
        try:
            drawn += shown(draw(other)) != before
        except SidelitError:
            refused += 1
        if drawn:
            break
    assert drawn, f"of {TRIES} changed numbers none made another drawing, {refused} were refused"


@pytest.mark.cases(now=9, ci=9)
@pytest.mark.parametrize("name", NAMES)
def test_a_figure_has_a_drawing_for_narrow_screens(name: str) -> None:
    drawing = draw(figure(name))
    assert drawing.narrow is not None
    assert drawing.narrow != drawing.wide


def test_each_figure_is_shown_on_a_page() -> None:
    texts = [file_of(page).read_text("utf-8") for page in PAGES]
    shown_there = {
        name for text in texts for name in re.findall(r"(?m)^(?:# )?(?::figure:|::: figure) (\w+)$", text)
    }
    assert shown_there == {*NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_no_number_of_a_sentence_is_typed(name: str) -> None:
    words = figure(name).said
    for context in ("title", "description", "caption"):
        prose = re.sub(r"`[^`]*`|\{\w+\}|FP\d+|BF\d+|ZeRO-\d|\d+ bits", "", words[context][1].content)
        assert not re.search(r"\d[.,]?\d", prose), f"{context}: fill it in from the recording"
