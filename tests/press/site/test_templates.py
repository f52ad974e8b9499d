"""The templates, the words of the interface, the stylesheets and the colours agree with one another."""

from __future__ import annotations

import re
import string
import sys
from pathlib import Path

import pytest

import sidelit
from sidelit.files import assets
from sidelit.text import inlines

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
ASSETS = TEMPLATES / "assets"
PAGES = sorted(TEMPLATES.rglob("*.html"))
SHEETS = sorted(ASSETS.glob("*.css"))
SCRIPTS = sorted(ASSETS.glob("*.js"))
UI = {
    file.stem: tomllib.loads(file.read_text(encoding="utf-8"))["ui"]
    for file in (TEMPLATES / "ui").glob("*.toml")
}

SRC = Path(sidelit.__file__).parent
PRESS = "".join(file.read_text(encoding="utf-8") for file in SRC.rglob("*.py"))
# Words that the press asks for from its own code, where no template names them.
ASKED_BY_THE_PRESS = {
    *inlines.LABELS,
    *re.findall(r"\.word\(\"(\w+)\"", PRESS),
    *re.findall(r"\bwords\[\"((?:cite|book)_\w+)\"\]", PRESS),
}
# Keys put together in a template from a prefix and a value.
PUT_TOGETHER = {"state_": ("recheck", "stale", "missing", "original")}


def named_in_templates() -> set[str]:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    keys = set(re.findall(r"\bui\.(\w+)", text))
    # The dialog of the search has its words from the index.
    dialog = (assets.templates_folder() / "assets" / "search-dialog.js").read_text(encoding="utf-8")
    keys.update(f"search_{name}" for name in re.findall(r"\bui\.(\w+)", dialog))
    for prefix, values in PUT_TOGETHER.items():
        assert f'ui["{prefix}" ~' in text
        keys.update(prefix + value for value in values)
    return keys


# The same number as another language counts it.
COUNTED_OTHERWISE = {"hundred_millions": "billions"}


def blanks(text: str) -> list[str]:
    names = (name for _, name, _, _ in string.Formatter().parse(text) if name is not None)
    return sorted(COUNTED_OTHERWISE.get(name, name) for name in names)


# ---- Words ----


@pytest.mark.parametrize("lang", ["en", "ja", "zh"])
def test_a_language_has_every_word_that_pages_ask_for_and_no_other(lang: str) -> None:
    assert set(UI[lang]) == named_in_templates() | ASKED_BY_THE_PRESS


@pytest.mark.parametrize("lang", ["ja", "zh"])
def test_a_translation_keeps_the_blanks_and_is_not_a_copy_of_the_english(lang: str) -> None:
    for key, english in UI["en"].items():
        assert blanks(UI[lang][key]) == blanks(english), key
        assert UI[lang][key] != english, key


def test_no_kana_in_chinese_and_no_space_between_japanese_and_latin() -> None:
    for key, words in UI["zh"].items():
        assert not re.search(r"[぀-ヿ]", words), key
    for key, words in UI["ja"].items():
        assert not re.search(r"[぀-ヿ一-鿿] [A-Za-z0-9{]|[A-Za-z0-9}] [぀-ヿ一-鿿]", words), key


# ---- Addresses and the content security policy ----


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_template_asks_for_assets_that_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"asset\('([^']+)'\)", text))
    for name in named - assets.BUNDLES.keys():
        assert (ASSETS / name).is_file(), name


@pytest.mark.parametrize("file", [*PAGES, *SHEETS, *SCRIPTS], ids=lambda file: file.name)
def test_nothing_is_fetched_from_elsewhere(file: Path) -> None:
    text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|[\"'(]//", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_policy_forbids_nothing_that_a_template_does(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<style" not in text
    assert not re.search(r"\son[a-z]+=", text)
    # A style in an attribute is allowed, for formulas; a template may use it for a length that is a datum.
    assert not re.search(r'\sstyle=(?!"width:\{\{)', text)
    # A block of data is no script: no browser runs it.
    scripts = re.findall(r"<script[^>]*>", text)
    assert all("src=" in tag or 'type="application/ld+json"' in tag for tag in scripts)


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda sheet: sheet.name)
def test_a_stylesheet_names_files_and_properties_that_exist(sheet: Path) -> None:
    text = sheet.read_text(encoding="utf-8")
    for address in re.findall(r"url\([\"']?([^\"')]+)", text):
        # A page that was opened as a plain file may not read a mask from another file; `#` is in the page.
        there = address.startswith(("data:image/svg+xml,", "#"))
        assert there or (sheet.parent / address).is_file(), address
    defined = set(
        re.findall(r"(--[\w-]+)\s*:", "".join(other.read_text(encoding="utf-8") for other in SHEETS))
    )
    assert set(re.findall(r"var\((--[\w-]+)", text)) <= defined


def test_every_font_has_its_licence_beside_it() -> None:
    for font in (ASSETS / "fonts").glob("*.woff2"):
        family = re.match(r"source-(?:serif-4|sans-3|code-pro)", font.name)
        assert family, font.name
        assert "SIL OPEN FONT LICENSE" in (ASSETS / "fonts" / f"OFL-{family[0]}.txt").read_text(
            encoding="utf-8"
        )


# ---- Colours ----

COLOURS = {
    name: {"light": light, "dark": dark}
    for name, light, dark in re.findall(
        r"--([\w-]+):\s*light-dark\((#[0-9a-f]{6}),\s*(#[0-9a-f]{6})\)", (ASSETS / "colours.css").read_text()
    )
}
WORDS = ("ink", "soft", "faint", "accent", "fn")
TOKENS = ("kw", "fn", "str", "num", "op", "com", "dec", "std", "err")
GROUNDS = ("paper", "sheet", "glow", "glow-sheet")
AA_TEXT, AA_GRAPHICS = 4.5, 3.0
PAIRS = [
    *((text, ground, AA_TEXT) for text in (*WORDS, *TOKENS) for ground in GROUNDS),
    *((text, "mark", AA_TEXT) for text in ("ink", "accent", *TOKENS)),
    # The kinds of a drawing: what edges and hatches them, and the letters on the darkest two.
    *(("rim", ground, AA_GRAPHICS) for ground in ("paper", "sheet")),
    *((f"on-{kind}", f"kind-{kind}", AA_GRAPHICS) for kind in (2, 3, 4, 5)),
    *(("paper", kind, AA_TEXT) for kind in ("kind-1", "kind-2")),
    # The marks before a badge and beside a target.
    *(("accent", ground, AA_GRAPHICS) for ground in ("paper", "glow")),
]


def luminance(colour: str) -> float:
    channels = (int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted((luminance(one), luminance(other)))
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_computed_as_wcag_says() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_pair_of_ink_and_ground_meets_aa(theme: str) -> None:
    weak = {
        (ink, ground): round(contrast(COLOURS[ink][theme], COLOURS[ground][theme]), 2)
        for ink, ground, least in PAIRS
        if contrast(COLOURS[ink][theme], COLOURS[ground][theme]) < least
    }
    assert weak == {}


def test_the_pairs_cover_every_colour_and_no_other_sheet_names_one() -> None:
    drawn = {name for ink, ground, _ in PAIRS for name in (ink, ground)}
    assert set(COLOURS) - drawn == {"line", "firm"}  # hairlines: they carry no information of their own
    for sheet in SHEETS:
        if sheet.name not in ("colours.css", "print.css"):
            assert not re.search(r"#[0-9a-fA-F]{3,8}\b", sheet.read_text(encoding="utf-8")), sheet.name
