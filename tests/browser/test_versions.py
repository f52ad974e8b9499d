"""An old page in a browser: it says so where its reader is, and leads to the same section today."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from browser.serving import serve
from press.project import edit, git, sidelit

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A project of one long page with two releases; its second one calls a function otherwise."""
    folder = tmp_path_factory.mktemp("old") / "project"
    source, config = folder / "src/long.py", folder / "site/sidelit.toml"
    for path in (source, config):
        path.parent.mkdir(parents=True)
    words = "What it does is told at some length, so that the page is long. " * 6
    parts = (f'def part_{n}():\n    """{words}"""\n    return {n}\n' for n in range(20))
    source.write_text('"""# A long page\n\n> It has many parts.\n"""\n\n\n' + "\n\n".join(parts), "utf-8")
    (folder / "site/pages").mkdir()
    (folder / "site/pages/index.md").write_text("# Long\n\n> One page.\n", "utf-8")
    config.write_text(
        'title = "Long"\nlanguages = ["en", "zh"]\nurl = "https://example.org/"\n[[front]]\n'
        'source = "index.md"\n[[parts]]\nlabel = "All"\nchapters = [{ source = "long.py" }]\n',
        "utf-8",
    )
    git(folder, "init", "-q")
    for version, old, new in (("1.0", "return 0", "return -0"), ("1.1", "def part_12()", "def twelfth()")):
        edit(source, old + "\n" if "return" in old else old, new + "\n" if "return" in old else new)
        sidelit("publish", cwd=folder)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", version)
        git(folder, "tag", f"v{version}")
    sidelit("versions", cwd=folder)
    with serve(Path(folder / "build/versions")) as address:
        yield address


@pytest.mark.cases(ci=1)
@pytest.mark.parametrize("width", [1280, 390])
def test_an_old_page_leads_to_the_section_of_today(page: Page, versions: str, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 700})
    page.goto(f"{versions}v1.0/long.html#part_12")
    notice = page.get_by_role("complementary", name="Version")
    expect(notice).to_be_in_viewport(ratio=1)
    expect(notice).to_contain_text("This is version 1.0. A newer one has been released.")
    assert Axe().run(page, context="aside.outdated").response["violations"] == []
    assert page.evaluate("document.documentElement.scrollWidth") == width
    # What has the focus is never behind the notice.
    top = notice.bounding_box()
    assert top
    for _ in range(12):
        page.keyboard.press("Tab")
        box = page.evaluate(
            "(({top, bottom}) => [top, bottom])(document.activeElement.getBoundingClientRect())"
        )
        assert box[0] < top["y"] or notice.evaluate("(one) => one.contains(document.activeElement)"), box
    page.get_by_role("link", name="This page in the newest release").click()
    # The section has another name today, and its readers find it.
    expect(page).to_have_url(re.compile(re.escape(f"{versions}long.html#part_12")))
    expect(page.locator("#twelfth")).to_be_in_viewport()
    assert page.locator(".outdated").count() == 0
    page.get_by_text("Other versions").scroll_into_view_if_needed()
    page.get_by_role("link", name="1.0", exact=True).click()
    expect(page).to_have_url(re.compile(re.escape(f"{versions}v1.0/index.html")))


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_scripts_each_section_has_a_link_to_that_of_today(page: Page, versions: str) -> None:
    page.goto(f"{versions}v1.0/zh/long.html#part_12")
    expect(page.locator(".outdated")).to_be_in_viewport(ratio=1)
    page.locator("#part_12").get_by_role("link", name="最新版").click()
    expect(page).to_have_url(f"{versions}zh/long.html#part_12")
    expect(page.locator("#twelfth")).to_be_in_viewport()
