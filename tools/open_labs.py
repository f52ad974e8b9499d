"""Jupyter on this machine, with the notebooks of the labs in one language; Ctrl-C ends it.

    python tools/open_labs.py [--lang ja] [JUPYTER ARGUMENT ...]

Left out, the language is that of the environment, such as `LANG=ja_JP.UTF-8`, and English where there are no
notebooks in it. What stands behind it goes to JupyterLab, such as `--no-browser`.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

NOTEBOOKS = Path(__file__).parent.parent / "notebooks"


def language(wanted: str | None) -> str:
    """The language whose notebooks are shown."""
    there = sorted(each.parent.name for each in NOTEBOOKS.glob("*/01_*.ipynb"))
    if wanted is not None and wanted not in there:
        sys.exit(f"there are no notebooks in {wanted!r}; choose from {', '.join(there)}")
    # The first of these that is set decides, as in every program.
    names = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    own = next((name for name in names if name), "").partition("_")[0]
    return wanted or (own if own in there else "en")


def command(lang: str, more: list[str]) -> list[str]:
    """What starts JupyterLab: it listens to this machine alone, and asks nobody for news."""
    return [
        *(sys.executable, "-m", "jupyterlab", "--ServerApp.ip=127.0.0.1"),
        f"--ServerApp.root_dir={NOTEBOOKS / lang}",
        # It would ask a server for announcements and for packages.
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
    given, more = parser.parse_known_args()
    os.execv(sys.executable, command(language(given.lang), more))


if __name__ == "__main__":
    main()
