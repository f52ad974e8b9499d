"""Compile the late device, once for each state of its sources, and load it.

The library lies in `.cache/device/`, under the digest of the sources, of torch and of the compiler's flags.
Several processes may want it at once: the first one builds it, and the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

import torch
from torch.utils.cpp_extension import include_paths

SOURCES = Path(__file__).parent / "late"
CACHE = Path(__file__).parents[2] / ".cache/device"
NAME = "late_device"
# The kernels are torch's own, so there is little to optimise here, and less is faster to compile.
# Without NDEBUG torch's headers assert what its own build does not. On 2.11 that is wrong between threads.
FLAGS = [
    "-O1",
    "-DNDEBUG",
    "-std=c++20",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-DTORCH_EXTENSION_NAME=late_device",
]


def library() -> Path:
    """The compiled library, which is built if it is not there.

    :raises RuntimeError: if there is no compiler, or the sources do not compile
    """
    sources = sorted(SOURCES.iterdir())
    said = [torch.__version__, sys.version, *FLAGS, *(source.read_text() for source in sources)]
    made = CACHE / f"{NAME}-{hashlib.sha256(repr(said).encode()).hexdigest()[:16]}.so"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            compile_into(made)
    return made


def compile_into(made: Path) -> None:
    """Run the compiler. A library appears under its name when it is whole."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise RuntimeError(
            "the late device of the tests is written in C++, and no compiler was found: "
            "install g++ or clang++, or name one in CXX"
        )
    paths = [*include_paths(), sysconfig.get_path("include")]
    home = Path(torch.__file__).parent / "lib"
    libraries = ["-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python", f"-L{home}", f"-Wl,-rpath,{home}"]
    unfinished = made.with_suffix(f".{os.getpid()}")
    command = [compiler, *FLAGS, *(f"-isystem{path}" for path in paths), str(SOURCES / "late.cpp")]
    built = subprocess.run(
        [*command, *libraries, "-o", str(unfinished)], capture_output=True, text=True, check=False
    )
    if built.returncode:
        raise RuntimeError(f"the late device does not compile:\n{built.stderr}")
    unfinished.replace(made)


def load() -> ModuleType:
    """The extension module. To load it makes PyTorch know the device."""
    if NAME not in sys.modules:
        loader = ExtensionFileLoader(NAME, str(library()))
        spec = importlib.util.spec_from_loader(NAME, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        sys.modules[NAME] = module
    return sys.modules[NAME]
