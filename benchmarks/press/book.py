"""The book of this repository: in one language and in three, from nothing and after one edit.

A copy of the project is built, so that an edit hurts nobody, and no git lies around it. The edits are made in
the middle of the book, in a chapter to which many others lead.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks.press.cost import Cost, run, sidelit

ROOT = Path(__file__).parent.parent.parent
CHAPTER = "src/shardbook/zero/hooks.py"
NEEDED = ("src", "site", "notebooks", "tests", "pyproject.toml", "CITATION.cff")


def copied(folder: Path) -> Path:
    """Copy what the site is made of."""
    for name in NEEDED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return folder


def in_english(folder: Path) -> Path:
    """The same in one language."""
    path = copied(folder) / "site" / "sidelit.toml"
    text = path.read_text("utf-8")
    path.write_text(re.sub(r"(?m)^languages = .*", 'languages = ["en"]', text), encoding="utf-8")
    shutil.rmtree(folder / "site" / "locale")
    return folder


def cold(folder: Path) -> Cost:
    """A build from nothing: no cache, no old site."""
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    shutil.rmtree(folder / "build", ignore_errors=True)
    return run(sidelit("build"), folder)


def again(folder: Path, kind: str) -> Cost:
    """A build after one edit, and whatever the last build left behind."""
    edit(folder, kind)
    return run(sidelit("build"), folder)


# What a writer changes: a pattern whose first place is replaced. Each can be made again and again.
EDITS = {
    # Words of a comment; no line moves.
    "words": (r"(?m)^( +# (?!sidelit:).*)\.$", r"\1, and so on."),
    # All lines below it move.
    "line": (r"(?m)^( +)(# (?!sidelit:).*\.)$", r"\1\2\n\1# It is so."),
    # Its title stands in the contents.
    "section": (r"\Z", '\n\ndef one_more() -> int:\n    """One more section."""\n    return 1\n'),
    # It stands on other pages: cards, contents, links.
    "lede": (r"(?m)^(> .*)\.$", r"\1, and so on."),
}


def edit(folder: Path, kind: str) -> None:
    """Change the chapter."""
    path = folder / CHAPTER
    text = path.read_text("utf-8")
    changed = re.sub(*EDITS[kind], text, count=1)
    if changed == text:
        sys.exit(f"{CHAPTER} has no place for the edit {kind!r}, so an unchanged build would be measured")
    path.write_text(changed, encoding="utf-8")


def pages(folder: Path) -> int:
    """How many pages the last build made."""
    return sum(1 for _ in (folder / "build" / "site").rglob("*.html"))


class Served:
    """The server of the press, and what its builds cost; `edited` builds once more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
        command = list(map(str, sidelit("serve", "--port", "0")))
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://\S+/", line)
        if found is None:
            sys.exit(f"sidelit serve said {line!r}")
        self._address = found[0]

    def edited(self, kind: str) -> Cost:
        """Save the chapter, and wait for the next site."""
        turn = self._state("")["turn"]
        start, before = time.perf_counter(), self._cpu()
        edit(self._folder, kind)
        while self._state(f"?{turn}")["turn"] == turn:
            pass
        wall, cpu = time.perf_counter() - start, self._cpu() - before
        if error := self._state("")["error"]:
            sys.exit(f"the edit fails: {error}")
        return Cost(cpu, wall, 0)

    def close(self) -> None:
        """End the server as Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)
        self._process.communicate()

    def _state(self, query: str) -> dict[str, str]:
        with urllib.request.urlopen(f"{self._address}-/wait{query}") as answer:
            state: dict[str, str] = json.load(answer)
        return state

    def _cpu(self) -> float:
        """Seconds of the process, and of those that it has waited for."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text("utf-8").rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
