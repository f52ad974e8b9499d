"""The first visit to a page: what crosses the network, how many requests it takes, how far the page jumps.

The site is served with gzip, as any static host does, to a browser that has seen nothing yet.
"""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, sync_playwright
from tools import chromium

HEIGHTS = {390: 844, 1280: 800}
TEXTS = {".html", ".css", ".js", ".svg", ".json"}

# Chromium tells of each jump as it happens; `buffered` adds those that came before this ran.
_SHIFTS = """
window.jumped = 0;
new PerformanceObserver(list => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.jumped += entry.value;
}).observe({type: "layout-shift", buffered: true});
"""


@dataclass(frozen=True, slots=True)
class Visit:
    """Bytes on the wire with all headers, requests, and the sum of the layout shifts."""

    bytes: int
    requests: int
    shift: float


def visits(site: Path, page: str) -> dict[int, Visit]:
    """A first visit for each width of the screen, in CSS pixels."""
    with _served(site) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium.find())
        try:
            return {width: _visit(browser, f"{address}{page}", width) for width in HEIGHTS}
        finally:
            browser.close()


def _visit(browser: Browser, address: str, width: int) -> Visit:
    context = browser.new_context(viewport={"width": width, "height": HEIGHTS[width]})
    context.add_init_script(_SHIFTS)
    tab = context.new_page()
    told = context.new_cdp_session(tab)
    sizes: dict[str, int] = {}
    told.send("Network.enable")
    # What stands in a stylesheet as `data:` is no request.
    told.on("Network.requestWillBeSent", lambda event: _asked(event, sizes))
    told.on("Network.loadingFinished", lambda event: _answered(event, sizes))
    tab.goto(address, wait_until="networkidle")
    tab.evaluate("document.fonts.ready.then(() => null)")
    # Two frames: the first may still be laid out while this is asked.
    tab.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    shift = float(tab.evaluate("window.jumped"))
    context.close()
    return Visit(sum(sizes.values()), len(sizes), shift)


def _asked(event: Mapping[str, Any], sizes: dict[str, int]) -> None:
    if not event["request"]["url"].startswith("data:"):
        sizes[event["requestId"]] = 0


def _answered(event: Mapping[str, Any], sizes: dict[str, int]) -> None:
    if event["requestId"] in sizes:
        sizes[event["requestId"]] = int(event["encodedDataLength"])


class _Zipped(SimpleHTTPRequestHandler):
    """Serves texts with gzip, and says nothing."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if path.suffix not in TEXTS or not path.is_file():
            super().do_GET()
            return
        body = gzip.compress(path.read_bytes(), mtime=0)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """The benchmark looks at the browser, not at this log."""


@contextmanager
def _served(site: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Zipped, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
