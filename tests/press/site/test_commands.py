"""A page lists programs with their options, as a recording has them from their parsers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from press.project import edit, page, sidelit, unbroken

OUT = {"names": ["-o", "--out"], "value": "DIR", "default": "build", "help": "where to <write>"}
PROGRAMS: list[dict[str, Any]] = [
    {"name": "ring", "call": "python -m ring", "groups": [{"options": [OUT]}]},
    {
        "name": "ring fill",
        "call": "ring fill",
        "about": "Fills a ring.",
        "example": "ring fill --size 3 a b",
        "groups": [
            {
                "label": "size",
                "options": [{"names": ["--size"], "takes": ["whole", "1", "1,000"], "required": True}],
            },
            {"options": [{"names": ["item"], "choices": ["a", "b"], "repeats": True}]},
        ],
    },
]


def listing(sample: Path, programs: object) -> None:
    edit(
        sample / "site/sidelit.toml",
        '[[back]]\nsource = "glossary.md"',
        '[[back]]\nsource = "all.md"\nappend = "commands"\n\n[[back]]\nsource = "glossary.md"',
    )
    words = "# All commands\n\n> What there is.\n\nBegin with [its size](#ring/fill/--size).\n"
    (sample / "site/pages/all.md").write_text(words, encoding="utf-8")
    origin = {"command": "make record", "commit": "0", "machine": "any", "versions": {}}
    recorded = sample / "site/recorded/commands.json"
    recorded.parent.mkdir(exist_ok=True)
    recorded.write_text(json.dumps({**origin, "data": programs}), encoding="utf-8")


def test_each_option_has_an_address_and_says_what_it_takes(sample: Path) -> None:
    listing(sample, PROGRAMS)
    sidelit("build", cwd=sample)
    html = (sample / "build/site/all.html").read_text("utf-8")
    rows = dict(re.findall(r'(?s)<tr id="([^"]+)">(.*?)</tr>', html))
    text = {id: " ".join(re.sub(r"<[^>]*>", " ", row).split()) for id, row in rows.items()}
    assert text == {
        "ring/-o": "-o DIR --out DIR where to &lt;write&gt; build",
        "ring/fill/--size": "--size a whole number from 1 to 1,000 · required",
        "ring/fill/item": "item one of a · b · may be repeated",
    }
    assert [(entry, depth) for depth, entry in re.findall(r'class="d(\d)"><a href="#(ring[^"]*)"', html)][
        :2
    ] == [("ring", "0"), ("ring/fill", "1")]
    assert '<a href="#ring/fill/--size">its size</a>' in html
    # In a translation the words of the parser are those of the source, and say so.
    translated = (sample / "build/site/ja/all.html").read_text("utf-8")
    assert '<p lang="en">Fills a ring.</p>' in translated
    assert "1から1,000までの整数 · 必須" in unbroken(translated)
    assert page(sample / "build/site", "ja/all.html").lang == "ja"


def test_many_options_are_folded_by_their_groups(sample: Path) -> None:
    many = [{"names": [f"--a{number}"]} for number in range(13)]
    groups = [{"label": "all", "options": many}]
    listing(sample, [{"name": "ring", "call": "ring", "groups": groups}, PROGRAMS[1]])
    sidelit("build", cwd=sample)
    assert '<details class="listed"><summary><span>all</span>' in (sample / "build/site/all.html").read_text(
        "utf-8"
    )


@pytest.mark.parametrize(
    ("programs", "told"),
    [
        ({}, "`data` is a list of programs"),
        ([{"name": "a", "call": "a"}], "the key 'groups' is missing"),
        ([{"name": "a", "call": 3, "groups": []}], "the key 'call' is not known, or has the wrong type"),
        ([3], "3 is no object with the keys name, call"),
        (
            [{"name": "a", "call": "a", "groups": [{"options": [{"names": []}]}]}],
            "an option of a has no name",
        ),
        (
            [{"name": "a", "call": "a", "groups": [{"options": [{"names": ["-b"], "takes": ["x"]}]}]}],
            "`takes` of -b is `whole` or `number`",
        ),
        ([PROGRAMS[0], PROGRAMS[0]], "there are two of ring, ring/-o"),
    ],
)
def test_what_is_wrong_in_the_recording_is_told(sample: Path, programs: object, told: str) -> None:
    listing(sample, programs)
    done = sidelit("build", cwd=sample, code=1)
    assert done.stderr.startswith("site/recorded/commands.json:1: ")
    assert told in done.stderr


def test_a_page_of_commands_asks_for_its_recording(sample: Path) -> None:
    listing(sample, [])
    (sample / "site/recorded/commands.json").unlink()
    told = sidelit("build", cwd=sample, code=1).stderr
    assert "lists commands, and there is no site/recorded/commands.json" in told


def test_the_search_finds_a_command_and_an_option_by_its_name(sample: Path) -> None:
    listing(sample, PROGRAMS)
    sidelit("build", cwd=sample)
    for words, first in (("ring fill", "all.html#ring/fill"), ("--size", "all.html#ring/fill/--size")):
        assert sidelit("search", "--", words, cwd=sample).stdout.startswith(f"{first}  ")
