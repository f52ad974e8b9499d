"""The pages at old addresses, in a browser: with scripts, without them, and for the checkers.

The book of today may have no old address, so a small site is made that has every kind of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from browser.serving import serve
from browser.test_validity import complaints
from press.project import SAMPLE, edit, sidelit
from tiers import rows

pytestmark = pytest.mark.full

# The window was renamed. The ring was too, and a new page stands at its old address.
OLD = ["tools/window.html", "ja/tools/window.html", "zh/tools/window.html"]
REUSED = ["ring.html", "ja/ring.html"]


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample project after two renamings."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("moved") / "sample"))
    sidelit("publish", cwd=sample)
    sources = sample / "src/sample"
    (sources / "ring.py").rename(sources / "loop.py")
    (sources / "ring.py").write_text('"""# A bell\n\n> It rings.\n"""\n\nLOUD = 1\n', encoding="utf-8")
    entry = '{ source = "ring.py", run = "python -m sample.ring" }'
    edit(sample / "site/sidelit.toml", entry, f'{entry},\n    {{ source = "loop.py", was = ["ring"] }}')
    edit(sample / "site/sidelit.toml", 'name = "tools/window"', 'name = "view", was = ["tools/window"]')
    edit(sample / "site/pages/index.md", "sample/ring.py", "sample/loop.py")
    sidelit("build", cwd=sample)
    return sample / "build/site"


@pytest.fixture(scope="module")
def home(moved: Path) -> Iterator[str]:
    """Where that site is served."""
    with serve(moved) as address:
        yield address


@pytest.fixture
def window(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of a reader whose scripts are on, or off where the test says so."""
    context = browser.new_context(
        java_script_enabled=getattr(request, "param", True), reduced_motion="reduce"
    )
    yield context.new_page()
    context.close()


WITHOUT_SCRIPTS = pytest.mark.parametrize("window", [False], indirect=True, ids=["no scripts"])


@pytest.mark.nightly
def test_a_script_keeps_the_section(window: Page, home: str) -> None:
    for old, new in {
        "tools/window.html": "view.html",
        "tools/window.html#Window": "view.html#Window",
        "ja/tools/window.html#Window": "ja/view.html#Window",
        # It was never published, so nobody promised it; it is there all the same.
        "tools/window.html#line-9": "view.html#line-9",
        "ring.html#Ring.put": "loop.html#Ring.put",
        "ja/ring.html#module/a-heading-of-its-own": "ja/loop.html#module/a-heading-of-its-own",
        "ring.html#module": "loop.html#module",
        # What stands at the address today stays there.
        "ring.html": "ring.html",
        "ring.html#module-2": "ring.html#module-2",
        "ring.html#100%": "ring.html#100%",
    }.items():
        window.goto("about:blank")
        window.goto(home + old)
        window.wait_for_url(home + new)
        assert window.locator("section").count() > 0, old


@pytest.mark.nightly
def test_the_way_back_does_not_lead_through_the_old_address(window: Page, home: str) -> None:
    window.goto(home + "index.html")
    window.goto(home + "tools/window.html#Window")
    window.wait_for_url(home + "view.html#Window")
    window.go_back()
    window.wait_for_url(home + "index.html")


@WITHOUT_SCRIPTS
def test_without_scripts_a_page_that_went_is_found_at_once(window: Page, home: str) -> None:
    for old, new in {"tools/window.html": "view.html", "zh/tools/window.html": "zh/view.html"}.items():
        window.goto(home + old)
        window.wait_for_url(home + new)


@WITHOUT_SCRIPTS
def test_without_scripts_a_section_that_went_is_a_click_away(window: Page, home: str) -> None:
    window.goto(home + "ring.html#Ring.put")
    link = window.locator(".moved li:target a")
    assert link.inner_text() == "Ring.put"
    link.click()
    window.wait_for_url(home + "loop.html#Ring.put")


@WITHOUT_SCRIPTS
def test_a_browser_that_refreshes_nothing_has_a_link_for_each_section(window: Page, home: str) -> None:
    # A browser stays where it is when there is nothing to show.
    window.route("**/view.html", lambda route: route.fulfill(status=204))
    window.goto(home + "tools/window.html#Window.first")
    links = window.locator("main a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    assert links == ["../view.html", "../view.html#module", "../view.html#Window"]


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", rows(["light", "dark"], now=["light"]))
def test_axe_finds_nothing(window: Page, home: str, scheme: str) -> None:
    # Left alone, the page would be gone before anyone could look at it.
    window.route("**/frame.js", lambda route: route.abort())
    window.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    for width in (1280, 390):
        window.set_viewport_size({"width": width, "height": 900})
        for path in (OLD[1], REUSED[0]):
            window.goto(home + path)
            assert window.locator(".moved").count() == 1
            found = Axe().run(window)
            assert found.violations_count == 0, f"{path} {width} {scheme}: {found.generate_report()}"
            assert window.evaluate("document.documentElement.scrollWidth") == width


@pytest.mark.nightly
def test_they_are_valid(moved: Path) -> None:
    assert complaints(*(moved / path for path in (*OLD, *REUSED))) == []
