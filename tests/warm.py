"""A Python that has imported torch and the book before it starts.

    subprocess.run([warm.python(), "-m", "shardbook.train", "--steps", "3"], ...)

A test that runs the book's commands would spend nearly all of its time on imports: four seconds for one
process, and three processes where `torchrun` starts two ranks. `warm.python()` is the path of a program that
takes the arguments of Python and asks a server to fork. The fork gets the program's arguments, environment,
folder, standard streams and further open files; the program passes signals on and ends as the fork ends, by a
signal if need be. What the fork starts by `sys.executable` starts warm, too, and so do the ranks of
`torchrun`, which `PYTHON_EXEC` names.

What such a process cannot show is the start itself: what is imported, and how the interpreter shuts down. So
one test of each kind takes `sys.executable`.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import importlib
import json
import multiprocessing
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import ranks

# What the book's commands import, and no test wants to hide or replace by its own.
PRELOAD = [
    *("torch.distributed.run", "torch.distributed.checkpoint", "torch.profiler"),
    *("shardbook.train.loop", "shardbook.state.checkpoints", "shardbook.planning.planner"),
    "shardbook.check.check_command",
]

# It starts in 15 ms, since it imports nothing but what talks to the server.
CLIENT = """\
import json, os, signal, socket, sys

def is_open(number):
    try:
        return os.fstat(number) is not None
    except OSError:
        return False

streams = [0, 1, 2, *(number for number in map(int, os.listdir("/dev/fd")) if number > 2 and is_open(number))]
server = socket.socket(socket.AF_UNIX)
server.connect(sys.argv[1])
words = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd(), streams]).encode()
socket.send_fds(server, [len(words).to_bytes(8, "big")], streams)
server.sendall(words)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda number, _: server.sendall(bytes([number])))
code = int(server.recv(16) or b"1")
if code < 0:
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]

_python: Path | None = None
_kept: list[Any] = []


def python() -> str:
    """The path of the program, whose server has been started."""
    global _python
    if _python is None:
        folder = Path(tempfile.mkdtemp(prefix="warm-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        client, place, script = folder / "client.py", folder / "socket", folder / "python"
        client.write_text(CLIENT, "utf-8")
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{client}" "{place}" "$@"\n', "utf-8")
        script.chmod(0o755)
        _start_server(place)
        _python = script
    return str(_python)


def environment(**more: str) -> dict[str, str]:
    """This process's environment, without a rank's variables; the ranks of `torchrun` start warm."""
    ranks_own = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    clean = {name: value for name, value in os.environ.items() if name not in ranks_own}
    return {**clean, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": python(), **more}


def start(
    *arguments: str, program: str | None = None, cwd: Path | None = None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments to its end; with `program=sys.executable` a Python that starts cold."""
    return subprocess.run(
        [program or python(), *arguments],
        env=environment(**more) if program is None else {**environment(**more), "PYTHON_EXEC": program},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def _start_server(place: Path) -> None:
    servers = multiprocessing.get_context("forkserver")
    servers.set_forkserver_preload(ranks.PRELOAD)
    here, there = servers.Pipe()
    # Not a daemon, since it has children. At the end of its pipe it ends.
    process = servers.Process(target=_serve, args=(there, str(place)), name="warm-server")
    process.start()
    there.close()
    here.recv()
    _kept.append(here)
    atexit.register(here.close)


def _serve(pipe: Connection, place: str) -> None:
    """What runs in the server: one fork for each program."""
    import torch

    torch.set_num_threads(1)
    for name in PRELOAD:
        importlib.import_module(name)
    path = _path_of_python()
    # What a program starts in its turn.
    sys.executable = str(Path(place).with_name("python"))
    multiprocessing.set_executable(sys.executable)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(place)
    listener.listen()
    # Nobody waits for the keepers.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    pipe.send("ready")
    while True:
        ready, _, _ = select.select([pipe, listener], [], [])
        if pipe in ready:
            return
        client, _ = listener.accept()
        if os.fork() == 0:
            pipe.close()
            listener.close()
            os._exit(_keep(client, path))
        client.close()


def _path_of_python() -> list[str]:
    """Where Python looks for modules of its own accord."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", "import json, sys; print(json.dumps(sys.path[1:]))"]
    told = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
    return [str(folder) for folder in json.loads(told.stdout)]


def _keep(client: socket.socket, path: list[str]) -> int:
    """Fork the program of one client, pass signals on to it, and tell the client how it has ended."""
    length, streams, _, _ = socket.recv_fds(client, 8, 250)
    words = client.makefile("rb").read(int.from_bytes(length, "big"))
    heard, ended = os.pipe()
    os.set_blocking(ended, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended)
    program = os.fork()
    if program == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        *given, numbers = json.loads(words)
        client.detach()
        _take(dict(zip(numbers, streams, strict=True)))
        _end(_run(*given, path))
    for stream in streams:
        os.close(stream)
    while True:
        ready, _, _ = select.select([client, heard], [], [])
        if client in ready:
            # A client that was killed says nothing more.
            for number in client.recv(64) or [signal.SIGKILL]:
                os.kill(program, number)
        done, status = os.waitpid(program, os.WNOHANG)
        if done:
            with suppress(OSError):
                client.sendall(str(os.waitstatus_to_exitcode(status)).encode())
            return 0


def _take(streams: dict[int, int]) -> None:
    """Give the streams their numbers, and close what the program does not know."""
    # A number may be taken by what this process was forked with, such as the pipes of `multiprocessing`.
    resource_tracker._resource_tracker.__init__()  # type: ignore[misc]
    forkserver._forkserver.__init__()  # type: ignore[attr-defined, misc]
    above = max(int(entry.name) for entry in Path("/dev/fd").iterdir()) + max(streams)
    held = {number: fcntl.fcntl(stream, fcntl.F_DUPFD, above + 1) for number, stream in streams.items()}
    os.closerange(3, above + 1)
    for number, stream in held.items():
        os.dup2(stream, number)
        os.close(stream)


def _end(code: int) -> None:
    """End this process; below zero, by that signal."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _run(arguments: list[str], environ: dict[str, str], folder: str, path: list[str]) -> int:
    """What runs in the program's process: what Python itself does, from its arguments to its exit code."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environ)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    named = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [*named, *path]
    importlib.invalidate_caches()
    code = _outcome(arguments)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return code


def _outcome(arguments: list[str]) -> int:
    try:
        _run_main(arguments)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        traceback.print_exc()
        return -signal.SIGINT
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _run_main(arguments: list[str]) -> None:
    # Such as -W and -X, which the server was not started with.
    while arguments[0][0] == "-" and arguments[0] not in ("-m", "-c"):
        del arguments[: 2 if arguments[0] in ("-W", "-X") else 1]
    kind, *rest = arguments
    if kind == "-m":
        sys.argv = rest
        sys.path.insert(0, str(Path.cwd()))
        # It runs anew, as the main module.
        if not hasattr(sys.modules.get(rest[0]), "__path__"):
            sys.modules.pop(rest[0], None)
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(kind).resolve().parent))
        runpy.run_path(kind, run_name="__main__")
