"""The server on one's own machine: what is saved is shown, and what is broken is told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from press.project import GAPS, edit, gappy, run, sidelit
from sidelit import serve


class Server:
    """A running `sidelit serve`."""

    def __init__(self, project: Path) -> None:
        command = [sys.executable, "-u", "-m", "sidelit", "serve", "--port", "0"]
        # A shell lets what it runs in the background ignore this signal, and a child would inherit that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            command,
            cwd=project,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        self.said: list[str] = []
        self.address = ""
        while not self.address:
            line = self.read()
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            self.address = found[0] if found else ""

    def read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "".join(self.said)
        self.said.append(line)
        return line

    def get(self, path: str) -> str:
        with urlopen(self.address + path, timeout=60) as answer:
            assert answer.headers["Cache-Control"] == "no-store"
            return str(answer.read().decode())

    def after(self, turn: str) -> dict[str, str]:
        """Wait as a page does until there was another build."""
        state = json.loads(self.get(f"-/wait?{turn}"))
        while state["turn"] == turn:
            state = json.loads(self.get(f"-/wait?{turn}"))
        return dict(state)


@pytest.fixture
def server(sample: Path) -> Iterator[Server]:
    started = Server(sample)
    yield started
    started.process.kill()
    started.process.communicate()


@pytest.mark.nightly
def test_a_save_is_shown_and_a_failure_leaves_the_old_page(sample: Path, server: Server) -> None:
    html = server.get("ring.html")
    assert "A ring" in html
    assert re.search(r'<script src="/-/reload.js" data-state="1"></script></body>', html)
    assert server.get("") == server.get("index.html")
    assert "location.reload" in server.get("-/reload.js")
    assert server.get("assets/theme.js")

    first = json.loads(server.get("-/wait"))
    assert first == {"site": "1", "turn": "1", "error": ""}

    edit(sample / "src/sample/ring.py", "Make an empty ring.", "Make a new ring.")
    second = server.after("1")
    assert (second["site"], second["error"]) == ("2", "")
    assert "Make a new ring." in server.get("ring.html")
    assert "Built again." in server.read()

    line = edit(sample / "src/sample/ring.py", "LIMIT = 8", "LIMIT = = 8")
    third = server.after("2")
    # Nothing to load again: the pages are those of before, and the browser shows the message.
    assert third["site"] == "2"
    assert third["error"].startswith(f"src/sample/ring.py:{line}: ")
    assert "Make a new ring." in server.get("ring.html")
    assert server.read().startswith(f"src/sample/ring.py:{line}: ")

    edit(sample / "src/sample/ring.py", "LIMIT = = 8", "LIMIT = 9")
    assert server.after("3")["site"] == "3"
    assert '<span class="mi">9</span>' in server.get("ring.html")


@pytest.mark.nightly
def test_gaps_are_told_with_each_build(sample: Path) -> None:
    gappy(sample)
    server = Server(sample)
    try:
        told = "".join(server.said)
        assert all(gap in told for gap in GAPS)
        edit(sample / "src/sample/tools/window.py", "../ring.py", "../no.py")
        while "Built again." not in server.read():
            pass
        assert "the link '../no.py' leads to no page" in "".join(server.said)
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.mark.full
def test_a_page_that_is_being_typed_stays_where_a_build_goes_on(sample: Path) -> None:
    ring, window = sample / "src/sample/ring.py", sample / "src/sample/tools/window.py"
    mended = ring.read_text("utf-8")
    gappy(sample)
    server = Server(sample)
    try:
        assert json.loads(server.get("-/wait"))["error"] == ""
        line = edit(window, "first = 0", "first = = 0")
        state = server.after("1")
        assert state["error"].startswith(f"src/sample/tools/window.py:{line}: ")
        assert '<span class="mi">0</span>' in server.get("tools/window.html")
        # Other pages go on.
        edit(sample / "site/pages/index.md", "# The sample\n", "# Still the sample\n")
        assert server.after("2")["error"] == state["error"]
        assert "Still" in server.get("index.html")
        edit(window, "first = = 0", "first = 9")
        assert server.after("3")["error"] == ""
        assert '<span class="mi">9</span>' in server.get("tools/window.html")
        # What could not be read from the start has no page until it is mended.
        with pytest.raises(HTTPError) as answer:
            server.get("ring.html")
        assert b'<script src="/-/reload.js" data-state="4"></script></body>' in answer.value.read()
        answer.value.close()
        ring.write_text(mended, encoding="utf-8")
        assert server.after("4")["error"] == ""
        assert "A ring" in server.get("ring.html")
    finally:
        server.process.kill()
        server.process.communicate()


def test_a_file_that_is_still_being_written_is_not_read(tmp_path: Path) -> None:
    """An editor that empties a file and then fills it must not get a message about the empty one."""
    file = tmp_path / "ring.py"
    file.write_text("LIMIT = 8\n", encoding="utf-8")
    watch = serve.Watch(lambda: [tmp_path])
    assert not watch.changed()
    file.write_text("", encoding="utf-8")
    assert not watch.changed()
    file.write_text("LIMIT = 9\n", encoding="utf-8")
    assert not watch.changed()
    assert watch.changed()
    assert not watch.changed()


@pytest.mark.nightly
def test_a_new_page_in_the_configuration_is_served(sample: Path, server: Server) -> None:
    (sample / "site/pages/more.md").write_text("# More\n\nOf it.\n", encoding="utf-8")
    turn = server.after("1")["turn"]
    edit(
        sample / "site/sidelit.toml",
        'source = "index.md"',
        'source = "index.md"\n\n[[front]]\nsource = "more.md"',
    )
    server.after(turn)
    assert "Of it." in server.get("more.html")


@pytest.mark.nightly
def test_a_project_that_is_broken_from_the_start_is_told_in_the_browser(sample: Path) -> None:
    edit(sample / "src/sample/ring.py", "LIMIT = 8", "LIMIT = = 8")
    server = Server(sample)
    try:
        with pytest.raises(HTTPError) as answer:
            server.get("ring.html")
        assert answer.value.code == 503
        html = answer.value.read().decode()
        answer.value.close()
        assert "src/sample/ring.py:" in html
        assert "/-/reload.js" in html
        edit(sample / "src/sample/ring.py", "LIMIT = = 8", "LIMIT = 8")
        server.after("1")
        assert "A ring" in server.get("ring.html")
    finally:
        server.process.kill()
        server.process.communicate()


@pytest.mark.nightly
def test_what_is_not_there_is_not_found(server: Server) -> None:
    for path in ("nothing.html", "../site/sidelit.toml", "%2e%2e/site/sidelit.toml"):
        with pytest.raises(HTTPError) as answer:
            server.get(path)
        assert answer.value.code == 404
        answer.value.close()


@pytest.mark.cases(now=0, ci=2)
@pytest.mark.parametrize("turn", ["9" * 5000, "-1", "x", "%C2%B2"])
def test_whoever_waits_for_no_build_is_answered_at_once(server: Server, turn: str) -> None:
    with urlopen(f"{server.address}-/wait?{turn}", timeout=10) as answer:
        assert set(json.load(answer)) == {"site", "turn", "error"}


def test_a_folder_is_served_under_its_own_address() -> None:
    state = serve.State({"index.html": b"en", "ja/index.html": b"ja"}, 1, 1)
    assert serve.answer(state, "/ja/")[2].startswith(b"ja")
    # Without the slash its links would lead to the pages of the folder above.
    status, _, content = serve.answer(state, "/ja")
    assert (status, content) == (301, b"/ja/")
    assert serve.answer(state, "/index.html/")[0] == 404


@pytest.mark.full
def test_it_ends_cleanly_and_leaves_nothing_behind(sample: Path, server: Server) -> None:
    server.process.send_signal(signal.SIGINT)
    said, _ = server.process.communicate(timeout=60)
    assert server.process.returncode == 130
    assert said == "Stopped.\n"
    assert not (sample / "build").exists()


@pytest.mark.full
def test_a_port_that_is_taken_is_said(sample: Path, server: Server) -> None:
    port = server.address.rsplit(":", 1)[1].strip("/")
    told = sidelit("serve", "--port", port, cwd=sample, code=1).stderr
    assert port in told
    assert "--port" in told
    assert told.count("\n") == 1


def test_a_port_that_does_not_exist_is_said(sample: Path) -> None:
    told = sidelit("serve", "--port", "99999", cwd=sample, code=1).stderr
    assert "99999" in told
    assert told.count("\n") == 1


@pytest.mark.nightly
def test_it_listens_on_this_machine_alone(server: Server) -> None:
    port = int(server.address.rsplit(":", 1)[1].strip("/"))
    lines = Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]
    listening = [line.split()[1] for line in lines if line.split()[3] == "0A"]
    assert [place for place in listening if place.endswith(f":{port:04X}")] == [f"0100007F:{port:04X}"]


@pytest.mark.nightly
def test_it_answers_to_the_names_of_this_machine_alone(server: Server) -> None:
    """A page from elsewhere whose name was made to mean this machine reads nothing."""
    port = int(server.address.rsplit(":", 1)[1].strip("/"))
    asked = HTTPConnection("127.0.0.1", port, timeout=60)

    def status(host: str, target: str = "/ring.html") -> int:
        asked.putrequest("GET", target, skip_host=True)
        asked.putheader("Host", host)
        asked.endheaders()
        answer = asked.getresponse()
        said = answer.read().decode()
        assert answer.status == 200 or (said.startswith("This server answers") and said.count("\n") == 1)
        return answer.status

    for name in ("localhost", "LOCALHOST", "127.0.0.1", "[::1]"):
        assert [status(name), status(f"{name}:{port}"), status(f"{name}:9")] == [200, 200, 200]
    for name in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "", "10.0.0.1"):
        assert [status(name), status(f"{name}:{port}")] == [421, 421]
    assert status("localhost", f"http://evil.example:{port}/ring.html") == 421
    assert status("evil.example", "/-/wait") == 421


@pytest.mark.nightly
def test_published_pages_know_nothing_of_the_server(sample: Path) -> None:
    assert run("sidelit", "build", cwd=sample).returncode == 0
    for folder, _, names in os.walk(sample / "build/site"):
        for name in names:
            assert b"/-/" not in (Path(folder) / name).read_bytes() or not name.endswith(".html")
