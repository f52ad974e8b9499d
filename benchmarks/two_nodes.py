"""Compare one copy of a model over two nodes with a copy on each node, where the wire between them is slow.

Two network namespaces are the nodes, with two ranks each, and `tc` limits the speed of the wire that connects
them (`benchmarks/nodes.py`). Both ways train the same GPT with the same lines: `flat` shards it over all four
ranks, `mesh` over the two ranks of a node, and repeats it on the other node. They take turns, and each ratio
is that of two runs of the same round.

Beside the time of a step stand the bytes that one node puts on the wire, with all headers, and what the
formula says: the mesh sends the mean of the gradients, once; one copy sends as much for its reduce-scatter,
and at least half as much for each of two gathers.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.__main__ import Figures, positive, processor, spread_of, table
from benchmarks.contender import Contender, Training
from benchmarks.floor import config_of
from benchmarks.launch import ROOT, Size
from benchmarks.nodes import Missing, command, crossed
from torch.distributed.device_mesh import init_device_mesh

from shardbook import shard
from shardbook.models import gpt
from shardbook.planning.report import write

WAYS = ("flat", "mesh")
LOCAL = 2  # ranks on a node
# Four ranks compute on few cores here, so a small model keeps the wire the slowest part.
SIZE = Size(layers=4, width=256, heads=4, warm_up=1)
MB = 1e6


@dataclass(frozen=True)
class Run:
    """The slowest rank's median step, and what the busier node puts on the wire in a step."""

    seconds: float
    wire: float


def main(arguments: list[str] | None = None) -> int:
    """Run both ways in turn, print the table, write the figures."""
    options = parse(arguments)
    if options.node is not None:
        return node(options.node)
    if options.json is not None and not options.json.parent.is_dir():
        sys.exit(f"--json {options.json}: there is no folder {options.json.parent}; make it first")
    size = replace(SIZE, batch=options.batch, steps=options.steps)
    runs: dict[str, list[Run]] = {way: [] for way in WAYS}
    try:
        for number in range(options.pairs):
            for way in WAYS if number % 2 else reversed(WAYS):
                print(f"round {number + 1} of {options.pairs}: {way}", file=sys.stderr, flush=True)
                runs[way].append(run(way, size, options.rate))
    except Missing as missing:
        sys.exit(str(missing))
    figures = compare(runs, size)
    print(report(runs, figures, size, options.rate))
    figures |= {"rate": options.rate, "cpu": processor(), "torch": torch.__version__}
    if options.json is not None:
        write(options.json, json.dumps(figures, indent=1) + "\n")
    return 0


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    about = (__doc__ or "").split("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.two_nodes",
        description=" ".join(about[0].split()),
        epilog=" ".join(" ".join(about[1:]).split()),
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--pairs", type=positive, default=10, metavar="N", help="rounds; each runs both ways")
    add("--steps", type=positive, default=3, metavar="N", help="timed steps of a run")
    add("--batch", type=positive, default=1, metavar="N", help="sequences for one rank")
    add("--rate", default="200mbit", help="speed of the wire in each direction, as tc writes it")
    add("--json", type=Path, metavar="FILE", help="also write the figures to this file, as one flat object")
    add("--node", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def run(way: str, size: Size, rate: str) -> Run:
    """Run one way on fresh nodes and read its figures from the last line that it prints."""
    task = json.dumps([way, asdict(size)])
    settings = {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(
        command(sys.executable, "-m", "benchmarks.two_nodes", "--node", task, rate=rate),
        cwd=ROOT,
        env={**os.environ, **settings},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{way} failed; its message stands above")
    return Run(**json.loads(done.stdout.splitlines()[-1]))


def node(task: str) -> int:
    """On one node: start its ranks, or be one of them."""
    if "LOCAL_RANK" in os.environ:
        way, size = json.loads(task)
        train(way, Size(**size))
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.two_nodes", "--node", task],
            env={
                **os.environ,
                "LOCAL_RANK": str(local),
                "RANK": str(LOCAL * int(os.environ["NODE"]) + local),
                "WORLD_SIZE": str(2 * LOCAL),
                "MASTER_ADDR": os.environ["FIRST"],
                "MASTER_PORT": "29500",
            },
        )
        for local in range(LOCAL)
    ]
    return max(abs(process.wait()) for process in processes)


def train(way: str, size: Size) -> None:
    """Train on this rank, and let the first one print what the run showed."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    training = Training(Contender(applied(way)), size)
    for _ in range(size.warm_up):
        training.step()
    dist.barrier()
    before = crossed()
    dist.barrier()
    seconds = []
    for _ in range(size.steps):
        started = time.perf_counter()
        training.step()
        seconds.append(time.perf_counter() - started)
    dist.barrier()
    mine = statistics.median(seconds), (crossed() - before) / size.steps
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    if dist.get_rank() == 0:
        print(json.dumps(asdict(Run(*map(max, zip(*ranks, strict=True))))), flush=True)
    dist.barrier()
    # torch may keep the backend's threads running; to take the interpreter down around them can abort.
    os._exit(0)


def applied(way: str) -> Callable[[gpt.GPT], Any]:
    """How the model is made parallel."""
    mesh = init_device_mesh("cpu", (2, LOCAL)) if way == "mesh" else None
    return lambda model: shard(model, mesh=mesh)


def wire_limit(way: str, size: Size) -> float:
    """What one node has to send the other in a step, in bytes."""
    return 4 * gpt.parameters(config_of(size)) * {"mesh": 1, "flat": 2}[way]


def compare(runs: dict[str, list[Run]], size: Size) -> Figures:
    """The mesh over the flat way, and each beside its formula."""
    pairs = list(zip(runs["mesh"], runs["flat"], strict=True))
    figures: Figures = {
        **spread_of("step_ratio_mesh_flat", [mesh.seconds / flat.seconds for mesh, flat in pairs]),
        **spread_of("wire_ratio_mesh_flat", [mesh.wire / flat.wire for mesh, flat in pairs]),
    }
    for way, of_one in runs.items():
        figures[f"step_seconds_{way}"] = statistics.median(one.seconds for one in of_one)
        figures[f"wire_bytes_{way}"] = statistics.median(one.wire for one in of_one)
        figures |= spread_of(f"wire_over_limit_{way}", [one.wire / wire_limit(way, size) for one in of_one])
    return figures


def report(runs: dict[str, list[Run]], figures: Figures, size: Size, rate: str) -> str:
    """All of it, for a person to read."""
    title = f"2 nodes of {LOCAL} ranks, {rate}"
    lines = [f"{title:<30}{'step, s':>10}{'on the wire, MB':>18}{'by formula':>14}"]
    for way in runs:
        step, wire = (float(figures[f"{name}_{way}"] or 0) for name in ("step_seconds", "wire_bytes"))
        limit = wire_limit(way, size) / MB
        sign = "at least " if way == "flat" else ""
        lines.append(f"{way:<30}{step:>10.3f}{wire / MB:>18.1f}{f'{sign}{limit:.1f}':>14}")
    keys = [key for key in figures if "_ratio_" in key or "_over_" in key]
    return "\n".join([*lines, "", table("one over the other", keys, figures)])


if __name__ == "__main__":
    sys.exit(main())
