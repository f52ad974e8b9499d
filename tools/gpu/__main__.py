"""Find out on a machine with GPUs whether the library is right there, and how fast.

The parts run in the order of their worth, each in a process of its own and for a limited time. After each
line that a part has found, it is written to one JSON file and one table, so an interrupted run is worth
something, too. Nothing is installed and nothing is fetched: PyTorch with CUDA is enough, and a part says
which other library it misses.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.gpu.kit import DIFFERS, ROOT
from tools.gpu.table import table, totals

# Each part, with its share of the time.
PARTS = {
    "training": 2.5,
    "nccl": 1.0,
    "streams": 1.5,
    "memory": 1.5,
    "speed": 2.5,
    "precision": 0.75,
    "labs": 0.75,
}
PACKAGE = "tools.gpu"
# The late device has no NCCL and no clock worth reading.
OF_LATE = ("training", "nccl", "streams")
# What some part can do without.
OPTIONAL = ("numpy", "msgspec", "safetensors", "tqdm", "cloudpickle", "matplotlib", "megatron_fsdp")


def main(arguments: list[str] | None = None) -> int:
    """Run the parts, print what they find, write the files; fail if a promise does not hold."""
    options = parse(arguments)
    known = [*PARTS] if options.device != "late" else [*OF_LATE]
    parts = [name for name in (options.part or known) if name in known]
    refuse(options, known)
    found: dict[str, Any] = {**origin(options, arguments), "missing": missing(), "parts": []}
    whole = sum(PARTS[name] for name in parts)
    stopped = False
    try:
        for name in parts:
            run(name, 60 * options.minutes * PARTS[name] / whole, options, found)
    except KeyboardInterrupt:
        stopped = True
    finally:
        write(options.json, found)
    print(f"\n{totals(found)}\nwritten to {options.json} and {options.json.with_suffix('.txt')}", flush=True)
    if stopped:
        print("Stopped.", file=sys.stderr)
        return 130
    return int(any(row["status"] == DIFFERS for part in found["parts"] for row in part["rows"]))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """The command line."""
    about, *more = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tools.gpu",
        description=" ".join(about.split()),
        epilog=" ".join(" ".join(more).split()),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--part", action="append", choices=[*PARTS], help="run this part; may be given several times")
    add("--minutes", type=minutes, default=10.0, metavar="N", help="for all chosen parts together")
    add(
        "--device",
        choices=("cuda", "cpu", "late"),
        default="cuda",
        help="the others are rehearsals of the kit",
    )
    add("--quick", action="store_true", help="few and small cases: shows that the kit works, not how fast")
    add(
        "--json",
        type=Path,
        default=ROOT / "build" / "gpu" / "gpu.json",
        metavar="FILE",
        help="where to write",
    )
    add("--commit", metavar="HASH", help="the commit, where the folder is no clone")
    return parser.parse_args(arguments)


def minutes(text: str) -> float:
    """A time above zero."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of minutes above 0")
    return value


def refuse(options: argparse.Namespace, known: list[str]) -> None:
    """End in one sentence where nothing could be run."""
    if importlib.util.find_spec("torch") is None:
        sys.exit(
            f"{sys.executable} has no PyTorch; "
            "name a Python that has one with CUDA, as in `make gpu PYTHON=…`"
        )
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit(
            f"PyTorch {torch.__version__} finds no CUDA device here; "
            '`make gpu ARGS="--device cpu --quick"` rehearses the kit without one'
        )
    other = [name for name in options.part or () if name not in known]
    if other:
        sys.exit(f"--part {other[0]} does not run on the late device; it runs {', '.join(known)}")
    options.json.parent.mkdir(parents=True, exist_ok=True)


def run(name: str, seconds: float, options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Run one part, and take over each line that it writes."""
    part: dict[str, Any] = {"name": name, "rows": []}
    found["parts"].append(part)
    print(f"\n{name}, at most {seconds:.0f} s", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpu-") as folder:
        lines, said = Path(folder, "lines"), Path(folder, "said")
        lines.touch()
        command = [
            sys.executable,
            "-m",
            "tools.gpu.kit",
            f"{PACKAGE}.{name}",
            "--device",
            options.device,
            "--to",
            str(lines),
        ]
        command += ["--seconds", f"{seconds:.1f}", *(["--quick"] if options.quick else [])]
        with said.open("wb") as output, lines.open("r", encoding="utf-8") as news:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment(), stdout=output, stderr=output, start_new_session=True
            )
            try:
                # A part ends by itself when its time is up. One that hangs is ended a little later.
                code = watch(
                    process, started + seconds + max(10.0, 0.1 * seconds), news, part, options, found
                )
            finally:
                end(process)
            take(news, part)
        if code:
            told = said.read_text("utf-8", "replace").strip().splitlines()
            why = "it was ended at its time limit" if code == TOO_LONG else f"its process ended with {code}"
            row = {"name": name, "status": DIFFERS, "why": "; ".join([why, *told[-1:]])}
            part["rows"].append(row)
            print("\n".join(told[-40:]), file=sys.stderr, flush=True)
            print(table([part], head=False), flush=True)
    part["seconds"] = round(time.monotonic() - started, 1)
    write(options.json, found)


TOO_LONG = "no end"


def watch(
    process: subprocess.Popen[bytes],
    deadline: float,
    news: Any,
    part: dict[str, Any],
    options: argparse.Namespace,
    found: dict[str, Any],
) -> int | str:
    """Wait for the end of a part, and write what it finds meanwhile; its exit code, or that it has none."""
    while True:
        try:
            return process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            if take(news, part):
                write(options.json, found)
        if time.monotonic() > deadline:
            return TOO_LONG


def take(news: Any, part: dict[str, Any]) -> bool:
    """Take over and print the lines that have come; whether there were any."""
    rows = [json.loads(line) for line in news if line.endswith("\n")]
    part["rows"] += rows
    if rows:
        print(table([{**part, "rows": rows}], head=False), flush=True)
    return bool(rows)


def end(process: subprocess.Popen[bytes]) -> None:
    """Leave nothing of a part running, its ranks included."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def environment() -> dict[str, str]:
    """What a part needs to import the library, the tests' programs and the kit from this folder."""
    paths = [str(ROOT / "src"), str(ROOT / "tests"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        # Matrix products of CUDA give the same bits twice only with a workspace of fixed size.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    }


def origin(options: argparse.Namespace, arguments: list[str] | None) -> dict[str, Any]:
    """The machine, the versions, the command and the commit."""
    import torch

    words = sys.argv[1:] if arguments is None else arguments
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    card: dict[str, Any] = {"name": options.device, "count": 1}
    if options.device == "cuda":
        facts = torch.cuda.get_device_properties(0)
        card = {"name": facts.name, "count": torch.cuda.device_count(), "bytes": facts.total_memory}
        versions |= {"cuda": str(torch.version.cuda), "driver": driver()}
        if torch.distributed.is_nccl_available():
            versions["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "command": " ".join(["make gpu", *([f'ARGS="{" ".join(words)}"'] if words else [])]),
        "commit": options.commit or commit(),
        "date": time.strftime("%Y-%m-%d"),
        "card": card,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": versions,
    }


def driver() -> str:
    """The version of the driver, as nvidia-smi tells it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    command = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return lines[0] if lines else "unknown"


def commit() -> str:
    """The commit of this folder, with a mark if files differ from it."""

    def git(*words: str) -> str:
        told = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        return told.stdout.strip()

    found = git("rev-parse", "HEAD") if shutil.which("git") else ""
    changed = found and git("status", "--porcelain", "src/shardbook", "tools/gpu", "tests/book")
    return (f"{found}-dirty" if changed else found) or "unknown"


def missing() -> list[str]:
    """The optional libraries that are not here."""
    return [name for name in OPTIONAL if importlib.util.find_spec(name) is None]


def write(path: Path, found: dict[str, Any]) -> None:
    """Write both files, each whole or not at all."""
    for file, content in (
        (path, json.dumps(found, indent=1) + "\n"),
        (path.with_suffix(".txt"), table(found["parts"], found) + "\n"),
    ):
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.write_text(content, "utf-8")
        draft.replace(file)


if __name__ == "__main__":
    sys.exit(main())
