"""# The site on your own machine

> Save a file, and the page in the browser is the new one, at the same place.

A finished site takes the place of the one before in one move, so nobody ever sees half a build. A build that
fails changes nothing but the message: the old pages stay, and the browser and the terminal say what is wrong
and where. The little script that waits for the next build is added here and is on no page that is published.

Browsers are answered by a process of their own, where there can be one: a process with threads may not be
forked, so one that answered and built would have to build alone.
"""

from __future__ import annotations

import json
import mimetypes
import multiprocessing
import posixpath
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from html import escape
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from sidelit import workers
from sidelit.errors import SidelitError, refused

SCRIPT = "/-/reload.js"
WAIT = "/-/wait"
PAUSE = 0.2
# What this machine is called by those who sit at it. The port is theirs to choose: it may be forwarded.
NAMES = frozenset(("localhost", "127.0.0.1", "[::1]"))

_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>
<body><h1>{title}</h1><pre>{text}</pre></body></html>
"""
_STRANGER = b"This server answers to the names of this machine only: open http://localhost with its port.\n"


@dataclass(frozen=True, slots=True)
class Files(Mapping[str, bytes]):
    """The files of a site, read when they are asked for."""

    folder: Path
    names: frozenset[str]

    def __getitem__(self, name: str) -> bytes:
        if name not in self.names:
            raise KeyError(name)
        try:
            return (self.folder / name).read_bytes()
        except OSError:
            raise KeyError(name) from None  # The next site has just taken its place, and has no such file.

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class State:
    """What is served at one moment; `site` counts the sites so far, `turn` the builds, failed ones too."""

    files: Mapping[str, bytes]
    site: int = 0
    turn: int = 0
    error: str = ""


Build = Callable[[], tuple[Mapping[str, bytes], str]]
"""Makes a site; beside its files it returns what is wrong with them, which each page shows."""


def rebuilt(old: State, build: Build) -> State:
    """What is served after a build."""
    try:
        files, error = build()
        return State(files, old.site + 1, old.turn + 1, error)
    except SidelitError as failed:
        return State(old.files, old.site, old.turn + 1, str(failed))
    except OSError as failed:
        # A file may be gone for a moment while it is being saved.
        return State(old.files, old.site, old.turn + 1, str(refused(failed)))


class Handover:
    """The state that comes from the builder and is picked up by the threads that answer."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._state = State({})
        self._closed = False

    @property
    def state(self) -> State:
        with self._changed:
            return self._state

    def put(self, state: State) -> None:
        """Put a state down in one move."""
        with self._changed:
            self._state = state
            self._changed.notify_all()

    def close(self) -> None:
        """Let go of everybody who waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def wait(self, turn: int, seconds: float = 20) -> State:
        """Wait for a state newer than `turn`, but not for ever: a browser tab may be long gone."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._state.turn != turn, seconds)
            return self._state


class Watch:
    """Notices that files were saved: it compares their times and sizes, which works on every file system."""

    def __init__(self, roots: Callable[[], Iterable[Path]]) -> None:
        self._roots = roots
        self._seen = self._told = self._look()

    def changed(self) -> bool:
        """Whether something was saved since this was last true, and nothing since somebody last asked.

        What still changes from one look to the next may be half written.
        """
        before, self._seen = self._seen, self._look()
        if before != self._seen or self._told == self._seen:
            return False
        self._told = self._seen
        return True

    def _look(self) -> dict[str, tuple[int, int]]:
        found = {}
        for root in self._roots():
            for path in (root, *root.rglob("*")) if root.is_dir() else (root,):
                if "__pycache__" in path.parts or path.name.startswith("."):
                    continue
                try:
                    entry = path.stat()
                except OSError:
                    continue  # It is gone already: editors save by renaming.
                found[str(path)] = (entry.st_mtime_ns, entry.st_size)
        return found


def serve(
    build: Build,
    roots: Callable[[], Iterable[Path]],
    port: int,
    say: Callable[[str], None],
) -> None:
    """Serve what `build` makes on 127.0.0.1 until Ctrl-C, and build again when something in `roots` changes.

    Raises `SidelitError` when the port is taken.
    """
    watch = Watch(roots)
    handover = Handover()
    try:
        server = _Server(("127.0.0.1", port), _handler(handover))
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) else "there is no such port"
        raise SidelitError(
            f"cannot serve on port {port}: {reason}", hint="choose another with --port"
        ) from None
    told, news = multiprocessing.Pipe(duplex=False)
    with workers.beside(partial(_answer, server, handover, told)):
        state = rebuilt(State({}), build)
        news.send(state)
        say(state.error)
        # Said inside, since who reads it may press Ctrl-C at once.
        say(f"Serving http://127.0.0.1:{server.server_address[1]}/ (Ctrl-C ends it)")
        while True:
            threading.Event().wait(PAUSE)
            if watch.changed():
                state = rebuilt(state, build)
                news.send(state)
                say(state.error or "Built again.")


def _answer(server: _Server, handover: Handover, told: Connection) -> None:
    """Answer browsers, and hear of each build, until nobody tells of one any more."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    with suppress(EOFError, ConnectionError):
        while True:
            handover.put(told.recv())
            # Who asks before the first build waits for it.
            if not thread.is_alive():
                thread.start()
    handover.close()


# A page says which build it has seen. Python refuses to read a number of thousands of digits.
_TURN = re.compile("[0-9]{1,30}")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # A browser that waits for the next build must not keep Ctrl-C waiting.
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:
        """A tab closed in the middle of an answer is no news; anything else is a fault of ours."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _handler(handover: Handover) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if not (own(self.headers.get("Host", "")) and (not address.netloc or own(address.netloc))):
                self._send(HTTPStatus.MISDIRECTED_REQUEST, "text/plain; charset=utf-8", _STRANGER)
            elif address.path == SCRIPT:
                self._send(
                    200, "text/javascript; charset=utf-8", Path(__file__).with_name("reload.js").read_bytes()
                )
            elif address.path == WAIT:
                state = (
                    handover.wait(int(address.query)) if _TURN.fullmatch(address.query) else handover.state
                )
                self._send(200, "application/json", _json(state))
            else:
                self._send(*answer(handover.state, address.path))

        do_HEAD = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: the terminal belongs to the builds."""

        def _send(self, status: int, kind: str, content: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            if status == HTTPStatus.MOVED_PERMANENTLY:
                self.send_header("Location", content.decode())
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

    return Handler


def own(host: str) -> bool:
    """Whether a browser asks for this machine by one of its own names.

    A page from elsewhere may let its own name mean this machine after it was loaded, and would then read
    what is served here as if it were its own.
    """
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    return (name if colon else host).lower() in NAMES and (not colon or port.isdigit())


def answer(state: State, path: str) -> tuple[int, str, bytes]:
    """What is sent for an address: status, media type and content.

    Of an address that has moved, the content is the new one.
    """
    folder = path.endswith("/") or not path
    name = posixpath.normpath(unquote(path)).strip("/")
    index = posixpath.join(name, "index.html").removeprefix("./")
    found = index if folder else name
    if (content := state.files.get(found)) is not None:
        kind = mimetypes.guess_type(found)[0] or "application/octet-stream"
        if kind == "text/html":
            content = _with_script(content, state)
        return 200, f"{kind}; charset=utf-8" if kind.startswith("text/") else kind, content
    if index in state.files:
        # Without the slash the links of its page would lead out of the folder.
        return HTTPStatus.MOVED_PERMANENTLY, "text/plain", f"/{quote(name)}/".encode()
    if not state.files:
        page, status = _PAGE.format(title="The build failed", text=escape(state.error)), 503
    else:
        page, status = _PAGE.format(title="There is no such page", text=escape(unquote(path))), 404
    # It loads itself again, too: the next build may have the page.
    return status, "text/html; charset=utf-8", _with_script(page.encode(), state)


def _with_script(page: bytes, state: State) -> bytes:
    tag = f'<script src="{SCRIPT}" data-state="{state.site}"></script>'.encode()
    head, body, tail = page.rpartition(b"</body>")
    return head + tag + body + tail if body else page + tag


def _json(state: State) -> bytes:
    return json.dumps({"site": str(state.site), "turn": str(state.turn), "error": state.error}).encode()
