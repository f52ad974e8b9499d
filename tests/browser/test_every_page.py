"""What must hold on every page, in every language, wide and narrow, light and dark.

Colours depend on the theme and boxes on the width, and neither on the other. So `make test` looks at a page
in two of the four ways: wide and light, narrow and dark.
"""

from __future__ import annotations

import pytest
from playwright.sync_api import Page

from browser.looks import OTHER_WAYS, Looks, in_print, sideways, theme, violations, without_scripts
from built import LANGUAGES, LONG, PAGES, language_of, show

ENGLISH = [path for path in PAGES if language_of(path) == LANGUAGES[0]]


def test_axe_finds_nothing(looks: Looks) -> None:
    assert [said for seen in looks for said in seen.violations] == []


def test_nothing_scrolls_sideways(looks: Looks) -> None:
    assert [said for seen in looks for said in sideways(seen)] == []


def test_dark_is_dark(looks: Looks) -> None:
    assert [said for seen in looks for said in theme(seen)] == []


@pytest.mark.pages(now=LONG)
def test_a_page_is_whole_without_scripts(shared: Page, scriptless: Page) -> None:
    assert list(without_scripts(scriptless, show(shared))) == []


@pytest.mark.pages(now=LONG)
def test_print_has_all_of_the_text_and_no_menu(shared: Page) -> None:
    assert list(in_print(shared)) == []


@pytest.mark.pages(of=ENGLISH, now=())
def test_axe_finds_nothing_in_the_other_two_ways(shared: Page) -> None:
    for way in OTHER_WAYS:
        assert violations(show(shared, *way)) == [], way
