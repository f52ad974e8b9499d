"""A small project to print: two sources, some prose, and the commands run on it as a user runs them."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import polib
import pytest

from sidelit.cli import options

SAMPLE = Path(__file__).parent / "data" / "sample"
SAMPLE_PAGES = [
    "index.html",
    "notes/reading.html",
    "ring.html",
    "tools/window.html",
    "glossary.html",
    "bibliography.html",
]

# What the press has compiled of its templates is kept for all tests, as it is for all projects of a user.
# A test that is about this folder names one of its own.
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="press-")
atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)

Done = subprocess.CompletedProcess[str]


def unbroken(html: str) -> str:
    """A page without what says where its lines may end."""
    return re.sub(r'<wbr>|<span class="whole">([^<]*)</span>', r"\1", html)


def run(module: str, *arguments: str | Path, cwd: Path) -> Done:
    """Run a command of the environment the tests run in, with a home of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, "HOME": str(cwd), "PYTHONWARNINGS": "error", "NO_COLOR": "1"}
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, encoding="utf-8", timeout=120
    )


def sidelit(*arguments: str | Path, cwd: Path, code: int = 0) -> Done:
    """Give the arguments to `sidelit` and insist on its exit code.

    No process is started, since that takes as long as most commands; what only a process shows goes through
    `run`. An error that the command does not handle fails the test with its traceback.
    """
    told, errors = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(told), redirect_stderr(errors):
        patch.chdir(cwd)
        patch.setenv("HOME", str(cwd))
        patch.setenv("NO_COLOR", "1")
        try:
            done = options.main([str(argument) for argument in arguments])
        except SystemExit as end:
            # So `argparse` ends: 0 after its help, 2 after a call that it does not understand.
            done = int(end.code or 0)
    assert done == code, f"exit {done}\n{told.getvalue()}\n{errors.getvalue()}"
    return Done(["sidelit", *map(str, arguments)], done, told.getvalue(), errors.getvalue())


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder, as an author whom the settings of this machine do not know."""
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its path."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


class Html(HTMLParser):
    """What the tests ask of a page: its ids, its addresses, its texts by element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.sections: list[str] = []
        self.addresses: list[str] = []
        self.lang = ""
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "html":
            self.lang = given["lang"]
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "section":
            self.sections.append(given["id"])
        self.addresses += [given[name] for name in ("href", "src") if name in given]

    def handle_data(self, data: str) -> None:
        self.text += data


def page(folder: Path, name: str) -> Html:
    """Parse one page of a built site."""
    return Html((folder / name).read_text(encoding="utf-8"))


def edit(path: Path, old: str, new: str) -> int:
    """Exchange a text that a file holds once; return the line on which the new text starts."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
    # As editors save: who reads at that moment finds the old file or the new one, never half of it.
    half = path.parent.parent / f".{path.name}"
    half.write_text(text.replace(old, new), encoding="utf-8")
    half.replace(path)
    return text[: text.index(old)].count("\n") + 1


def translate(path: Path, words: dict[str, str]) -> None:
    """Do a translator's work on one catalogue."""
    catalogue = polib.pofile(str(path), wrapwidth=0)
    for english, said in words.items():
        entries = [entry for entry in catalogue if entry.msgid == english]
        assert entries, english
        for entry in entries:
            entry.msgstr = said
    catalogue.save()


# How a command tells what `gappy` leaves wrong.
GAPS = (
    "warning: src/sample/tools/window.py:5: the link '../ring.py' leads to no page",
    "skipped: src/sample/ring.py:1: not valid Python",
)


def gappy(project: Path) -> None:
    """Let the sample be printed with gaps: a link leads nowhere, and a source is no Python."""
    configuration = project / "site/sidelit.toml"
    configuration.write_text(f"keep_going = true\n{configuration.read_text('utf-8')}", encoding="utf-8")
    (project / "src/sample/ring.py").write_text("def f(:\n", encoding="utf-8")
