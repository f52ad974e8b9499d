"""Sections change pages at random, release after release, and every place that they had leads to them."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sidelit.errors import SidelitError
from sidelit.ids import moves
from sidelit.ids.anchors import Anchor, imprints
from sidelit.ids.ledger import Ledger, Placed
from sidelit.source import source

PAGES = ("ant", "bee", "cat")
# Names that come twice, each time with other words and other code.
SECTIONS = [
    ("count", "Count what lies in the first box from the left.", "return len(first) + 1"),
    ("count", "Say how many birds sat on the wire at noon.", "return sum(birds.values())"),
    ("empty", "Pour the water out before the frost comes.", "water.pour(until=frost)"),
    ("empty", "True when nobody is left in the whole house.", "return not any(rooms)"),
    ("Lamp", "A light that knows which hours are dark.", "hours = (19, 7)"),
    ("weigh", "Put the flour on one side and the stone on the other.", "scale.left = flour"),
]
# A page for each section, or no place at all where two of a name would meet.
SPREAD = st.lists(st.sampled_from(PAGES), min_size=len(SECTIONS), max_size=len(SECTIONS)).filter(
    lambda spread: (
        len({(page, name) for page, (name, _, _) in zip(spread, SECTIONS, strict=True)}) == len(SECTIONS)
    )
)


def text_of(page: str, spread: list[str]) -> str:
    parts = [f'"""# The {page}\n\n> A page that stays.\n"""\n']
    for where, (name, words, code) in zip(spread, SECTIONS, strict=True):
        if where == page and name[0].isupper():
            parts.append(f'class {name}:\n    """{words}"""\n\n    {code}\n')
        elif where == page:
            parts.append(f'def {name}():\n    """{words}"""\n    {code}\n')
    return "\n\n".join(parts)


def released(spread: list[str], ledger: Ledger) -> tuple[Mapping[str, tuple[Anchor, ...]], list[Placed]]:
    pages = [
        Placed(page, f"{page}.html", source.parse(text_of(page, spread), f"{page}.py")) for page in PAGES
    ]
    found: dict[str, tuple[Anchor, ...]] = {}
    for page, anchors in moves.assign(pages, ledger).items():
        assert not isinstance(anchors, SidelitError), anchors
        found[page] = anchors
    return found, pages


@pytest.mark.full
@settings(max_examples=150)
@given(st.lists(SPREAD, min_size=2, max_size=4))
def test_every_place_that_was_published_leads_to_its_words(spreads: list[list[str]]) -> None:
    ledger = Ledger()
    kept: dict[str, str] = {}
    for spread in spreads:
        anchors, pages = released(spread, ledger)
        leads: dict[str, str] = {}
        for page in pages:
            for section, anchor in zip(page.document.sections, anchors[page.name], strict=True):
                own = (f"{page.output}#{name}" for name in (anchor.id, *anchor.aliases))
                for place in (*own, *anchor.places):
                    assert place not in leads, f"{place} leads to two sections"
                    leads[place] = section.commentary
        for place, words in kept.items():
            assert leads[place] == words, place
        kept |= leads
        after = {page.name: imprints(page.document, anchors[page.name]) for page in pages}
        ledger = Ledger(after, {page.name: page.output for page in pages})


def page(name: str, text: str) -> Placed:
    return Placed(name, f"{name}.html", source.parse(text, f"{name}.py"))


def publish(*pages: Placed) -> Ledger:
    given = moves.assign(pages, Ledger())
    fixed = {}
    for each in pages:
        anchors = given[each.name]
        assert not isinstance(anchors, SidelitError)
        fixed[each.name] = imprints(each.document, anchors)
    return Ledger(fixed, {each.name: each.output for each in pages})


LOOP = '''def loop(rounds):
    """Go round until the bell rings for the last time."""
    for one in rounds:
        # A round that nobody counts is no round.
        count(one)
    a = 1
    b = 2
'''


def test_code_without_words_follows_the_definition_it_stood_in() -> None:
    ledger = publish(page("ant", LOOP), page("bee", "x = 1\n"))
    (code,) = (each.id for each in ledger.pages["ant"] if each.kind == "code" and each.qualname == "loop")
    moved = moves.assign(
        [page("ant", "y = 1\n"), page("bee", LOOP.replace("    a = 1\n    b = 2\n", ""))], ledger
    )
    assert not isinstance(moved["bee"], SidelitError)
    assert f"ant.html#{code}" in {anchor.id: anchor.places for anchor in moved["bee"]}["loop"]


def test_a_section_that_only_resembles_a_deleted_one_does_not_inherit_its_id() -> None:
    ledger = publish(page("ant", LOOP), page("bee", "x = 1\n"))
    other = LOOP.replace("the bell rings for the last time", "the cook calls for the last time")
    other = other.replace("rounds", "meals").replace("count(one)", "eat(one)").replace("a = 1", "c = d()")
    found = moves.assign([page("ant", "y = 1\n"), page("bee", other.replace("def loop", "def dine"))], ledger)
    assert isinstance(found["ant"], SidelitError)
    assert str(found["ant"]).startswith("ant.py: the published id 'loop' and 1 more would lead nowhere; ")


def test_a_section_that_was_reworded_on_its_way_is_found() -> None:
    ledger = publish(page("ant", LOOP), page("bee", "x = 1\n"))
    later = LOOP.replace("rings for the last time", "rings for the very last time").replace("a = 1", "a = 3")
    found = moves.assign([page("ant", "y = 1\n"), page("bee", later)], ledger)
    assert not isinstance(found["bee"], SidelitError)
    places = {place for anchor in found["bee"] for place in anchor.places}
    assert {"ant.html#loop", "ant.html#loop/a-round-that-nobody-counts"} <= places


def test_a_definition_without_words_is_found_by_its_code() -> None:
    plain = "def plain():\n    one()\n    two()\n    three()\n    four()\n"
    ledger = publish(page("ant", plain), page("bee", "x = 1\n"))
    found = moves.assign([page("ant", "y = 1\n"), page("bee", plain.replace("four()", "five()"))], ledger)
    assert not isinstance(found["bee"], SidelitError)
    assert "ant.html#plain" in {place for anchor in found["bee"] for place in anchor.places}


def test_code_without_words_is_not_looked_for_where_its_definition_is_not() -> None:
    end = "    a = 1\n    b = 2\n    c = 3\n    d = 4\n"
    long = LOOP.replace("    a = 1\n    b = 2\n", end)
    ledger = publish(page("ant", long), page("bee", "x = 1\n"))
    (code,) = (each.id for each in ledger.pages["ant"] if each.kind == "code" and each.qualname == "loop")
    other = f'def loop():\n    """Something else."""\n    # First.\n    if x:\n        y()\n{end}'
    found = moves.assign([page("ant", long.replace(end, "")), page("bee", other)], ledger)
    assert not isinstance(found["ant"], SidelitError)
    assert code in {anchor.id: anchor.aliases for anchor in found["ant"]}["loop"]
