"""Jupyter on this machine, with the notebooks of the labs in one language; Ctrl-C ends it.

    python tools/open_labs.py [--lang ja] [--folder FOLDER] [JUPYTER ARGUMENT ...]

Left out, the language is that of the environment, such as `LANG=ja_JP.UTF-8`, and English where there are no
notebooks in it. What stands behind it goes to JupyterLab, such as `--no-browser`.

Readers work on copies, in `my-labs/LANGUAGE/` or `FOLDER/LANGUAGE/`: neither git nor `sidelit lab` ever
touches what they wrote. A copy in which nothing was written follows its notebook. Whoever removes a copy gets
a new one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path

from sidelit.files import atomic

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "notebooks"
# What the copies were when they were made, so that one in which somebody wrote is known.
MADE = ".made.json"


def language(wanted: str | None) -> str:
    """The language whose notebooks are shown."""
    there = sorted(each.parent.name for each in NOTEBOOKS.glob("*/01_*.ipynb"))
    if wanted is not None and wanted not in there:
        sys.exit(f"there are no notebooks in {wanted!r}; choose from {', '.join(there)}")
    # The first of these that is set decides, as in every program.
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    own = next((name for name in names if name), "").partition("_")[0]
    return wanted or (own if own in there else "en")


def copy(notebooks: Path, copies: Path) -> list[str]:
    """Bring the copies up to date; the names of those that have a newer notebook and a reader's work."""
    record = copies / MADE
    made: dict[str, str] = json.loads(record.read_text("utf-8")) if record.is_file() else {}
    kept = []
    for notebook in sorted(notebooks.glob("*.ipynb")):
        name, new, own = notebook.name, notebook.read_bytes(), copies / notebook.name
        if own.exists() and digest(own.read_bytes()) not in (made.get(name), digest(new)):
            kept += [name] if digest(new) != made.get(name) else []
            continue
        atomic.write(own, new)
        made[name] = digest(new)
    atomic.write(record, json.dumps(made, indent=1).encode())
    return kept


def digest(content: bytes) -> str:
    """What tells one content from another."""
    return hashlib.sha256(content).hexdigest()


def command(folder: Path, more: list[str]) -> list[str]:
    """What starts JupyterLab: it listens to this machine alone, and asks nobody for news."""
    return [
        *(sys.executable, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1"),
        f"--ServerApp.root_dir={folder}",
        # It would ask the reader about news, and a server for announcements and for packages.
        f"--LabApp.app_settings_dir={ROOT / 'tools' / 'jupyter'}",
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
        "--LabApp.extension_manager=readonly",
        # In a container the reader is often root.
        "--allow-root",
        # One Ctrl-C ends it, without a question.
        "--ServerApp.answer_yes=True",
        *more,
    ]


def main() -> None:
    """Become JupyterLab."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lang", help="en, ja or zh")
    parser.add_argument("--folder", type=Path, default=ROOT / "my-labs", help="where your copies lie")
    given, more = parser.parse_known_args()
    lang = language(given.lang)
    folder = given.folder.resolve() / lang
    for name in copy(NOTEBOOKS / lang, folder):
        print(f"{folder / name} stays as you left it; rename it to get the newer one", file=sys.stderr)
    os.execv(sys.executable, command(folder, more))


if __name__ == "__main__":
    main()
