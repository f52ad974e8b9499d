"""What the parts of the kit have in common: the device, the time that is left, ranks, and what a part found.

A part is a module of this folder with a function `run`. It runs in a process of its own, so that an error of
the device ends one part and not the kit:

    def run(kit: Kit) -> None:
        for name in ...:
            if not kit.time_for(20, name):  # seconds that this will take at most
                continue
            ratio, *_ = kit.ranks(2, on_a_rank, name)  # a function at the top level of the part's module
            kit.holds(name, ratio == 1.0, ratio=ratio)  # a promise of the book
            kit.shows(name, seconds=3.2)  # a figure, of which nothing is promised
            kit.not_tried("two GPUs", "this machine has one: run it where there are more")

Each of these calls writes one line at once, so what was found before a limit or an error is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[2]
HOLDS, DIFFERS, SHOWS, NOT_TRIED = "holds", "differs", "shows", "not tried"
# What carries the exchanges of one rank on each device, and those of two ranks that share it.
BACKENDS = {"cuda": ("nccl", "gloo"), "cpu": ("gloo", "gloo"), "late": ("cpu:gloo,late:late",) * 2}


@dataclass
class Kit:
    """What a part is given.

    :param device: `cuda`, or for a rehearsal `cpu` or `late`, the device of the tests
    :param quick: whether few and small cases are enough, since only the kit itself is tried
    :param seconds: how long the part may take
    """

    device: str
    quick: bool
    seconds: float
    to: TextIO = sys.stdout
    started: float = field(default_factory=time.monotonic)

    @property
    def left(self) -> float:
        """The seconds that this part still has."""
        return self.started + self.seconds - time.monotonic()

    @property
    def cards(self) -> int:
        """The number of devices."""
        import torch

        return torch.cuda.device_count() if self.device == "cuda" else 1

    @property
    def several(self) -> int:
        """How many ranks run together: one on each card, or two on one."""
        return min(max(self.cards, 2), 8)

    def holds(self, name: str, truth: bool, why: str = "", **figures: Any) -> None:
        """A promise of the book, and whether it holds here."""
        self._write(name, HOLDS if truth else DIFFERS, why, figures)

    def shows(self, name: str, why: str = "", **figures: Any) -> None:
        """Figures of which nothing is promised."""
        self._write(name, SHOWS, why, figures)

    def not_tried(self, name: str, why: str) -> None:
        """What could not be tried here, and what would be needed."""
        self._write(name, NOT_TRIED, why, {})

    def time_for(self, seconds: float, name: str) -> bool:
        """Whether there is time left for this; otherwise it is noted as not tried."""
        if self.left >= seconds:
            return True
        self.not_tried(name, "no time was left: raise --minutes, or run this part alone with --part")
        return False

    def attempt(self, name: str, function: Callable[[], None]) -> bool:
        """Run a case. If it raises, that is what it showed, and the part goes on."""
        try:
            function()
        except Exception as error:
            # Of what several ranks have said, the head and the end name the cause.
            said = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
            self._write(
                name, DIFFERS, f"{type(error).__name__}: {' … '.join(dict.fromkeys([said[0], said[-1]]))}", {}
            )
            print(f"--- {name}", file=sys.stderr)
            traceback.print_exc()
            return False
        return True

    def ranks(
        self,
        world_size: int,
        function: Callable[..., Any],
        *args: Any,
        backend: str | None = None,
        timeout: float | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """Call a function on several ranks at once, each a fresh process; the results in rank order.

        The ranks share one device. `environ` are variables of each rank; `{rank}` in a value is its number.
        """
        import ranks

        alone, together = BACKENDS[self.device]
        limit = min(timeout or self.left, max(self.left, 1.0))
        return ranks.run(
            world_size,
            function,
            *args,
            backend=backend or (alone if world_size == 1 else together),
            timeout=limit,
            environ={"RANK_WARNINGS": "default", **(environ or {})},
        )

    def _write(self, name: str, status: str, why: str, figures: dict[str, Any]) -> None:
        row = {"name": name, "status": status, **({"why": why} if why else {})}
        print(json.dumps({**row, **({"figures": figures} if figures else {})}), file=self.to, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run one part; the kit starts this in a process of its own."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu.kit")
    parser.add_argument("part", help="the module")
    parser.add_argument("--device", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--to", type=Path, required=True)
    given = parser.parse_args(arguments)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    warnings.simplefilter("default")
    with given.to.open("a", encoding="utf-8") as stream:
        import_module(given.part).run(Kit(given.device, given.quick, given.seconds, stream))
    return 0


if __name__ == "__main__":
    # A part imports this module under its name, and gets the same classes.
    sys.exit(import_module("tools.gpu.kit").main())
