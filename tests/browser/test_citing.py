"""The box that cites a section, used as a reader uses it: it says what the command says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from press.project import SAMPLE, edit, sidelit
from sidelit.citing import FORMS

pytestmark = pytest.mark.full

WINDOW = {"permissions": ["clipboard-read", "clipboard-write"]}


def furnish(sample: Path) -> None:
    edit(sample / "site/sidelit.toml", 'title = "Sample"', 'title = "Sample"\nurl = "https://example.org/x/"')
    edit(sample / "src/sample/ring.py", "# # A heading of its own", '# # 50% of "a" & `b_c` at $x$')


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project once more, to ask the command."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path / "sample"))
    furnish(sample)
    return sample


@pytest.mark.nightly
def test_each_section_says_in_its_box_what_the_command_says(home: str, page: Page, project: Path) -> None:
    for lang, folder in (("en", ""), ("ja", "ja/")):
        page.goto(f"{home}{folder}ring.html")
        ids = page.eval_on_selector_all("main section.sec:not(.is-module)", "all => all.map((one) => one.id)")
        assert len(ids) > 4
        for name in ids:
            page.locator(
                f'[id="{name}"] > * > .acts > .citing, [id="{name}"] > .acts > .citing'
            ).first.click()
            dialog = page.get_by_role("dialog")
            for form in FORMS:
                told = sidelit(
                    "cite", f"ring.html#{name}", "--lang", lang, "--form", form, cwd=project
                ).stdout
                assert dialog.locator(f'[data-form="{form}"] pre').inner_text() == told.removesuffix("\n")
            address = sidelit("cite", f"ring.html#{name}", "--lang", lang, cwd=project).stdout.splitlines()[0]
            assert dialog.locator(".link").get_attribute("href") == address
            page.keyboard.press("Escape")
            expect(dialog).to_have_count(0)


@pytest.mark.nightly
def test_a_heading_of_prose_says_what_the_command_says(home: str, page: Page, project: Path) -> None:
    for lang, folder in (("en", ""), ("ja", "ja/")):
        page.goto(f"{home}{folder}notes/reading.html")
        headings = page.locator(".essay > :is(h2, h3)")
        assert headings.count() == page.locator(".aside .citing").count() > 1
        for heading in headings.all():
            name = f"notes/reading.html#{heading.get_attribute('id')}"
            heading.locator("+ .aside .citing").click()
            dialog = page.get_by_role("dialog")
            for form in FORMS:
                told = sidelit("cite", name, "--lang", lang, "--form", form, cwd=project).stdout
                assert dialog.locator(f'[data-form="{form}"] pre').inner_text() == told.removesuffix("\n")
            address = sidelit("cite", name, "--lang", lang, cwd=project).stdout.splitlines()[0]
            assert dialog.locator(".link").get_attribute("href") == address
            assert address == f"https://example.org/x/{folder}{name}"
            page.keyboard.press("Escape")


def test_the_way_to_cite_a_heading_moves_nothing_and_shows_by_keyboard(home: str, page: Page) -> None:
    page.goto(f"{home}notes/reading.html")
    line = page.locator("h2 + .aside").first
    assert line.evaluate("line => line.offsetHeight") == 0
    # It is told where the pointer is not: a finger has none to rest.
    page.mouse.move(0, 0)
    shown = "line => getComputedStyle(line).opacity"
    assert line.evaluate(shown) == "0"
    line.locator(".citing").focus()
    assert line.evaluate(shown) == "1"


@pytest.mark.nightly
def test_a_form_is_copied_and_the_focus_comes_back(home: str, page: Page) -> None:
    page.goto(f"{home}ring.html")
    opener = page.locator('[id="Ring.put"] .citing')
    opener.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Cite: § 1.3 Ring.put")
    copy = dialog.locator('[data-form="bibtex"] .copy')
    copy.click()
    expect(copy).to_have_text("Copied")
    assert (
        page.evaluate("navigator.clipboard.readText()")
        == dialog.locator('[data-form="bibtex"] pre').inner_text()
    )
    found = Axe().run(page, context="dialog").response["violations"]
    assert found == []
    dialog.get_by_role("button", name="Close").click()
    expect(opener).to_be_focused()


def test_the_box_fits_on_a_phone_and_works_in_the_foot(home: str, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 700})
    page.goto(f"{home}ja/ring.html")
    page.locator("details.cite > summary").click()
    assert page.locator("details.cite .form").count() == len(FORMS)
    page.locator('[id="Ring.put"] .citing').click()
    box = page.get_by_role("dialog").bounding_box()
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_the_page_is_cited_and_nothing_is_dead(home: str, page: Page) -> None:
    page.goto(f"{home}ring.html")
    page.locator("details.cite > summary").click()
    expect(page.locator('details.cite [data-form="apa"] pre')).to_be_visible()
    assert page.locator(".citing, .copy").count() == 0
