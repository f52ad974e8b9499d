"""Prints hostile inputs one by one, each with a limit of seconds and of bytes that the system enforces.

    python limited.py FOLDER FILE [NAME…]

For each case it writes its name and, behind it, how it ended. A case that takes more kills the process, and
its name is the last one that was written.
"""

from __future__ import annotations

import math
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from press.figures import studio
from press.hostile import cases
from press.project import SAMPLE
from sidelit.config import config
from sidelit.errors import Collector, SidelitError
from sidelit.files.atomic import Output
from sidelit.site import printing, site

SECONDS = 10
BYTES = 500 << 20

PAGE = """\
title = "Hostile"
[[front]]
source = "index.md"
"""


def words(folder: Path, case: cases.Case) -> None:
    """Print a text as other people's docstring and as a page of a site."""
    said = cases.text(case)
    (folder / "module.py").write_text(f'"""# A title"""\n\n\ndef f():\n    {said!r}\n', "utf-8")
    _print(folder / "module.py")
    pages = folder / "project" / "site" / "pages"
    pages.mkdir(parents=True, exist_ok=True)
    (pages.parent / "sidelit.toml").write_text(PAGE, "utf-8")
    (pages / "index.md").write_text(f"# A title\n\n{said}", "utf-8", "surrogatepass")
    site.whole_files(config.load(pages.parent / "sidelit.toml"), Collector())


def source(folder: Path, case: cases.Case) -> None:
    """Print a whole source."""
    (folder / "module.py").write_bytes(cases.text(case).encode("utf-8", "surrogatepass"))
    _print(folder / "module.py")


def _print(path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as out:
        printing.write(printing.Job((path,)), Output(Path(out)))


def data(folder: Path, case: cases.Case) -> None:
    """Build a site one of whose files is not what it should be."""
    site.whole_files(config.load(replaced(folder, case) / "site" / "sidelit.toml"))


def replaced(folder: Path, case: cases.Case) -> Path:
    """A project with a figure and a catalogue, one of its files replaced or changed."""
    project = folder / "sample"
    shutil.rmtree(project, ignore_errors=True)
    shutil.copytree(SAMPLE, project)
    page = studio.furnish(project) / "pages" / "notes" / "reading.md"
    page.write_text(page.read_text("utf-8") + "\n::: figure bars\n:::\n", "utf-8")
    path = project / case["path"]
    path.parent.mkdir(parents=True, exist_ok=True)
    if "old" in case:
        before = path.read_text("utf-8")
        assert before.count(case["old"]) == 1, case
        path.write_text(before.replace(case["old"], case["new"]), "utf-8")
    else:
        path.write_text(cases.text(case), "utf-8")
    return project


KINDS: dict[str, Callable[[Path, cases.Case], None]] = {
    "scripts": words,
    "floods": words,
    "sources": source,
    "data": data,
}


def main(folder: Path, kind: str, names: list[str]) -> None:
    """Print the cases of a file, all or those that are named."""
    # What the first print loads is not the input's fault.
    words(folder, {"text": "Words with $x$."})
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + BYTES, hard))
    for name, case in cases.read(kind).items():
        if names and name not in names:
            continue
        print(name, end=": ", flush=True)
        begun = time.process_time()
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(begun) + SECONDS, hard))
        try:
            KINDS[kind](folder, case)
            told = "printed"
        except SidelitError as error:
            told = f"refused: {str(error)[:2000]!r}"
        print(f"{time.process_time() - begun:.2f} s, {told}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
