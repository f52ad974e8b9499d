"""Make a virtual environment that holds this project with one of its extras, at the pinned versions.

    python3 tools/environment.py FOLDER EXTRA [--torch VERSION] [PIP ARGUMENT ...]

The Makefile runs it before anything is installed, so it needs the standard library alone. A Python that is
too old for the project must still be able to read this file, to say so.
"""

import subprocess
import sys
from pathlib import Path

OLDEST = (3, 10)
# What an extra needs without what that asks for in turn, at the versions of constraints.txt. The layers of
# labml-nn are plain PyTorch, but the package asks for older builds of torch, torchvision and torchtext.
ALONE = {"dev": ["labml-nn"]}


def missing():
    """What keeps this Python from making the environment, as one sentence, or None."""
    if sys.version_info < OLDEST:
        found, needed = (".".join(map(str, version)) for version in (sys.version_info[:2], OLDEST))
        return f"Python {found} is too old; name {needed} or newer, as in `make PYTHON=python3.12`"
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return "this Python cannot make virtual environments; on Debian: `apt-get install python3-venv`"
    return None


def make(folder, extra, pip_arguments, torch=None):
    """Create `folder` unless it holds a working environment, and install the project's `extra` into it."""
    python = f"{folder}/bin/python"
    if not works(python):
        subprocess.check_call([sys.executable, "-m", "venv", "--clear", folder])
    pins = "constraints.txt" if torch is None else pins_with(torch, folder)
    # Python compiles what it imports, and keeps that; pip would compile all that it installs.
    quiet = ["--disable-pip-version-check", "install", "--quiet", "--no-compile"]
    pip = [python, "-m", "pip", *quiet, "-c", pins]
    subprocess.check_call([*pip, *pip_arguments, "--editable", f".[{extra}]"])
    if extra in ALONE:
        subprocess.check_call([*pip, *pip_arguments, "--no-deps", *ALONE[extra]])


def pins_with(torch, folder):
    """All pins but that of torch, which is another version here; the path of the file that holds them."""
    lines = Path("constraints.txt").read_text("utf-8").splitlines()
    pins = [f"torch=={torch}" if line.startswith("torch==") else line for line in lines]
    changed = Path(folder, "constraints.txt")
    changed.write_text("\n".join(pins), "utf-8")
    return str(changed)


def works(python):
    """Whether an environment's Python still starts: in a moved folder, for one, it does not."""
    try:
        return subprocess.call([python, "-m", "pip", "--version"], stdout=subprocess.DEVNULL) == 0
    except OSError:
        return False


def main(arguments):
    """Run the command line; every failure is one line and exit code 1."""
    obstacle = missing()
    if obstacle:
        sys.exit(obstacle)
    folder, extra, pip_arguments = arguments[0], arguments[1], arguments[2:]
    torch = None
    if pip_arguments[:1] == ["--torch"]:
        torch, pip_arguments = pip_arguments[1], pip_arguments[2:]
    print(f"making {folder}: the project with [{extra}]", flush=True)
    try:
        make(folder, extra, pip_arguments, torch)
    except subprocess.CalledProcessError:
        sys.exit(f"{folder} could not be made; the reason stands above")


if __name__ == "__main__":
    main(sys.argv[1:])
