"""The original beside its translation: for one section and for the page, in place, remembered."""

from __future__ import annotations

import shutil
from pathlib import Path

import polib
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from browser.looks import ALL, violations
from built import FRAMES
from press.project import SAMPLE, sidelit

pytestmark = pytest.mark.full

SHOWN = ".original:visible"
IDS = "() => [...document.querySelectorAll('[id]')].map(({ id }) => id)"
TOP = "id => document.getElementById(id).getBoundingClientRect().top"


def furnish(sample: Path) -> None:
    """Translate the sample into Japanese: each text has the same words after one in Japanese."""
    sidelit("sync", cwd=sample)
    for path in (sample / "site/locale/ja").rglob("*.po"):
        entries = polib.pofile(str(path))
        for entry in entries:
            entry.msgstr = f"訳 {entry.msgid}"
        entries.save()


def control(page: Page, section: str) -> Locator:
    return page.locator(f"[id='{section}'] > .doc > .acts").get_by_role("button", name="原文")


def whole(page: Page) -> Locator:
    return page.get_by_role("button", name="ページ全体で原文を並べて表示")


@pytest.mark.nightly
def test_one_section_shows_its_original_in_place(page: Page, home: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.removeprefix(home)))
    page.goto(home + "ja/ring.html")
    # Nothing of it is loaded before somebody wants it.
    assert not {"ring.html", "assets/original-page.js", "assets/original.css"}.intersection(asked)
    made = control(page, "Ring")
    made.focus()
    made.press("Enter")
    expect(made).to_have_attribute("aria-pressed", "true")
    originals = page.locator(SHOWN)
    assert originals.all_inner_texts() == [
        "Keeps the last items, in the order in which they came.",
        "Warning\n\nA ring of size 0 keeps nothing.",
    ]
    assert originals.evaluate_all("all => all.every(one => one.closest('section').id === 'Ring')")
    assert originals.evaluate_all("all => all.every(one => one.lang === 'en')")
    # Each stands below the paragraph that it is the original of.
    above = originals.first.evaluate("one => one.previousElementSibling.textContent")
    assert above == "訳 Keeps the last items, in the order in which they came."
    assert page.url == home + "ja/ring.html"
    made.press("Enter")
    expect(originals).to_have_count(0)
    made.press("Enter")
    control(page, "Ring.put").click()
    expect(originals).not_to_have_count(2)
    assert asked.count("ring.html") == 1
    expect(whole(page)).to_have_attribute("aria-pressed", "false")


@pytest.mark.nightly
def test_the_whole_page_shows_it_and_all_in_it_works(page: Page, home: str) -> None:
    page.goto(home + "ja/ring.html")
    page.keyboard.press("o")
    expect(whole(page)).to_have_attribute("aria-pressed", "true")
    expect(control(page, "Ring.put")).to_have_attribute("aria-pressed", "true")
    opening = page.locator("#module > .doc > .original")
    expect(opening.first).to_have_text("A ring")
    # It is a title once more, and no second heading.
    assert page.locator("h1").count() == 1
    ids = page.evaluate(IDS)
    assert len(ids) == len(set(ids))
    assert page.locator(".original table").count() >= 2
    # Links stay in the reader's language, and those to notes lead to the page's own.
    link = page.locator(".original a[href*='tools/window']").first
    assert link.evaluate("link => link.href") == f"{home}ja/tools/window.html#Window"
    note = page.locator(".original .footnote-ref a").first.get_attribute("href") or ""
    assert page.locator(f"[id='{note[1:]}']").count() == 1
    # A formula is one, and its symbols light with those of the translation.
    page.locator(".original [data-sym]").first.hover()
    expect(page.locator(".original .lit").first).to_be_visible()
    assert page.locator(".doc > p .lit").count() > 0
    assert violations(page, ALL) == []


@pytest.mark.nightly
@pytest.mark.parametrize(
    "page", [{"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"}], indirect=True
)
def test_it_is_remembered_and_narrow_pages_have_it_too(page: Page, home: str) -> None:
    page.goto(home + "ja/ring.html")
    whole(page).click()
    expect(page.locator(SHOWN).first).to_be_visible()
    assert violations(page, ALL) == []
    page.goto(home + "ja/notes/reading.html")
    expect(page.locator(SHOWN).first).to_have_text("How to read")
    # The picture is that of the translation, from where this page stands.
    loaded = "all => all.every(picture => picture.complete && picture.naturalWidth > 0)"
    assert page.locator(".original img").count() == 1
    page.wait_for_function(f"() => ({loaded})([...document.images])")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    whole(page).click()
    expect(page.locator(SHOWN)).to_have_count(0)
    page.goto(home + "ja/ring.html")
    expect(whole(page)).to_have_attribute("aria-pressed", "false")
    # The page that was written in this language has none, nor one that is not translated yet or not of words.
    for path in ("ring.html", "zh/ring.html", "zh/notes/reading.html", "ja/glossary.html"):
        page.goto(home + path)
        assert page.locator(".beside, .aside [aria-pressed]").count() == 0
        assert page.get_by_role("button", name="原文").count() == 0


@pytest.mark.nightly
@pytest.mark.parametrize("page", [{"viewport": {"width": 1280, "height": 300}}], indirect=True)
def test_what_one_reads_stays_where_it_is(page: Page, home: str) -> None:
    page.goto(home + "ja/ring.html#Ring.put")
    before = page.evaluate(TOP, "Ring.put")
    page.keyboard.press("o")
    expect(whole(page)).to_have_attribute("aria-pressed", "true")
    page.evaluate(FRAMES)
    assert page.evaluate(TOP, "Ring.put") == pytest.approx(before, abs=2)
    page.reload()
    expect(whole(page)).to_have_attribute("aria-pressed", "true")
    page.evaluate(FRAMES)
    assert page.evaluate(TOP, "Ring.put") == pytest.approx(before, abs=2)


def test_a_heading_of_prose_shows_the_original_below_it(page: Page, home: str) -> None:
    page.goto(home + "ja/notes/reading.html")
    page.locator("#the-works + .aside [aria-pressed]").click()
    expect(page.locator(SHOWN)).to_have_text(["The works", "See the bibliography and a term."])


PHONE = {"viewport": {"width": 390, "height": 800}, "has_touch": True, "is_mobile": True}


@pytest.mark.parametrize("page", [PHONE], indirect=True)
def test_a_finger_opens_it(page: Page, home: str) -> None:
    page.goto(home + "ja/ring.html")
    control(page, "Ring").tap()
    expect(page.locator(SHOWN)).to_have_count(2)


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_a_link_leads_to_the_original(page: Page, home: str) -> None:
    page.goto(home + "ja/ring.html")
    assert page.locator(".beside, .original, .aside").count() == 0
    page.locator("#Ring > .doc > .acts a[hreflang=en]").click()
    assert page.url == home + "ring.html#Ring"


@pytest.mark.nightly
def test_from_a_disk_a_pack_shows_it_and_other_folders_lead_to_it(browser: Browser, tmp_path: Path) -> None:
    sample = Path(shutil.copytree(SAMPLE, tmp_path / "sample"))
    furnish(sample)
    sidelit("build", cwd=sample)
    sidelit("pack", cwd=sample)
    page = browser.new_page()
    page.goto((sample / "build/pack/sample/ja/ring.html").as_uri())
    control(page, "Ring").click()
    expect(page.locator(SHOWN)).to_have_count(2)
    page.goto((sample / "build/site/ja/ring.html").as_uri())
    control(page, "Ring").click()
    page.wait_for_url((sample / "build/site/ring.html").as_uri() + "#Ring")
    page.close()
