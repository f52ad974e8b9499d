"""What must hold on every page, in every language, wide and narrow, light and dark.

Colours depend on the theme and boxes on the width, and neither on the other. So a page is looked at in two of
the four ways: wide and light, narrow and dark. The longest page of each template stands for all: `.ci/run`
opens it in each language, with pages that have changed, and `make test-all` opens all.
"""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Page

from browser.looks import (
    ALL,
    COLOURS,
    WAYS,
    Looks,
    in_print,
    look,
    sideways,
    theme,
    violations,
    without_scripts,
)
from built import LANGUAGES, LONG, LONG_IN_ENGLISH, NARROW, NARROWEST, PAGES, WIDE, language_of, show

pytestmark = pytest.mark.full

# What `make test` does not ask of three widths, two themes and all rules.
OTHER_LOOKS: list[tuple[int, str, dict[str, Any]]] = [
    (WIDE, "light", COLOURS),
    (WIDE, "dark", ALL),
    (NARROW, "light", ALL),
    (NARROWEST, "light", ALL),
    (NARROWEST, "dark", COLOURS),
]
ENGLISH = [path for path in PAGES if language_of(path) == LANGUAGES[0]]


def test_axe_finds_nothing(shared: Page, path: str) -> None:
    """Axe looks at the longest English page of each template in both ways, and at all others in one: at a
    page in the ways of its languages in turn, and at the pages of a language in turn, too.
    """
    place = PAGES.index(path) // len(LANGUAGES) + LANGUAGES.index(language_of(path))
    ways = WAYS if path in LONG_IN_ENGLISH else [WAYS[place % len(WAYS)]]
    found = [said for way in ways for said in look(shared, way).violations]
    if path in LONG_IN_ENGLISH:
        # The text of a wide chapter is on a gradient, and there axe judges no colour.
        found += violations(show(shared, NARROW, "light"), COLOURS)
    assert found == []


def test_nothing_scrolls_sideways(looks: Looks) -> None:
    assert [said for seen in looks for said in sideways(seen)] == []


def test_dark_is_dark(looks: Looks) -> None:
    assert [said for seen in looks for said in theme(seen)] == []


@pytest.mark.pages(ci=LONG_IN_ENGLISH)
def test_a_page_is_whole_without_scripts(shared: Page, scriptless: Page) -> None:
    assert list(without_scripts(scriptless, show(shared))) == []


def test_print_has_all_of_the_text_and_no_menu(shared: Page) -> None:
    assert list(in_print(shared)) == []


@pytest.mark.pages(of=[*ENGLISH, *sorted(LONG - LONG_IN_ENGLISH)], ci=())
def test_axe_finds_nothing_in_any_way(shared: Page) -> None:
    for width, scheme, rules in OTHER_LOOKS:
        assert violations(show(shared, width, scheme), rules) == [], f"{width} px, {scheme}"
