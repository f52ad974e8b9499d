"""The Python that starts warm behaves as the one that starts cold."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import warm

PROGRAMS = {
    "streams": "import sys; print(input()); print('bad', file=sys.stderr)",
    "exit code": "import sys; sys.exit(7)",
    "exit with a sentence": "import sys; sys.exit('no such file')",
    "exit of the process": "import os; os._exit(3)",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "at exit": "import atexit; atexit.register(print, 'last'); print('first', end=' ')",
    "thread": "import threading; threading.Timer(0.01, print, ['late']).start()",
    "arguments": "import sys; print(sys.argv[1:], __name__)",
    "surroundings": "import os; print(os.getcwd(), os.environ['HERE'], 'RANK' in os.environ)",
    "path": "import sys; print(sys.path)",
    "a file": "import os, subprocess, sys; here, there = os.pipe(); "
    "code = f'import os; os.write({there}, b\"ok\")'; "
    "subprocess.run([sys.executable, '-W', 'ignore', '-c', code], pass_fds=[there]); print(os.read(here, 9))",
    "import": "import beside; print(beside.__file__)",
}


@pytest.mark.cases(now=2, ci=2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_ends_and_says_what_it_would_from_a_cold_start(name: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").touch()
    (tmp_path / "script.py").write_text(PROGRAMS[name], "utf-8")
    for line in (["-c", PROGRAMS[name]], ["script.py"], ["-u", "-m", "script"]):
        cold, fast = (
            subprocess.run(
                [program, *line, "one", "two"],
                cwd=tmp_path,
                env=warm.environment(HERE="there", PYTHONPATH=str(tmp_path / "more")),
                input="good\n",
                capture_output=True,
                text=True,
                check=False,
            )
            for program in (sys.executable, warm.python())
        )
        assert (fast.returncode, fast.stdout, fast.stderr) == (cold.returncode, cold.stdout, cold.stderr)


def test_an_error_has_its_traceback() -> None:
    run = warm.start("-c", "1 / 0")
    assert run.returncode == 1
    assert run.stderr.endswith("ZeroDivisionError: division by zero\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_reaches_the_program(number: signal.Signals, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    program = (
        "import sys, signal; alive = open('alive', 'w'); alive.write('.'); alive.flush(); signal.pause()"
    )
    with (
        subprocess.Popen(
            [warm.python(), "-c", program], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        ) as run,
        (tmp_path / "alive").open() as alive,
    ):
        assert alive.read(1) == "."
        run.send_signal(number)
        # The pipe ends when its last holder has ended.
        assert alive.read() == ""
        assert run.wait() == -number
