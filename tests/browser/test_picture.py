"""The picture of the README shows its section as the site shows it."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser

import screenshot

pytestmark = pytest.mark.full

# Another version of Chromium smooths letters in another way. One line more or less makes 0.02.
ENOUGH = 0.01


def test_the_picture_of_the_readme_is_what_the_page_looks_like(browser: Browser, address: str) -> None:
    now = screenshot.take(browser, f"{address}{screenshot.PAGE.name}")
    due = "the page looks otherwise now: run `make site`, then `.venv/bin/python tools/screenshot.py`"
    assert screenshot.difference(now, screenshot.PICTURE.read_bytes()) < ENOUGH, due
