"""The pictures that networks show of pages: drawn once, and served by each build with a public address."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
from PIL import Image

from press.project import edit, sidelit, tree
from sidelit.export import cards
from sidelit.files import assets
from sidelit.site.metadata import CARD_SIZE

URL = "https://example.org/x/"


@pytest.mark.full
def test_each_page_has_a_card_that_names_it_and_networks_are_told(sample: Path) -> None:
    config = sample / "site/sidelit.toml"
    edit(config, 'title = "Sample"', f'title = "Sample"\nurl = "{URL}"')
    assert sidelit("cards", cwd=sample).stdout == "6 cards in site/cards\n"
    drawn = tree(sample / "site/cards")
    assert set(drawn) >= {"index.png", "ring.png", "notes/reading.png", "tools/window.png"}
    assert len(set(drawn.values())) == len(drawn), "two pages have one picture"
    for name, data in drawn.items():
        with Image.open(sample / "site/cards" / name) as picture:
            assert picture.size == CARD_SIZE
            # Paper, a title in ink, and letters between the two.
            assert len(picture.getcolors() or ()) > 4
        assert len(data) < 30_000
    sidelit("cards", cwd=sample)
    assert tree(sample / "site/cards") == drawn
    sidelit("build", cwd=sample)
    built = tree(sample / "build/site")
    assert {name.removeprefix("cards/"): data for name, data in built.items() if "cards/" in name} == drawn
    page = built["ja/tools/window.html"].decode()
    assert f'<meta property="og:image" content="{URL}cards/tools/window.png">' in page
    assert '<meta name="twitter:card" content="summary_large_image">' in page


def test_letters_without_a_font_are_told_before_anything_is_drawn(sample: Path) -> None:
    edit(sample / "site/sidelit.toml", 'title = "Sample"', 'title = "環"')
    told = sidelit("cards", cwd=sample, code=1).stderr
    assert "no font for the letters of" in told
    assert "--font" in told
    assert not (sample / "site/cards").exists()
    told = sidelit("cards", "--font", "site/sidelit.toml", cwd=sample, code=1).stderr
    assert told.startswith("site/sidelit.toml: this is no font that can be read")
    face = assets.templates_folder() / "cards/source-sans-3-latin-wght-normal.woff2"
    own = shutil.copy(face, sample / "own.woff2")
    assert "6 cards" in sidelit("cards", "--font", own, cwd=sample).stdout


def test_long_titles_are_broken_and_set_smaller() -> None:
    width = CARD_SIZE[0] - 2 * cards.EDGE
    short, large = cards._fitted("A ring", width, None)
    long, small = cards._fitted("What every rank of a long ring says to the next one " * 4, width, None)
    assert short == ["A ring"]
    assert len(long) == cards.LINES
    assert small < large


def test_without_pillow_one_sentence_says_what_to_install(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cards, "find_spec", lambda name: None if name == "PIL" else find_spec(name))
    told = sidelit("cards", cwd=sample, code=1).stderr
    assert told.splitlines() == ["cards are drawn by Pillow, which is not installed; pip install pillow"]
