"""`make labs`: Jupyter really starts, hands a notebook out, runs its first cells, and ends by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
import websocket

import open_labs

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
LIMIT = 240


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Jupyter as `make labs` starts it, its address, and its token."""
    environment = {
        **os.environ,
        "LANG": "ja_JP.UTF-8",
        "LC_ALL": "",
        "LC_MESSAGES": "",
        "HOME": str(tmp_path),
        "PYTHONPATH": str(ROOT / "src"),
        "JUPYTER_TOKEN": "a-token",
    }
    options = ["--folder", str(tmp_path / "copies"), "--no-browser"]
    options += ["--ServerApp.port=0", f"--ServerApp.config_file={tmp_path / 'none.py'}"]
    made = subprocess.Popen(
        [sys.executable, str(ROOT / "tools/open_labs.py"), *options],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert made.stderr is not None
        found = None
        for line in made.stderr:
            if found := re.search(r"(http://127\.0\.0\.1:\d+)/", line):
                break
        assert found, "Jupyter names no address"
        wait_for(made, found[1])
        yield made, found[1], "a-token"
    finally:
        if made.poll() is None:
            os.killpg(made.pid, signal.SIGKILL)
        made.communicate()


def wait_for(process: subprocess.Popen[str], address: str) -> None:
    """Until it listens: it names its address a little earlier."""
    while process.poll() is None:
        with suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))).close()
            return
    raise AssertionError("Jupyter has ended")


def asked(address: str, token: str, path: str, data: bytes | None = None) -> Any:
    request = urllib.request.Request(f"{address}{path}", data, {"Authorization": f"token {token}"})
    with urllib.request.urlopen(request, timeout=LIMIT) as answer:
        return json.load(answer)


def executed(channels: Any, code: str) -> str:
    """Run a cell in the kernel; what it printed, or its error."""
    number = uuid.uuid4().hex
    header = {"msg_id": number, "msg_type": "execute_request", "username": "", "session": number}
    content = {"code": code, "silent": False, "store_history": True, "stop_on_error": True}
    message = {"header": header, "parent_header": {}, "metadata": {}, "content": content, "channel": "shell"}
    channels.send(json.dumps(message))
    text = ""
    while True:
        answer = json.loads(channels.recv())
        if answer["parent_header"].get("msg_id") != number:
            continue
        match answer["msg_type"], answer["content"]:
            case "stream", {"text": said}:
                text += said
            case "error", {"ename": name, "evalue": why}:
                text += f"{name}: {why}"
            case "status", {"execution_state": "idle"}:
                return text


@pytest.mark.nightly
@pytest.mark.timeout(LIMIT)
def test_jupyter_runs_the_first_cells_of_a_lab_and_ends(server: Any) -> None:
    process, address, token = server
    # Nobody is asked about news of Jupyter, and nobody is asked for them.
    settings = asked(address, token, "/lab/api/settings/@jupyterlab/apputils-extension:notification")
    known = settings["schema"]["properties"]
    assert (known["fetchNews"]["default"], known["checkForUpdates"]["default"]) == ("false", False)
    name = "01_where_memory_goes.ipynb"
    notebook = asked(address, token, f"/api/contents/{name}?type=notebook")["content"]
    # The reader's language is Japanese, and so are the notebook and its kernel.
    committed = nbformat.read(ROOT / "notebooks/ja" / name, as_version=4)
    assert [cell["source"] for cell in notebook["cells"]] == [cell.source for cell in committed.cells]
    made = {"path": name, "type": "notebook", "name": name, "kernel": {"name": "python3"}}
    kernel = asked(address, token, "/api/sessions", json.dumps(made).encode())["kernel"]["id"]
    channels = websocket.create_connection(
        f"{address.replace('http', 'ws')}/api/kernels/{kernel}/channels?token={token}", timeout=LIMIT
    )
    # A fork with a public address has a cell before these, which installs what a reader lacks.
    own = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and cell["id"] != "install"]
    codes = [cell["source"] for cell in own][:2]
    shown = [executed(channels, code) for code in codes]
    channels.close()
    assert "PyTorch 2." in shown[0]
    assert "SHARDBOOK_LANG" in shown[0]
    assert shown[1] == "867,072 · 4 B = 3.47 MB\n"
    started = psutil.Process(process.pid).children(recursive=True)
    assert started
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=LIMIT) == 0
    assert psutil.wait_procs(started, timeout=60)[1] == []


@pytest.mark.parametrize(
    ("wanted", "lang", "shown"),
    [(None, "ja_JP.UTF-8", "ja"), (None, "de_DE.UTF-8", "en"), (None, "", "en"), ("zh", "ja_JP.UTF-8", "zh")],
)
def test_the_language_is_that_of_the_reader(
    wanted: str | None, lang: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", lang)
    assert open_labs.language(wanted) == shown


def test_a_reader_works_on_copies_that_follow_until_something_is_written(tmp_path: Path) -> None:
    notebooks, copies = tmp_path / "notebooks", tmp_path / "my-labs" / "en"
    notebooks.mkdir()
    for name in ("01.ipynb", "02.ipynb"):
        (notebooks / name).write_text("first", "utf-8")
    assert open_labs.copy(notebooks, copies) == []
    (copies / "01.ipynb").write_text("answered", "utf-8")
    assert open_labs.copy(notebooks, copies) == []
    for name in ("01.ipynb", "02.ipynb", "03.ipynb"):
        (notebooks / name).write_text("second", "utf-8")
    assert open_labs.copy(notebooks, copies) == ["01.ipynb"]
    shown = {path.name: path.read_text("utf-8") for path in copies.glob("*.ipynb")}
    assert shown == {"01.ipynb": "answered", "02.ipynb": "second", "03.ipynb": "second"}
    # Renamed, it makes room for the newer one.
    (copies / "01.ipynb").rename(copies / "mine.ipynb")
    assert open_labs.copy(notebooks, copies) == []
    assert (copies / "01.ipynb").read_text("utf-8") == "second"
    assert (copies / "mine.ipynb").read_text("utf-8") == "answered"
    # Without what it remembers, it takes every copy for a reader's work.
    (copies / open_labs.MADE).unlink()
    (notebooks / "02.ipynb").write_text("third", "utf-8")
    assert open_labs.copy(notebooks, copies) == ["02.ipynb"]
    assert (copies / "02.ipynb").read_text("utf-8") == "second"


def test_a_language_without_notebooks_is_named() -> None:
    with pytest.raises(SystemExit, match="there are no notebooks in 'fr'; choose from en, ja, zh"):
        open_labs.language("fr")
