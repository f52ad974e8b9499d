"""A part that does not end, and neither does what it has started."""

import subprocess
import sys

from tools.gpu.kit import Kit

ENDLESS = "import signal; signal.pause()"


def run(kit: Kit) -> None:
    child = subprocess.Popen([sys.executable, "-c", ENDLESS])
    kit.shows("its process", pid=child.pid)
    child.wait()
