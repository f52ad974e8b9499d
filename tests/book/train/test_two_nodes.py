"""Two nodes, each with a network of its own, train as one machine does; also where a rank of one dies.

The nodes are made by `benchmarks/nodes.py`. The wire between them is slow enough to matter and fast enough
for a test; how long a step takes on it is measured by `benchmarks/two_nodes.py`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import warm
from warm import TORCHRUN, start

ROOT = Path(__file__).parents[3]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import nodes  # noqa: E402

MORTAL, NODE = ROOT / "tests" / "mortal.py", ROOT / "tests" / "node.py"
SIZE = "--layers 2 --width 64 --heads 2 --context 16 --batch 2"
OPTIONS = f"{SIZE} --steps 12 --device cpu --evaluate-batches 1 --sample 0 --save-every 4"
# 4 bytes for each of the parameters.
MODEL_BYTES = 4 * (2 * 256 * 64 + 16 * 64 + 2 * (12 * 64 * 64 + 13 * 64) + 2 * 64 + 256)


def losses(file: Path) -> dict[int, float]:
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    found = {line["step"]: line["loss"] for line in lines}
    assert [*found] == [*range(1, len(lines) + 1)]
    return found


def torchrun(run: str, port: int) -> list[str]:
    """The words that start a run on both nodes.

    Each run has a port of its own. The second node may end a run first, and would meet in the next one the
    store of that which the first node is about to close.
    """
    place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"FIRST:{port}", "--rdzv-id", run]
    return ["PYTHON", "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2", *place]


def on_two_nodes(folder: Path, *runs: list[str]) -> str:
    """Runs on two nodes, one after the other, and what they said."""
    try:
        command = nodes.command(sys.executable, str(NODE), str(folder), json.dumps([*runs]), rate="400mbit")
    except nodes.Missing as missing:
        pytest.fail(str(missing))
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests"), *(entry for entry in sys.path if entry)])
    job = subprocess.run(
        command,
        env={**warm.environment(), "PYTHONPATH": path},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert job.returncode == 0, job.stderr
    return job.stderr


def train(folder: Path, *, flat: bool) -> None:
    """Train on a mesh and, if wanted, also with one copy of the model over both nodes."""
    line = [*OPTIONS.split(), "--jsonl"]
    script = [str(ROOT / "examples" / "torchrun.sh"), "FIRST", "2", "2", *line, str(folder / "mesh")]
    one_copy = [*torchrun("flat", 29600), "-m", "shardbook.train", *line, str(folder / "flat")]
    on_two_nodes(folder, script, *([one_copy] if flat else []))


def on_one_machine(folder: Path, *options: str) -> Any:
    file = folder / f"one-machine{''.join(options)}"
    line = [*TORCHRUN, "4", "-m", "shardbook.train", *OPTIONS.split(), "--jsonl", str(file), *options]
    run = start(*line)
    assert run.returncode == 0, run.stderr
    return losses(file)


@pytest.mark.full
@pytest.mark.parametrize("flat", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_two_nodes_train_like_one_machine_to_the_bit(tmp_path: Path, flat: bool) -> None:
    """A mesh sends the gradients' mean over the wire, and one copy over both nodes its units, too."""
    train(tmp_path, flat=flat)
    mesh = losses(tmp_path / "mesh")
    assert len(mesh) == 12
    assert mesh[12] < mesh[1]
    assert mesh == on_one_machine(tmp_path, "--mesh", "2x2")
    if flat:
        assert losses(tmp_path / "flat") == on_one_machine(tmp_path)
    for node in (0, 1):
        on_mesh, *others = json.loads((tmp_path / f"crossed-{node}").read_text("utf-8"))
        # Each step sends the mean of the gradients, in both directions; the beginning and the end send more.
        assert 12 * MODEL_BYTES < on_mesh < 18 * MODEL_BYTES
        # With one copy a reduce-scatter sends as much, and two gathers at least half of it each.
        assert len(others) == flat
        assert all(one_copy > 24 * MODEL_BYTES for one_copy in others)


@pytest.mark.nightly
def test_a_rank_that_dies_on_one_node_is_started_again_on_both(tmp_path: Path) -> None:
    line = [*torchrun("killed", 29700), "--max-restarts", "2", str(MORTAL), "backward:3:0:20"]
    line += [str(tmp_path / "trace"), *OPTIONS.split(), "--jsonl", str(tmp_path / "killed")]
    said = on_two_nodes(tmp_path, [*line, "--mesh", "2x2", "--checkpoints", str(tmp_path / "run")])
    assert '"dies"' in (tmp_path / "trace" / "rank-3").read_text("utf-8"), said
    assert re.search(r"going on after step [48]", said), said
    assert losses(tmp_path / "killed") == on_one_machine(tmp_path, "--mesh", "2x2")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["step-00000008", "step-00000012"]
