"""Two machines on one: two network namespaces that a wire of limited speed connects.

    python -m benchmarks.nodes --rate 500mbit COMMAND ...

The command runs on both at once, with these variables:

    NODE                 0 or 1
    ADDRESS              its address
    FIRST                that of node 0
    GLOO_SOCKET_IFNAME   the end of the wire on this node, which gloo has to use

What two processes of one node send each other does not pass the wire, as on real machines. Everything is
made by this program, needs no rights where a user may have namespaces of their own, and vanishes with it: the
namespaces live as long as their processes, and those end with the first of them, even if it is killed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ADDRESSES = ("10.77.0.1", "10.77.0.2")
ENDS = ("wire0", "wire1")
GRACE_S = 20.0  # what the other node gets to end by itself, after one has failed
# The network is new, and the processes have numbers of their own, so that all of them end with the first.
WALL = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


class Missing(Exception):
    """What this machine does not have or does not allow, in one sentence."""


def command(*words: str, rate: str) -> list[str]:
    """The command line that runs some words on two nodes.

    Raises `Missing` where there can be no nodes.
    """
    return [*wall(), sys.executable, "-m", "benchmarks.nodes", "--rate", rate, *words]


@cache
def wall() -> tuple[str, ...]:
    """The command that gives a program a network of its own."""
    for program, package in (("unshare", "util-linux"), ("ip", "iproute2"), ("tc", "iproute2")):
        if shutil.which(program) is None:
            raise Missing(f"two nodes need the program {program}; install {package}")
    refusals = []
    for wall in ((*WALL, "--user", "--map-root-user"), WALL):
        trial = subprocess.run([*wall, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
        if trial.returncode == 0:
            return wall
        refusals.append(trial.stderr.strip())
    raise Missing(
        f"two nodes need network namespaces ({refusals[0]}); run as root, or allow user namespaces "
        "(sysctl kernel.unprivileged_userns_clone=1; on Ubuntu "
        "kernel.apparmor_restrict_unprivileged_userns=0)"
    )


def main(arguments: list[str] | None = None) -> int:
    """Inside the wall: lay the wire, run the command on both nodes, and return the worst exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes")
    parser.add_argument(
        "--rate", default="1gbit", help="speed of the wire, in each direction, as tc writes it"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args(arguments)
    there, here = os.pipe(), os.pipe()
    # The second node says that it has its own network, waits for the wire, and says that its end is up.
    words = [f"echo >&{there[1]}", f"read -r _ <&{here[0]}", setting_up(1, options.rate)]
    script = "; ".join([*words, f"echo >&{there[1]}", 'exec "$@"'])
    second = subprocess.Popen(
        ["unshare", "--net", "bash", "-ec", script, "node 1", *options.command],
        env=environment(1),
        pass_fds=(there[1], here[0]),
    )
    os.read(there[0], 1)
    run("ip", "link", "add", ENDS[0], "type", "veth", "peer", "name", ENDS[1], "netns", str(second.pid))
    run("bash", "-ec", setting_up(0, options.rate))
    os.write(here[1], b"\n")
    os.read(there[0], 1)
    first = subprocess.Popen(options.command, env=environment(0))
    return outcome([first, second])


def setting_up(node: int, rate: str) -> str:
    """The shell commands for one end of the wire."""
    end = ENDS[node]
    return "; ".join(
        [
            "ip link set lo up",
            # Without addresses of its own choice the end has one only, and gloo cannot take another.
            f"ip link set {end} addrgenmode none",
            f"ip address add {ADDRESSES[node]}/24 dev {end}",
            f"ip link set {end} up",
            f"tc qdisc add dev {end} root tbf rate {rate} burst 256kb latency 200ms",
        ]
    )


def environment(node: int) -> dict[str, str]:
    """The variables of a node."""
    return {
        **os.environ,
        "NODE": str(node),
        "ADDRESS": ADDRESSES[node],
        "FIRST": ADDRESSES[0],
        "GLOO_SOCKET_IFNAME": ENDS[node],
    }


def crossed() -> int:
    """Bytes that this node has put on the wire so far, with all headers."""
    lines = Path("/proc/self/net/dev").read_text("utf-8").splitlines()
    end = os.environ["GLOO_SOCKET_IFNAME"]
    (line,) = (line for line in lines if line.strip().startswith(f"{end}:"))
    return int(line.split(":")[1].split()[8])


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def outcome(nodes: list[subprocess.Popen[bytes]]) -> int:
    """The worst exit code. If one node fails, the other has a while to end, too."""
    until = float("inf")
    while any(node.poll() is None for node in nodes) and time.monotonic() < until:
        if until == float("inf") and any(node.poll() for node in nodes):
            until = time.monotonic() + GRACE_S
        time.sleep(0.02)
    for node in nodes:
        if node.poll() is None:
            print("a node did not end after the other had failed", file=sys.stderr)
            node.kill()
    return max(abs(node.wait()) for node in nodes)


if __name__ == "__main__":
    sys.exit(main())
