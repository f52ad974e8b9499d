"""Find the Chromium that the browser tests drive, or install one where this machine allows it.

    python tools/chromium.py

prints the path of a browser that starts. The order is: the browser named by SHARDBOOK_CHROMIUM, one on the
PATH, one that Playwright downloaded, Debian's packages (as root), Playwright's download. Where all of this
fails it says in one line what to do, and exits with code 1.

The headless shell comes first: it is the same Chromium without a window around the page, and opens a page in
a third of the time.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "SHARDBOOK_CHROMIUM"
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ADVICE = (
    "no Chromium is here and none could be installed; install one (Debian: `apt-get install chromium`, else: "
    f"`.venv/bin/playwright install --with-deps chromium`) or name yours in {VARIABLE}"
)


def find() -> str | None:
    """The path of a browser that is there and starts, or None."""
    return next((path for path in candidates() if starts(path)), None)


def candidates() -> Iterator[str]:
    """Every path worth trying, best first; a browser named by the user leaves no other choice."""
    if named := os.environ.get(VARIABLE):
        yield named
        return
    yield from (path for name in NAMES if (path := shutil.which(name)))
    yield from playwrights_own()


def playwrights_own() -> list[str]:
    """The browser that `playwright install` put down, if it did."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return [path] if Path(path).exists() else []


def starts(path: str) -> bool:
    """Whether the program runs at all: Ubuntu's `chromium-browser` can be a stub that asks for a snap."""
    try:
        return subprocess.run([path, "--version"], capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def install() -> None:
    """Try Debian's packages, then Playwright's own download; what fails is left to the caller to notice."""
    if shutil.which("apt-get") and os.geteuid() == 0:
        attempt("apt-get", "update", "-qq")
        for package in ("chromium-headless-shell", "chromium"):
            if find() is None:
                attempt("apt-get", "install", "-y", "-qq", "--no-install-recommends", package)
    if find() is None:
        attempt(sys.executable, "-m", "playwright", "install", "chromium")


def attempt(*command: str) -> None:
    """Run one installer, its words on stderr, whatever comes of it."""
    print("trying:", *command, file=sys.stderr, flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, stdout=sys.stderr, env=quiet, check=False)


def ensure() -> str:
    """The path of a browser that starts, installed now if need be; otherwise one line and exit code 1."""
    path = find()
    if path is None and VARIABLE in os.environ:
        sys.exit(f"{VARIABLE}={os.environ[VARIABLE]} does not start; name another browser or unset it")
    if path is None:
        install()
        path = find()
    return path or sys.exit(ADVICE)


if __name__ == "__main__":
    print(ensure())
