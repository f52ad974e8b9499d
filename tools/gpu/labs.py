"""Do the solutions of all labs pass their checks on the GPU?

The cells of a lab run in their order, in a fresh process, with one set of variables. That takes no Jupyter: a
check prints one line, or raises an error with the sentences that a reader would see. The ranks of a lab share
the GPU. Where matplotlib is missing, a cell that draws ends at its figure.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import linecache
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.gpu.kit import ROOT, Kit

NOTEBOOKS = ROOT / "notebooks" / "teacher" / "en"
# Without these, no lab can start ranks.
NEEDED = ("cloudpickle", "tqdm")
DRAWING = ("matplotlib", "cycler")
# The seconds that a lab may take, and those without which it does not begin.
LIMITS, LEAST = {"cuda": 60.0, "cpu": 150.0}, 12.0
# First those that start ranks most often, and so take longest; and those of a rehearsal.
ORDER, REHEARSED = (3, 9, 5, 10, 1, 2, 8, 4, 6, 7), (1, 3, 7)


def run(kit: Kit) -> None:
    """Several labs at a time on a GPU, as far as there are cores for their processes."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        kit.not_tried("labs", f"{' and '.join(missing)} is missing, without which no lab starts ranks")
        return
    found = {lab.number: lab for lab in map(Lab, NOTEBOOKS.glob("*.ipynb"))}
    labs = [found[number] for number in sorted(found, key=(*ORDER, *found).index)]
    if kit.quick:
        labs = [lab for lab in labs if lab.number in REHEARSED]
    cores = os.cpu_count() or 1
    at_once = max(1, cores // PROCESSES) if kit.device == "cuda" else 1
    with ThreadPoolExecutor(at_once) as pool:
        for done in as_completed([pool.submit(lab.run, kit, cores // at_once) for lab in labs]):
            done.result().tell(kit)


# Of a lab that compute at the same time: the notebook's own, and its ranks.
PROCESSES = 3


@dataclass
class Lab:
    """A notebook, and what became of its cells.

    :param begun: the number of the cell that was begun last
    :param ended: what is known of the cells that have ended
    :param said: all that it and its ranks have printed
    :param code: the exit code of its process, once there was one
    """

    path: Path
    begun: int = 0
    ended: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    said: str = ""
    code: int | None = None

    @property
    def number(self) -> int:
        """The number in front of its name."""
        return int(self.path.stem.partition("_")[0])

    @property
    def name(self) -> str:
        """As in a table."""
        return f"lab {self.number}, {self.path.stem.partition('_')[2].replace('_', ' ')}"

    @property
    def cells(self) -> list[dict[str, Any]]:
        """The cells with code."""
        every = json.loads(self.path.read_text("utf-8"))["cells"]
        return [cell for cell in every if cell["cell_type"] == "code"]

    def run(self, kit: Kit, cores: int) -> Lab:
        """Run it in a process of its own, unless there is too little time."""
        limit, begun = min(LIMITS[kit.device], kit.left - 2.0), time.monotonic()
        if limit < LEAST:
            return self
        environment = {
            **os.environ,
            "SHARDBOOK_LANG": "en",
            "MPLBACKEND": "Agg",
            "OMP_NUM_THREADS": str(max(1, cores // PROCESSES)),
            **({} if kit.device == "cuda" else {"CUDA_VISIBLE_DEVICES": ""}),
        }
        with tempfile.TemporaryDirectory(prefix="lab-") as folder:
            found, said = Path(folder, "found"), Path(folder, "said")
            found.touch()
            command = [sys.executable, "-m", "tools.gpu.labs", str(self.path), str(found), f"{limit:.1f}"]
            with said.open("wb") as output:
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                )
                try:
                    # It ends by itself at its limit, and says where it stood.
                    process.wait(limit + 3.0)
                except subprocess.TimeoutExpired:
                    pass
                finally:
                    process.kill()
                    self.code = process.wait()
            for line in found.read_text("utf-8").splitlines():
                news = json.loads(line)
                self.begun = news["cell"]
                self.ended += [news] * ("error" in news)
            self.said = said.read_text("utf-8", "replace")
        self.seconds = time.monotonic() - begun
        return self

    def tell(self, kit: Kit) -> None:
        """One row. What a lab has printed goes to the log, if something is wrong with it."""
        late = "no time was left: raise --minutes, or run this part alone with --part"
        if self.code is None:
            kit.not_tried(self.name, late)
            return
        stopped = f"its process ended with {self.code} in cell {self.begun} of {len(self.cells)}"
        last = self.said.strip().splitlines()[-1:]
        whole = len(self.ended) == len(self.cells)
        errors = [f"cell {cell['cell']}: {cell['error']}" for cell in self.ended if cell["error"]]
        if not whole or errors:
            print(f"--- {self.name}\n{self.said[-6000:]}", file=sys.stderr, flush=True)
        if not whole and not errors and TIMEOUT in self.said:
            kit.not_tried(self.name, f"{stopped}, after {self.seconds:.0f} s: {late}")
            return
        warnings = list(dict.fromkeys(re.findall(r"\w*Warning: .*|^\[W\d.*", self.said, re.MULTILINE)))
        undrawn = sum(cell["undrawn"] for cell in self.ended)
        kit.holds(
            self.name,
            whole and not errors,
            why="; ".join([*errors[:2], *([] if whole else [stopped, *last]), *warnings[:1]])[:600],
            checks=sum(cell["check"] and not cell["error"] for cell in self.ended),
            seconds=round(self.seconds, 1),
            **({"undrawn": undrawn} if undrawn else {}),
            **({"warnings": len(warnings)} if warnings else {}),
        )


# What `faulthandler` writes before the stacks, when a process ends at its limit.
TIMEOUT = "Timeout (0:"


def play(lab: Lab, found: Path, seconds: float) -> None:
    """Run the cells of a lab in this process, and write a line when a cell begins and when it ends."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    from shardbook.labs import lab_ranks

    # Ranks that hang are to say where they stand while this process can still tell it.
    (lab_ranks.ranks.__kwdefaults__ or {})["timeout"] = max(20.0, 0.6 * seconds)
    variables: dict[str, Any] = {"__name__": "__main__"}
    with found.open("a", encoding="utf-8") as news:
        for number, cell in enumerate(lab.cells, 1):
            print(json.dumps({"cell": number}), file=news, flush=True)
            source = "".join(cell["source"])
            print(f"--- cell {number}: {source.splitlines()[0]}", flush=True)
            told = execute(source, f"{lab.path.stem}, cell {number}", variables)
            check = bool(cell["metadata"].get("nbgrader", {}).get("grade"))
            print(json.dumps({"cell": number, "check": check, **told}), file=news, flush=True)
    faulthandler.cancel_dump_traceback_later()


def execute(source: str, file: str, variables: dict[str, Any]) -> dict[str, Any]:
    """Run a cell: its error in one line, and whether a figure is missing."""
    # So that a traceback shows its lines.
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    try:
        exec(compile(source, file, "exec"), variables)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in DRAWING:
            return {"error": "", "undrawn": True}
        return {"error": f"{type(error).__name__}: {error}", "undrawn": False}
    except BaseException as error:
        traceback.print_exc()
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {"error": f"{type(error).__name__}: {' … '.join(lines)}"[:400], "undrawn": False}
    return {"error": "", "undrawn": False}


if __name__ == "__main__":
    play(Lab(Path(sys.argv[1])), Path(sys.argv[2]), float(sys.argv[3]))
