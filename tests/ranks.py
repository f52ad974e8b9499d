"""Start many ranks in a test: one process each, gloo over the loopback, one thread each.

    def double(x):                       # at module level, so that a rank can import it
        ...                              # torch.distributed is initialised here
        return x                         # anything that can be pickled

    assert ranks.run(2, double, 21) == [42, 42]

The processes are those of `shardbook.foundations.ranks`. They are forked from a server that has imported
the test's file once, and has never run anything. What else all ranks of a file would import, such as a
library of models, a function `preload` of the file imports in its server.

A warning is an error in a rank, too, and an assert says what differed. What goes wrong is told whole: the
traceback of every rank, with the rank that failed first at the head; a rank that died, with its exit code; a
rank that hangs, with the stacks of its threads. Nothing is left running.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from types import ModuleType
from typing import Any

from shardbook.foundations.ranks import RanksFailed, Server, Task

__all__ = ["PRELOAD", "SERVER", "RanksFailed", "run"]

# Every optimizer imports torch._dynamo, which takes seconds: once for all files.
PRELOAD = ["pytest", "hypothesis", "torch", "torch.distributed", "torch._dynamo", "shardbook"]
# What some of the versions of PyTorch that the tests run on say; `pyproject.toml` has the same.
SAID_BY_SOME = [
    "shardbook was tested with PyTorch",
    "Warning. Profiler clears events at the end of each cycle",
    "Guards may run slower on Python 3.13.0",
]
GRACE_S = 10.0  # what the other ranks get, after one has failed, to fail as well and say where

SERVER = Server(PRELOAD)


def run(
    world_size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 120,
    backend: str = "gloo",
    environ: Mapping[str, str] | None = None,
) -> list[Any]:
    """Call `function(*args)` on `world_size` ranks at once and return their results in rank order.

    `function` stands at the top level of an importable module or of a test file; arguments and results are
    pickled. A run that takes longer than `timeout` seconds is killed. The ranks have the late device of
    `device/` if the backend names it. `environ` are variables of each rank, in which `{rank}` is its number.
    Raises `RanksFailed` with all that the ranks said.
    """
    __tracebackhide__ = True
    name, module = function.__qualname__, function.__module__
    if "<" in name:
        raise TypeError(f"a rank cannot import {name}; define the function at the top level of its module")
    return SERVER.run(
        Task(
            world_size,
            pickle.dumps((function, args)),
            backend,
            timeout,
            GRACE_S,
            begin=partial(begin, late="late" in backend, environ={**(environ or {})}),
            prepare=pickle.dumps(partial(prepare, module, str(sys.modules[module].__file__))),
        )
    )


def prepare(name: str, file: str) -> None:
    """Import the file of a function in the server, and what it preloads."""
    module = load(name, file)
    # What is missing the tests that need it say themselves.
    with suppress(ImportError):
        getattr(module, "preload", bool)()


def load(name: str, file: str) -> ModuleType:
    """Import a file as pytest does, which may use a name that no import path leads to."""
    # The main module is here, too, but it is the server's.
    if name not in sys.modules or name == "__main__":
        hook = None
        # Without pytest, as on a machine that only runs `make gpu`, an assert says less.
        if importlib.util.find_spec("pytest"):
            from rank_asserts import hook

        # Its code for a program that is started does not run.
        alias = "__mp_main__" if name == "__main__" else name
        spec = importlib.util.spec_from_file_location(alias, file, loader=hook)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


def begin(rank: int, late: bool, environ: Mapping[str, str]) -> None:
    """What a rank does before it joins the process group."""
    os.environ.update({name: value.replace("{rank}", str(rank)) for name, value in environ.items()})
    warnings.simplefilter("default" if os.environ.get("RANK_WARNINGS") == "default" else "error")
    for message in SAID_BY_SOME:
        warnings.filterwarnings("ignore", message)
    if late:
        from device import runtime

        runtime.install()
