"""Pages of other people's files, by Pycco and by the press.

Both print the same copies of modules from the standard library and from torch, each run in a fresh process.
The press sets formulas, resolves links and gives every section an id; Pycco does none of these.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from pathlib import Path

from benchmarks.press.cost import Cost, run, sidelit

# Tests and vendored tools are not what people read.
SKIPPED = {"site-packages", "test", "tests", "lib2to3", "idlelib"}
SMALLEST = 2_000


def copied(folder: Path, each: int) -> list[Path]:
    """Copy modules of both kinds into a folder, evenly picked; returns them from that folder."""
    found = []
    roots = {"stdlib": sysconfig.get_path("stdlib"), "torch": f"{sysconfig.get_path('purelib')}/torch"}
    for name, root in roots.items():
        files = [path for path in sorted(Path(root).rglob("*.py")) if _read(path, Path(root))]
        for path in files[:: max(1, len(files) // each)][:each]:
            target = folder / name / path.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
            found.append(target.relative_to(folder))
    return found


def _read(path: Path, root: Path) -> bool:
    return not SKIPPED & set(path.relative_to(root).parts) and path.stat().st_size > SMALLEST


def pycco(folder: Path, files: list[Path]) -> Cost:
    """One run of Pycco, which keeps the folders of the files apart as the press does."""
    return run([Path(sys.executable).with_name("pycco"), "-p", "-d", "pycco", *files], folder)


def press(folder: Path, files: list[Path]) -> Cost:
    """One run of the press, which begins with nothing that an earlier one has kept."""
    cache = folder / "cache"
    shutil.rmtree(cache / "sidelit" / "printed", ignore_errors=True)
    return run(sidelit("print", *files, "--out", "press"), folder, XDG_CACHE_HOME=str(cache))


def generated(folder: Path, count: int) -> Path:
    """Write modules of one size into a folder, so that only their number differs from run to run."""
    folder.mkdir(parents=True)
    for number in range(count):
        (folder / f"module_{number:04}.py").write_text(_module(number), encoding="utf-8")
    return folder


def _module(number: int) -> str:
    functions = "\n\n".join(
        f'def step_{place}(value: int) -> int:\n    """Add {place} to a value: $x + {place}$."""\n'
        f"    # The sum is checked at once.\n    total = value + {place}\n    assert total >= value\n"
        "    return total\n"
        for place in range(40)
    )
    return f'"""# Module {number}\n\n> It adds.\n"""\n\n{functions}'
