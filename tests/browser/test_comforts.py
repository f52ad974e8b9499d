"""What makes long reading easy: keys, copied code, sections that fold, contents that are filtered."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from browser.looks import ALL, violations
from built import FRAMES
from press.project import edit

pytestmark = pytest.mark.full

LONG = '"""# Long\n\n> Many sections.\n\n```pycon\n>>> 1 + 1\n2\n>>> 3\n```\n"""\n\n' + "".join(
    f'class Number{n}:\n    """The number {n}.\n\n    It is one of five.\n    """\n\n    def value(self):\n'
    f'        """Its value."""\n        return {n}\n\n\n'
    for n in range(5)
)
AT = "document.activeElement.id"
NUMBERS = """
() => {
    const { top } = document.activeElement.getBoundingClientRect();
    return [Math.round(top), document.querySelector(".top").offsetHeight];
}
"""
WINDOW = {"permissions": ["clipboard-read", "clipboard-write"]}


def furnish(sample: Path) -> None:
    (sample / "src/sample/long.py").write_text(LONG, encoding="utf-8")
    entry = '{ source = "ring.py", run = "python -m sample.ring" }'
    edit(sample / "site/sidelit.toml", entry, f'{entry},\n    {{ source = "long.py" }}')


def press(page: Page, keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(key)
    page.evaluate(FRAMES)


@pytest.mark.nightly
def test_keys_walk_sections_and_the_focus_goes_with_them(page: Page, home: str) -> None:
    page.goto(home + "long.html")
    press(page, "j")
    first = page.evaluate(AT)
    assert first == "Number0"
    top, bar = page.evaluate(NUMBERS)
    assert abs(top - bar) <= 1
    press(page, "j j k")
    assert page.evaluate(AT) == "Number0.value"
    # Tab goes on from there.
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('section').id") == "Number0.value"
    page.evaluate("document.activeElement.blur(); scrollTo(0, document.body.scrollHeight)")
    press(page, "k")
    before = page.evaluate(AT)
    assert before.startswith("Number")


@pytest.mark.nightly
def test_keys_walk_pages(page: Page, home: str) -> None:
    page.goto(home + "ja/long.html")
    after = page.locator(".neighbours .next").get_attribute("href")
    page.keyboard.press("]")
    page.wait_for_url(f"**/{after}")
    page.keyboard.press("[")
    page.wait_for_url("**/ja/long.html")


@pytest.mark.nightly
def test_no_key_acts_while_one_types_or_against_the_readers_will(page: Page, home: str) -> None:
    page.goto(home + "long.html")
    page.locator(".menu").click()
    page.locator(".filter").press("j")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+j")
    assert page.evaluate(AT) == ""
    press(page, "?")
    dialog = page.locator("dialog.shortcuts")
    expect(dialog).to_be_visible()
    assert violations(page, ALL) == []
    dialog.get_by_role("button", name="Turn these keys off").click()
    page.keyboard.press("Escape")
    press(page, "j ?")
    assert page.evaluate("document.activeElement.matches('section')") is False
    expect(dialog).to_be_hidden()
    # What is switched off stays so on the next page, and the foot leads back.
    page.reload()
    press(page, "j")
    assert page.evaluate("document.activeElement.matches('section')") is False
    page.locator(".foot .help").click()
    dialog.get_by_role("button", name="Turn these keys on").click()
    dialog.get_by_role("button", name="Close").click()
    press(page, "j")
    assert page.evaluate("document.activeElement.matches('section')")


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize(("language", "words"), [("", "Next and"), ("ja/", "次と前の"), ("zh/", "下一节")])
def test_the_list_of_keys_says_what_they_do_here(page: Page, home: str, language: str, words: str) -> None:
    page.goto(f"{home}{language}long.html")
    press(page, "?")
    said = page.locator("dialog.shortcuts").inner_text()
    assert words in said
    # There are no symbols to walk on this page.
    assert "S" not in [each.inner_text() for each in page.locator("dialog kbd").all()]


def test_code_is_copied_without_numbers_and_prompts(page: Page, home: str) -> None:
    page.goto(home + "long.html")
    button = page.locator("#Number3\\.value pre .copy")
    button.focus()
    button.press("Enter")
    expect(button).to_have_attribute("aria-label", "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "    def value(self):\n        return 3"
    page.locator(".sample").hover()
    page.locator(".sample .copy").click()
    expect(page.locator(".sample .copy")).to_have_attribute("aria-label", "Copied")
    assert page.evaluate("navigator.clipboard.readText()") == "1 + 1\n3"


@pytest.mark.nightly
def test_a_class_folds_with_all_that_is_in_it_and_a_link_unfolds_it(page: Page, home: str) -> None:
    page.goto(home + "long.html")
    fold = page.locator("#Number2 > .doc > .acts .folding")
    fold.focus()
    fold.press("Enter")
    assert fold.get_attribute("aria-expanded") == "false"
    assert not page.get_by_text("It is one of five.").nth(2).is_visible()
    assert not page.locator("#Number2\\.value pre").is_visible()
    assert page.locator("#Number2 h2").is_visible()
    assert page.locator("#Number3\\.value pre").is_visible()
    page.evaluate("location.hash = '#Number2.value'")
    expect(page.locator("#Number2\\.value pre")).to_be_visible()
    assert fold.get_attribute("aria-expanded") == "true"


def test_the_contents_are_filtered_by_what_one_types(page: Page, home: str) -> None:
    page.goto(home + "long.html")
    page.locator(".menu").click()
    field = page.locator(".panel .filter")
    field.fill("number3")
    shown = page.locator(".panel li a:visible")
    assert [name.split()[-1] for name in shown.all_inner_texts()] == ["Number3"]
    field.fill("")
    assert shown.count() > 10


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_there_is_none_of_it(page: Page, home: str) -> None:
    page.goto(home + "long.html")
    assert page.locator(".copy, .filter, .folding, .help").count() == 0
    assert not page.locator("dialog").is_visible()
