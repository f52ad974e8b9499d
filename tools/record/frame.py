"""What every recording has in common: its name, its ranks, and the file that it leaves.

A module of this folder that defines `record` is a recording, and `site/recorded/NAME.json` has its name:

    def record() -> Any:
        "What the figures need, as JSON can hold it."
        return ranks(2, on_a_rank, 3)  # a list with what each rank has returned

    def exact(data: Any) -> Any:  # only where a run does not give all of it again, such as times
        "The part that a second run gives again; a test compares it with the file."
        return data["bytes"]

The functions of a rank stand at the top level of their module. They find a process group over gloo, and one
thread.
"""

from __future__ import annotations

import json
import os
import pickle
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from shardbook.foundations.ranks import Server, Task

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "site" / "recorded"
MOST_BYTES = 60_000  # The pages carry what the figures draw.
WIDTH = 110
SERVER = Server()


def names() -> list[str]:
    """All recordings, by name."""
    found = Path(__file__).parent.glob("*.py")
    return sorted(path.stem for path in found if re.search(r"^def record\(", path.read_text("utf-8"), re.M))


def module_of(name: str) -> ModuleType:
    """The module of a recording."""
    return import_module(f"tools.record.{name}")


def ranks(world_size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
    """Call a function on several ranks at once, and return the results in rank order."""
    return SERVER.run(Task(world_size, pickle.dumps((function, args)), seconds=300))


def tests_on_the_path() -> None:
    """Let the helpers of the tests be imported."""
    folder = str(ROOT / "tests")
    if folder not in sys.path:
        sys.path.append(folder)


def exact(name: str, data: Any) -> Any:
    """The part of a recording that each run gives again, as it stands in the file."""
    part = getattr(module_of(name), "exact", lambda whole: whole)(json.loads(json.dumps(data)))
    return json.loads(json.dumps(part))


def make(name: str) -> Path:
    """Run a recording and write its file."""
    return write(FOLDER / f"{name}.json", {"data": module_of(name).record(), **origin(name)})


def write(path: Path, record: Any) -> Path:
    """Write a recording, which is there whole or not at all."""
    content = text(record) + "\n"
    if len(content.encode()) > MOST_BYTES:
        sys.exit(
            f"{path.stem} takes {len(content.encode()):,} bytes, but a recording has at most {MOST_BYTES:,}; "
            "record a smaller model, or only what the figures draw"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(content, "utf-8")
    draft.replace(path)
    return path


def origin(name: str) -> dict[str, Any]:
    """Where a recording comes from: what stands under each figure that is drawn from it."""
    import torch

    return {
        "command": f"make record ARGS={name}",
        "commit": commit(),
        "machine": f"{platform.system()} {platform.machine()}, {processor()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }


def commit() -> str:
    """The commit that was run, with a mark if the library or the recordings differ from it."""
    found = git("rev-parse", "HEAD")
    return f"{found}-dirty" if git("status", "--porcelain", "src/shardbook", "tools/record") else found


def git(*words: str) -> str:
    """What git answers here."""
    return subprocess.run(
        ["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout.strip()


def processor() -> str:
    """The processor's own name where the system tells it."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text("utf-8").splitlines() if file.exists() else []
    found = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return found[0] if found else platform.processor()


def text(value: Any, indent: int = 0, before: int = 0) -> str:
    """JSON with sorted keys, in which short values and rows of numbers take one line or few.

    :param before: the characters of a key that stand before the value
    """
    # `json` makes a text of a key that is a number, and sorts keys before it does.
    value = json.loads(json.dumps(value))
    flat = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    if len(flat) + indent + before < WIDTH or not isinstance(value, dict | list | tuple):
        return flat
    inner, outer = "\n" + " " * (indent + 1), "\n" + " " * indent
    if isinstance(value, dict):
        pairs = sorted(value.items())
        keys = [f"{json.dumps(key, ensure_ascii=False)}: " for key, _ in pairs]
        parts = [key + text(one, indent + 1, len(key)) for key, (_, one) in zip(keys, pairs, strict=True)]
        return "{" + inner + f",{inner}".join(parts) + outer + "}"
    if any(isinstance(one, dict | list | tuple) for one in value):
        return "[" + inner + f",{inner}".join(text(one, indent + 1) for one in value) + outer + "]"
    rows = [""]
    for number, one in enumerate(value, 1):
        word = json.dumps(one, ensure_ascii=False, allow_nan=False) + "," * (number < len(value))
        if rows[-1] and len(rows[-1]) + len(word) + indent + 2 > WIDTH:
            rows.append("")
        rows[-1] += f" {word}" if rows[-1] else word
    return "[" + inner + inner.join(rows) + outer + "]"
