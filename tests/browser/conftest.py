"""One built site, one server and one browser for all tests of this folder.

Which pages there are is read from the site's own configuration: a new chapter is tested from its first day.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, Response, expect, sync_playwright

import chromium
from browser.looks import WAYS, Looks, look
from browser.serving import serve
from built import CHANGED, HEIGHT, LONG, PAGES, ROOT, SITE, WIDE, Open, show
from press.project import SAMPLE, sidelit

# As long as playwright waits for everything else: on a busy machine five seconds are not enough.
expect.set_options(timeout=30_000)

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    # Letters as wide as the font says, as on a screen of today and in print.
    "--font-render-hinting=none",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `path` runs for each page, or for the PATHS of its module, or as its mark says.

    `.ci/run` opens the longest pages and those that have changed; `make test-all` opens all.
    """
    if "path" not in metafunc.fixturenames:
        return
    mark = metafunc.definition.get_closest_marker("pages")
    given = mark.kwargs if mark else {}
    every = given.get("of", getattr(metafunc.module, "PATHS", PAGES))
    early = {*given.get("ci", LONG), *CHANGED}
    # Thousands take seconds to collect.
    if "not nightly" in metafunc.config.getoption("markexpr"):
        # One stays, so that the test is there, and left out by its mark.
        every = [path for path in every if path in early] or [*every][:1]
    paths = [path if path in early else pytest.param(path, marks=pytest.mark.nightly) for path in every]
    # With this scope the tests of one page run after each other, whatever their file, and share what they
    # open.
    metafunc.parametrize("path", paths, scope="session")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make site` builds it: one that is there, or one for all processes of this run."""
    if SITE is not None:
        return SITE
    own = tmp_path_factory.getbasetemp()
    common = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    target = common / "site" / "book"
    with FileLock(common / "site.lock"):
        if not target.exists():
            build(target)
    return target


def build(target: Path) -> None:
    """Build under another name first, so that no process takes half a site for a whole one."""
    draft = target.with_name("draft")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(draft)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    draft.rename(target)


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Where the site is served."""
    with serve(site) as address:
        yield address


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium that this machine has; `make test` has seen to it."""
    path = chromium.ensure()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


class Window:
    """A page of the browser, and what it asked of other hosts or wrote to the console."""

    def __init__(self, browser: Browser, address: str, scripts: bool) -> None:
        # Without motion a colour is at once what it will be, so that axe never measures one on its way.
        size = {"width": WIDE, "height": HEIGHT}
        context = browser.new_context(java_script_enabled=scripts, reduced_motion="reduce", viewport=size)
        self.address = address
        self.messages: list[str] = []
        self.strangers: list[str] = []
        self.page = page = context.new_page()
        page.on("console", self.said)
        page.on("pageerror", lambda error: self.messages.append(f"{page.url}: {error}"))
        page.on("request", self.asked)
        page.on("response", self.answered)

    def said(self, message: ConsoleMessage) -> None:
        # Chromium says so some seconds after the load, and also of a face that it holds from the page before
        # and that the page uses. `test_fonts.py` proves what is used.
        if "was preloaded using link preload but not used" not in message.text:
            self.messages.append(f"{self.page.url}: {message.type}: {message.text}")

    def asked(self, request: Request) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.strangers.append(request.url)

    def answered(self, response: Response) -> None:
        if response.status >= 400:
            self.messages.append(f"{response.url}: {response.status}")

    def open(self, path: str, **way: Any) -> Page:
        """Load a page, shown in one way from the start, or as the page before."""
        page = show(self.page, **way) if way else self.page
        page.goto(self.address + path, wait_until="load")
        return page

    def verdict(self) -> None:
        """Fail if there was anything since the last verdict."""
        messages, self.messages = self.messages, []
        strangers, self.strangers = self.strangers, []
        assert messages == []
        assert strangers == []


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Open]:
    """Open a page as a newcomer, for this test alone: `visit(path, width=1280, scheme="light")`."""
    windows: list[Window] = []

    def open_page(path: str, **way: Any) -> Page:
        windows.append(Window(browser, address, scripts=True))
        return windows[-1].open(path, **way)

    yield open_page
    for window in windows:
        window.page.context.close()
        window.verdict()


class Windows:
    """Windows that go from page to page: to open a page there takes a quarter of what a new window takes."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser, self.address = browser, address
        self.opened: dict[tuple[str, bool], Window] = {}

    @contextmanager
    def show(self, use: str, path: str, scripts: bool = True) -> Iterator[Page]:
        """Show a page in the window of this use; no other use leads that window away."""
        if (use, scripts) not in self.opened:
            self.opened[use, scripts] = Window(self.browser, self.address, scripts)
        window = self.opened[use, scripts]
        yield window.open(path)
        window.verdict()


@pytest.fixture(scope="session")
def windows(browser: Browser, address: str) -> Iterator[Windows]:
    """The windows of all tests that do not mind what was shown in them before."""
    several = Windows(browser, address)
    yield several
    for window in several.opened.values():
        window.page.context.close()


@pytest.fixture
def walk(windows: Windows) -> Iterator[Open]:
    """Open a page for this test, which follows links: `walk(path, scripts=True)`."""
    with ExitStack() as stack:
        yield lambda path, scripts=True: stack.enter_context(windows.show("walk", path, scripts))


@pytest.fixture
def spoil(windows: Windows) -> Iterator[Open]:
    """Open a page for this test, which changes it: `spoil(path, scripts=True)`."""
    with ExitStack() as stack:
        yield lambda path, scripts=True: show(stack.enter_context(windows.show("spoil", path, scripts)))


@pytest.fixture(scope="session")
def shared(windows: Windows, path: str) -> Iterator[Page]:
    """The page at `path`, open for all tests that only look at it; each says first how it wants it shown."""
    with windows.show("shared", path) as page:
        yield page


@pytest.fixture(scope="session")
def scriptless(windows: Windows, path: str) -> Iterator[Page]:
    """The page at `path` in a browser whose scripts are off."""
    with windows.show("shared", path, scripts=False) as page:
        yield page


@pytest.fixture(scope="module")
def home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the sample project is served, with what the test's module puts into it by its `furnish`."""
    sample = Path(shutil.copytree(SAMPLE, tmp_path_factory.mktemp("small") / "sample"))
    request.module.furnish(sample)
    sidelit("build", cwd=sample)
    with serve(sample / "build/site") as address:
        yield address


@pytest.fixture
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    """A window of this test alone, as the module's WINDOW and the test's own parameters want it. Nothing may
    be written to its console.
    """
    given: dict[str, Any] = {**getattr(request.module, "WINDOW", {}), **getattr(request, "param", {})}
    size = {"width": WIDE, "height": HEIGHT}
    context = browser.new_context(**{"reduced_motion": "reduce", "viewport": size, **given})
    messages: list[str] = []
    page = context.new_page()
    page.on("console", lambda said: messages.append(said.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    yield page
    context.close()
    assert messages == []


@pytest.fixture(scope="session")
def looks(shared: Page) -> Looks:
    """What the page at `path` looks like; what axe finds is another question, and takes as long again."""
    # The page before may have been left narrow: to begin like that saves laying out this one once more.
    narrow_first = shared.viewport_size != {"width": WIDE, "height": HEIGHT}
    seen = {way: look(shared, way, axe=False) for way in (reversed(WAYS) if narrow_first else WAYS)}
    return Looks(*(seen[way] for way in WAYS))
