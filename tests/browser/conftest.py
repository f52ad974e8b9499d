"""One built site, one server and one browser for all tests of this folder.

Which pages there are is read from the site's own configuration: a new chapter is tested from its first day.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, Response, sync_playwright

import chromium
from built import PAGES, ROOT, Open

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `path` runs for every page, or for the PATHS that its module names."""
    if "path" in metafunc.fixturenames:
        # With this scope all tests of one page run after each other and share what they open.
        metafunc.parametrize("path", getattr(metafunc.module, "PATHS", PAGES), scope="module")


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` builds it, into a folder of the tests."""
    target = tmp_path_factory.mktemp("site") / "book"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *arguments: Any) -> None:
        """The tests look at the browser, not at this log."""


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Where the site is served: below a folder, so that a link that starts with a slash does not work."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site.parent)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/{site.name}/"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A Chromium that this machine has; `make test` has seen to it."""
    path = chromium.ensure()
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@contextmanager
def watched(browser: Browser, address: str) -> Iterator[Open]:
    """Hand out a way to open pages; what they ask of other hosts or write to the console is a failure."""
    contexts = []
    messages: list[str] = []
    strangers: list[str] = []

    def asked(request: Request) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            strangers.append(request.url)

    def answered(response: Response) -> None:
        if response.status >= 400:
            messages.append(f"{response.url}: {response.status}")

    def open_page(path: str, width: int = 1280, scheme: Any = "light", scripts: bool = True) -> Page:
        # Without motion a colour is at once what it will be, so that axe never measures one on its way.
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme=scheme,
            java_script_enabled=scripts,
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: messages.append(f"{page.url}: {message.type}: {message.text}"))
        page.on("pageerror", lambda error: messages.append(f"{page.url}: {error}"))
        page.on("request", asked)
        page.on("response", answered)
        page.goto(address + path, wait_until="load")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert messages == []
    assert strangers == []


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Open]:
    """Open a page for this test alone: `visit(path, width=1280, scheme="light", scripts=True)`."""
    with watched(browser, address) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def shared(browser: Browser, address: str, path: str) -> Iterator[Page]:
    """The page at `path`, open for all tests that only look at it; each says first how it wants it shown."""
    with watched(browser, address) as open_page:
        yield open_page(path)


@pytest.fixture(scope="module")
def scriptless(browser: Browser, address: str, path: str) -> Iterator[Page]:
    """The page at `path` in a browser whose scripts are off."""
    with watched(browser, address) as open_page:
        yield open_page(path, scripts=False)
