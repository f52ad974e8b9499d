"""A folder of files, served on this machine for as long as a test looks at it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, format: str, *arguments: Any) -> None:
        """The tests look at the browser, not at this log."""


@contextmanager
def serve(site: Path) -> Iterator[str]:
    """Serve a site below a folder, where a link that starts with a slash does not work; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site.parent)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{site.name}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
