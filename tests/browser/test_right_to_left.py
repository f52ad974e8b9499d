"""A page whose lines run from right to left: its ground, its arrows and its foot are those of a mirror."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page

from press.project import edit
from sidelit.files import assets

# Where the words of each begin.
RIGHT = """
all => all.map(one => one.getBoundingClientRect().right - parseFloat(getComputedStyle(one).paddingRight))
"""
ARROW = "(one, which) => getComputedStyle(one, which).content"


def furnish(sample: Path) -> None:
    english = (assets.templates_folder() / "ui/en.toml").read_text(encoding="utf-8")
    named = 'name = "English"\nshort = "EN"'
    assert english.count(named) == 1
    words = english.replace(named, 'name = "العربية"\nshort = "ع"\ndirection = "rtl"')
    (sample / "site/ui").mkdir()
    (sample / "site/ui/ar.toml").write_text(words, encoding="utf-8")
    terms = '[[term]]\nen = "ring"\nar = "حلقة"\n'
    (sample / "site/glossary.toml").write_text(terms, encoding="utf-8")
    edit(sample / "site/sidelit.toml", '["en", "ja", "zh"]', '["en", "ar"]')


@pytest.mark.full
def test_what_stands_below_a_page_is_mirrored(page: Page, home: str) -> None:
    page.goto(f"{home}ar/ring.html")
    ground = page.locator(".neighbours").evaluate("one => getComputedStyle(one).backgroundImage")
    assert ground.startswith("linear-gradient(270deg")
    assert page.locator(".neighbours .prev span").evaluate(ARROW, "::before") == '"→ "'
    assert page.locator(".neighbours .next span").evaluate(ARROW, "::after") == '" ←"'
    page.locator(".foot .help").wait_for()
    edges = page.locator(".foot > .cite, .foot .help, .foot > dl").evaluate_all(RIGHT)
    assert len(edges) == 3
    assert len(set(edges)) == 1
    assert page.locator(".foot .help").evaluate("one => getComputedStyle(one).textAlign") == "start"
